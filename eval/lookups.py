"""The lookups that a custom speculator is measured against, at their best.

    context = with_lookups(context)           # before replay
    context.lookups[kind.name].settings
    served_lookups(context, validation)       # those that servers are started for

A lookup costs nothing to train, so it is measured at its best: its settings are chosen on the
validation part, and it searches the responses of the training part, as after serving them. A lookup
that is the base or custom gets its settings in the same way, unless the recipe sets them.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from pydantic import BaseModel

from outrider.common.errors import OutriderError
from outrider.data.sequences import load_sequences, log_order
from outrider.eval.config import AUTO_LOOKUP
from outrider.eval.context import EvaluationContext
from outrider.eval.replay.lookups import LoggedText, best_settings
from outrider.eval.replay.sums import ReplaySums
from outrider.eval.results.sections import HistoryFacts
from outrider.serving.speculator import Speculator
from outrider.speculators.kinds import (
    installed_lookups,
    kind_named,
    lookup_names,
    weightless_kind,
)
from outrider.speculators.kinds.protocol import Lookup, Settings, WeightlessKind
from outrider.speculators.lookup_history import EarlierResponse, read_history


class ChosenSettings(BaseModel):
    """A lookup's best settings, as they are cached."""

    settings: dict[str, float]


def with_lookups(context: EvaluationContext) -> EvaluationContext:
    """Prepares the lookups of `eval.lookup`, and those that are base or custom."""
    named = context.settings.lookup
    names = installed_lookups() if named == AUTO_LOOKUP else [named]
    # Base is a reference anyway, and custom is what is judged.
    measured = {speculator.kind for speculator in context.speculators.values()}
    lookups = {name: _at_best(context, Speculator(name)) for name in names if name not in measured}
    speculators = {
        name: _at_best(context, speculator) for name, speculator in context.speculators.items()
    }
    return _replaced(context, speculators=speculators, lookups=lookups)


def with_best_lookups(contexts: Mapping[str, EvaluationContext]) -> dict[str, EvaluationContext]:
    """Prepares the lookups that are base or custom in contexts that differ only in custom.

    Each kind of lookup is prepared once, in the folder of the first context.
    """
    first = next(iter(contexts.values()))
    lookups = {
        speculator.kind: speculator
        for context in contexts.values()
        for speculator in context.speculators.values()
        if not speculator.drafter_kind.has_weights
    }
    best = {kind: _at_best(first, speculator) for kind, speculator in lookups.items()}
    return {
        kind: _replaced(
            context,
            speculators={
                name: best.get(speculator.kind, speculator)
                for name, speculator in context.speculators.items()
            },
        )
        for kind, context in contexts.items()
    }


def _replaced(context: EvaluationContext, **changes: Any) -> EvaluationContext:
    """The context with these fields changed, and its digest."""
    prepared = dataclasses.replace(context, **changes)
    # What was chosen follows from the given context, so measurements are kept under its digest.
    vars(prepared)["digest"] = context.digest
    return prepared


def missing_lookups(context: EvaluationContext) -> dict[str, str]:
    """The lookups that `eval.lookup: auto` leaves out, and why."""
    if context.settings.lookup != AUTO_LOOKUP:
        return {}
    missing: dict[str, str] = {}
    for name in lookup_names():
        try:
            kind_named(name).require_installed()
        except OutriderError as error:
            missing[name] = str(error)
    return missing


def served_lookups(
    context: EvaluationContext, validation: Mapping[str, ReplaySums] | None
) -> dict[str, Speculator]:
    """The lookups that are served as references, by kind: the best one of each model runner.

    Lookups of one runner take steps of about equal length, because neither runs a model, so replay
    alone shows which is faster. Custom without weights is a lookup itself, and needs none.
    """
    if not context.speculators["custom"].drafter_kind.has_weights:
        return {}
    best: dict[str, str] = {}
    for name, speculator in context.lookups.items():
        runner = context.runner(speculator)
        leader = best.get(runner)
        if leader is None or (
            validation and _longest(validation[name]) > _longest(validation[leader])
        ):
            best[runner] = name
    return {name: context.lookups[name] for name in best.values()}


def _longest(sums: ReplaySums) -> float:
    return max(sums.acceptance_length())


def _at_best(context: EvaluationContext, speculator: Speculator) -> Speculator:
    """The speculator with its history and its best settings; unchanged with weights."""
    kind = weightless_kind(speculator.kind)
    if kind is None:
        return speculator
    directory = speculator.directory or _prepared(context, kind)
    prepared = dataclasses.replace(speculator, directory=directory)
    if speculator.settings or not kind.searched_settings:
        return prepared
    replayed = prepared.replay_argument(context.runner(prepared))
    assert isinstance(replayed, Lookup)
    chosen = context.cached_measurement(
        f"settings_{speculator.kind}",
        ChosenSettings,
        lambda: ChosenSettings(settings=dict(_chosen(context, replayed))),
    )
    return dataclasses.replace(prepared, settings=chosen.settings)


def _prepared(context: EvaluationContext, kind: WeightlessKind) -> Path | None:
    """The directory of what the kind reads; None if it reads nothing.

    A history of an earlier attempt is kept: sorting 100,000 responses takes half a minute or more
    (benchmarks/results/lookup.md).
    """
    folder = lookup_folder(context.folders.out, kind.name)
    history = kind.history(folder)

    def written() -> dict[str, str]:
        kind.prepare(
            _training_responses(context),
            folder,
            max_gb=context.lookup.max_gb,
            shared=context.lookup.shared,
        )
        return {"history": str(history)}

    if history is None:
        return None
    kept = context.cached_result(f"history_{kind.name}")
    if history.is_file():
        kept.run(written)
    else:
        kept.put(written())
    return folder


def _chosen(context: EvaluationContext, lookup: Lookup) -> Settings:
    context.say(f"choosing the settings of {lookup.kind} lookup on the validation part")
    rows = context.data.rows(context.data.parts["validation"])
    texts = [LoggedText.of(row) for row in rows.select_columns(COLUMNS)]
    return best_settings(lookup, texts)


def lookup_folder(out: Path, kind: str) -> Path:
    """The folder of a lookup's history in an evaluation's folder.

    `privacy.retention` deletes it, because a history is customer text.
    """
    return out / "steps" / kind


def history_facts(speculator: Speculator) -> HistoryFacts | None:
    """What a report states of a lookup's history; None without one."""
    kind = weightless_kind(speculator.kind)
    path = kind.history(speculator.directory) if kind else None
    return None if path is None else HistoryFacts(**read_history(path).facts)


def separates_tenants(speculators: Iterable[Speculator]) -> bool:
    """Whether drafts of any of them depend on the `cache_salt` of a request."""
    kinds = ((weightless_kind(one.kind), one.directory) for one in speculators)
    return any(kind is not None and kind.separates_tenants(folder) for kind, folder in kinds)


def _training_responses(context: EvaluationContext) -> Iterator[EarlierResponse]:
    """Yields the training part's responses, oldest first; reads nothing before.

    With the log's own sessions, because they are erased by the names that the log has.
    """
    yield from responses_of(load_sequences(context.data.sequences, context.data.parts["train"]))


def responses_of(rows: Dataset) -> Iterator[EarlierResponse]:
    """Yields the responses of a table of sequences, oldest first."""
    order = log_order(rows["time"])
    for index in sorted(range(len(rows)), key=order.__getitem__):
        row = rows[index]
        yield EarlierResponse(
            token_ids=np.array(row["token_ids"][row["completion_start"] :], np.int32),
            session=row["session"],
            tenant=row.get("tenant", ""),
        )


COLUMNS = ["sequence_id", "session", "user", "tenant", "token_ids", "completion_start"]
"""Columns of the sequence table that a lookup's replay reads."""
