"""Stages of `outrider adapt`: a window of traffic, and a training round.

Each window and each round has its own run directory. The states of an exchange are captured only
once, because a round joins the tables and stores of its windows. For a lookup, nothing is captured
or trained: a round adds the responses of its newer windows to the history.
"""

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from outrider.common.errors import OutriderError
from outrider.common.files import SCRATCH, publish, write_json
from outrider.common.json_forms import read_form
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import Options, Result, Settings, Stage
from outrider.pipeline.stages.capture import CAPTURE
from outrider.pipeline.stages.ingest import INGEST
from outrider.pipeline.stages.sources import (
    parts_in_use,
    section_settings,
    target_and_base_digests,
    traffic_digests,
)
from outrider.pipeline.stages.train import TRAIN, train_on
from outrider.serving.bundle.bundle import export_bundle
from outrider.serving.bundle.bundle_digest import read_manifest
from outrider.serving.speculator import Drafting
from outrider.speculators.lookup_history import HISTORY_FILE, read_history

ROUND_WINDOWS = 4
"""Maximum number of sequences in a round, in multiples of `adapt.window`; the latest are used."""

OLDER_SHARE = 0.3
"""Share of a round's sequences that come from earlier traffic, to prevent forgetting."""

PLAN = "round.json"
"""File of a round with its number and the directories of its windows, `newer` and `older`."""


def usable_ids(window: RunDirectory) -> list[str]:
    """Ids of a window's sequences in log order, without quarantined ones."""
    return parts_in_use(window)["train"]


def _window(run: RunDirectory, recipe: Recipe, options: Options) -> Result:
    from outrider.data.ingest.ingest import ingest
    from outrider.data.sequences import load_sequences
    from outrider.data.split.slices import name_slices, write_slices

    summary = ingest(
        recipe.target.training_directory(),
        recipe.traffic,
        run.traffic,
        privacy=recipe.privacy,
        hard_labels=recipe.speculator.hard_labels,
        generation=recipe.serving.engine.generation,
        prefix=f"{run.root.name}-",
        is_slice=True,
    )
    table = load_sequences(run.sequences)
    write_slices(name_slices(table), run.split)
    # The whole window is captured; a round splits it later.
    write_json(run.split / "parts.json", {"train": table["sequence_id"][:]})
    counts = {name: summary[name] for name in ("rows", "exchanges", "rejects")}
    if not recipe.speculator.kinds:  # a lookup reads no states
        return {**counts, "sequences": len(usable_ids(run)), "on_policy": None}
    # The stage's work, not the stage: a window is one stage with one record.
    captured = CAPTURE.work(run, _as_logged(recipe), options)
    return {**counts, "sequences": len(usable_ids(run)), "on_policy": captured["on_policy"]}


def _round(run: RunDirectory, recipe: Recipe, options: Options) -> Result:
    from outrider.data.features.feature_store import join_stores
    from outrider.data.sequences import load_sequences
    from outrider.data.split.rounds import training_parts
    from outrider.pipeline.draft_parity_check import check_warm_start

    if not recipe.speculator.kinds:
        return _lookup_round(run, recipe)
    if recipe.training.streams:
        raise OutriderError(
            "training.features = streamed: `outrider adapt` trains on the states of several"
            " windows, which it has stored; set training.features: stored"
        )
    plan = _read_plan(run)
    older = _windows(plan.older)
    newer = _windows(plan.newer)
    chosen = _choose(older, newer, most=ROUND_WINDOWS * recipe.adapt.window, seed=plan.number)
    # The round gets a table and a store like those of a run, so that the trainer reads both alike.
    table = load_sequences([window.sequences for window in older + newer], chosen)
    with publish(run.sequences) as folder:
        folder.mkdir(mode=0o700)
        table.save_to_disk(str(folder))
    join_stores([window.features for window in older + newer], chosen, run.features)
    parts = training_parts(
        table, recipe.split.validation_fraction, recipe.split.session_gap_minutes
    )
    write_json(run.split / "parts.json", parts)
    if options.get("parity"):
        check_warm_start(run, recipe, parts["validation"])
    trained = train_on(run, recipe, parts)
    return {"sequences": {name: len(ids) for name, ids in parts.items()}, "training": trained}


class _Plan(BaseModel):
    """`PLAN`: the round's number, and directories of windows."""

    number: int
    newer: list[str]
    older: list[str]


def _read_plan(run: RunDirectory) -> _Plan:
    return read_form(_Plan, run.root / PLAN, "delete it and run `outrider adapt` again")


def _lookup_round(run: RunDirectory, recipe: Recipe) -> Result:
    """Adds the newer windows' responses to the history in use; publishes it as a bundle."""
    from outrider.data.sequences import load_sequences
    from outrider.eval.lookups import responses_of

    newer = _windows(_read_plan(run).newer)
    ids = [name for window in newer for name in usable_ids(window)]
    table = load_sequences([window.sequences for window in newer], ids)
    with publish(run.sequences) as folder:
        folder.mkdir(mode=0o700)
        table.save_to_disk(str(folder))
    parts = {"train": ids, "validation": list[str]()}
    write_json(run.split / "parts.json", parts)
    in_use = Path(str(recipe.speculator.base))
    drafting = Drafting.from_manifest(read_manifest(in_use), in_use)
    history = read_history(in_use / HISTORY_FILE)
    with tempfile.TemporaryDirectory(dir=run.root, prefix=SCRATCH) as made:
        extended = history.extend(responses_of(table), recipe.lookup.max_gb)
        extended.write(Path(made) / HISTORY_FILE)
        speculator = dataclasses.replace(drafting.speculator, directory=Path(made))
        export_bundle(
            dataclasses.replace(drafting, speculator=speculator),
            recipe.target,
            recipe.serving.engine,
            evidence={},
            out_dir=run.speculator,
        )
    return {"sequences": {name: len(names) for name, names in parts.items()}, "training": None}


def _choose(
    older: list[RunDirectory], newer: list[RunDirectory], most: int, seed: int
) -> list[str]:
    """Ids of a round's sequences, at most `most`, spread over tenants or users."""
    from outrider.data.sequences import load_sequences
    from outrider.data.split.rounds import choose_sequences

    everything = load_sequences([window.sequences for window in older + newer])
    owners = {
        row["sequence_id"]: row["tenant"] or row["user"]
        for row in everything.select_columns(["sequence_id", "tenant", "user"])
    }
    return choose_sequences(
        [name for window in newer for name in usable_ids(window)],
        [name for window in older for name in usable_ids(window)],
        most=most,
        older_share=OLDER_SHARE,
        seed=seed,
        owners=owners,
    )


def _windows(directories: Sequence[str]) -> list[RunDirectory]:
    return [RunDirectory(Path(directory)) for directory in directories]


def _as_logged(recipe: Recipe) -> Recipe:
    """The recipe of a window, which is measured as it was logged, without further answers."""
    capture = recipe.capture.model_copy(update={"answers_up_to": 0})
    return recipe.model_copy(update={"capture": capture})


def _window_settings(recipe: Recipe) -> Settings:
    return INGEST.settings(recipe) | CAPTURE.settings(_as_logged(recipe))


def _window_sources(recipe: Recipe) -> dict[str, str]:
    return target_and_base_digests(recipe) | traffic_digests(recipe)


ADAPT_WINDOW = Stage(
    name="adapt_window",
    version=5,
    needs=(),
    settings=_window_settings,
    sources=_window_sources,
    work=_window,
    artifact=lambda run: run.split / "parts.json",
    identity=lambda run: run.split / "parts.json",
    handles_text=True,
    starts_engines=True,
)

ADAPT_ROUND = Stage(
    name="adapt_round",
    version=3,
    needs=(),
    settings=lambda recipe: {
        **TRAIN.settings(recipe),
        "lookup": section_settings(recipe.lookup),
        "adapt": section_settings(recipe.adapt),
        "split": section_settings(recipe.split),
    },
    sources=target_and_base_digests,
    work=_round,
    artifact=lambda run: run.speculator,
    identity=TRAIN.identity,
    unfinished=TRAIN.unfinished,
    handles_text=True,
    starts_engines=True,
)
