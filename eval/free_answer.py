"""The free answer: what lookup would deliver on a log, from its text alone.

    table = load_sequences(run / "traffic/sequences")
    answer = free_answer(table, SplitConfig(), EngineConfig(), scratch)
    answer["lookups"]["ngram"]["new"]["by_k"][3]      # tokens per step at K = 4

The log is split as for training. Responses of the held-out part are replayed by evaluation's own
function (`lookup_sums`), with the training part as the history of suffix lookup and settings chosen
on the validation part. Prompts near-identical to earlier ones, which evaluation leaves out, are
replayed too and reported apart. Nothing is served: it needs token ids, but no weights and no GPU.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset

from outrider.common.errors import OutriderError
from outrider.data.config import SplitConfig
from outrider.data.split.near_duplicates import SimilarPrompts
from outrider.data.split.split import divide_rows
from outrider.eval.replay.lookups import LoggedText, best_settings, has_step, lookup_sums
from outrider.eval.replay.sums import ReplaySums, length_at
from outrider.serving.config import EngineConfig
from outrider.serving.runner import runner_of
from outrider.speculators.config import LookupConfig
from outrider.speculators.kinds import lookup_names, weightless_kind
from outrider.speculators.kinds.protocol import Lookup, Runner, WeightlessKind
from outrider.speculators.lookup_history import EarlierResponse

HISTORY_TOKENS = 1_000_000
REPLAYED_TOKENS = 100_000
"""Maximum numbers of response tokens in the history and in the replayed part: the newest ones.

On one core, suffix lookup takes 11 s to replay such a part; choosing the settings of both lookups
takes 39 s, so 1,000 responses of 500 tokens take 56 s."""

SHOWN = 8
"""Largest number of drafts per step that is reported."""

LITTLE = 1.3
"""Tokens per step below which lookup is not worth serving. On SmolLM2's profiles, n-gram lookup has
1.26 and is no faster than no speculation (benchmarks/results/smollm2.md)."""

MUCH = 2.2
"""Tokens per step from which lookup was faster than every trained head. On SmolLM2, where suffix
lookup has 2.31 (profiles) and 3.15 (JSON records), heads have 0.90 and 0.67 of its tokens/s. Where
it has 1.77 to 2.07 (chat, arithmetic, résumés), heads trained on 900 responses have 0.92 to 1.03 of
its tokens per step at K = 5 (benchmarks/results/smollm2.md)."""

COLUMNS = ["sequence_id", "user", "tenant", "token_ids", "completion_start", "prompt_text"]

Texts = list[LoggedText]


class Parts(NamedTuple):
    """A log's responses by time; none is in two parts."""

    history: Texts
    validation: Texts
    new: Texts
    """Held-out responses to prompts unlike all earlier ones."""
    repeated: Texts
    """Held-out responses to prompts near-identical to earlier ones."""
    available: Mapping[str, int]
    """Number of responses of the training and held-out parts before sampling."""


def free_answer(
    table: Dataset, split: SplitConfig, engine: EngineConfig, scratch: Path
) -> dict[str, Any]:
    """Tokens per step of every lookup on the later responses; JSON values without customer text.

    Lookups draft as in the model runner that `engine` would have on this machine, from a history
    that all tenants share. A lookup that is not installed is in `missing`, with the reason. Raises
    an `OutriderError` if the log has too few sessions for a split, or no held-out response of two
    tokens.
    """
    parts = divided_texts(table, split)
    later = [*parts.new, *parts.repeated]
    if not later:
        raise OutriderError("no response in the held-out part has two or more tokens")
    answer: dict[str, Any] = {
        "order": _order(table["time"]),
        "history": {"responses": len(parts.history), "of": parts.available["train"]},
        "replayed": {"responses": len(later), "of": parts.available["heldout"]},
        "tenants": len(set(table["tenant"]) - {""}),
        "repeated_share": len(parts.repeated) / len(later),
        "lookups": {},
        "missing": {},
    }
    for name in lookup_names():
        kind = weightless_kind(name)
        assert kind is not None
        try:
            kind.require_installed()
        except OutriderError as error:
            answer["missing"][name] = str(error)
            continue
        runner = runner_of(kind, engine)
        answer["lookups"][name] = _measured(kind, runner, parts, scratch / name)
    return answer


def divided_texts(table: Dataset, split: SplitConfig) -> Parts:
    """Splits the table as for training, but keeps repeated prompts of the held-out part."""
    divided = divide_rows(table, split, drop_seen=False)
    columns = table.select_columns(COLUMNS)
    history = _newest(columns, divided.parts["train"], HISTORY_TOKENS)
    validation = _newest(columns, divided.parts["validation"], REPLAYED_TOKENS)
    heldout = _newest(columns, divided.parts["heldout"], REPLAYED_TOKENS)
    prompts = {row: columns[row]["prompt_text"] for row in (*history, *validation, *heldout)}
    similarity = split.near_duplicate_similarity
    everything = [*prompts.values()]

    def unlike(rows: Sequence[int], earlier: Sequence[int]) -> list[int]:
        seen = SimilarPrompts([prompts[row] for row in earlier], similarity, everything)
        return [row for row in rows if not seen.holds(prompts[row])]

    # In the same order as `divide_rows`: a validation prompt counts only if it is new itself.
    validated = unlike(validation, history)
    new = unlike(heldout, [*history, *validated])

    def texts(rows: Sequence[int]) -> Texts:
        logged = ({**columns[row], "session": divided.sessions[row]} for row in rows)
        return [LoggedText.of(row) for row in logged]

    def replayed(rows: Sequence[int]) -> Texts:
        return [text for text in texts(rows) if has_step(text)]

    new_rows = set(new)
    return Parts(
        history=texts(history),
        validation=replayed(validated),
        new=replayed(new),
        repeated=replayed([row for row in heldout if row not in new_rows]),
        available={part: len(divided.parts[part]) for part in ("train", "heldout")},
    )


def _newest(columns: Dataset, rows: Sequence[int], most_tokens: int) -> list[int]:
    """The newest of `rows` with at most that many response tokens, in order; at least one."""
    newest: list[int] = []
    tokens = 0
    for row in reversed(rows):
        sequence = columns[row]
        tokens += len(sequence["token_ids"]) - sequence["completion_start"]
        if newest and tokens > most_tokens:
            break
        newest.append(row)
    return newest[::-1]


def _order(times: Sequence[float | None]) -> str:
    """What the split is by, in words."""
    logged = sum(time is not None for time in times)
    if logged == len(times):
        return "time"
    return "time and the log's order" if logged else "the log's order: it has no times"


def _measured(kind: WeightlessKind, runner: Runner, parts: Parts, folder: Path) -> dict[str, Any]:
    """The settings of one lookup, and its tokens per step by kind of prompt."""
    folder.mkdir(parents=True)
    responses = (
        EarlierResponse(text.token_ids_T[text.completion_start :], tenant=text.tenant)
        for text in parts.history
    )
    # HISTORY_TOKENS need a few MB of the default memory.
    default = LookupConfig()
    directory = kind.prepare(responses, folder, max_gb=default.max_gb, shared=default.shared)
    history = kind.history(directory)
    lookup = Lookup(kind.name, history=history, runner=runner)
    lookup = dataclasses.replace(lookup, settings=best_settings(lookup, parts.validation))
    groups = {"new": parts.new, "repeated": parts.repeated, "all": [*parts.new, *parts.repeated]}
    sums = lookup_sums(lookup, groups["all"])
    described: dict[str, Any] = {
        "in_words": kind.in_words,
        "runner": runner,
        "settings": dict(lookup.settings),
        "searches_history": history is not None,
    }
    for name, texts in groups.items():
        if texts:
            described[name] = _described(sums.select([text.sequence_id for text in texts]))
    return described


def _described(sums: ReplaySums) -> dict[str, Any]:
    """Tokens per step by K, and the K with the most, with its interval."""
    by_k = [round(length, 4) for length in sums.acceptance_length()[:SHOWN]]
    best_k = 1 + by_k.index(max(by_k))
    estimate = length_at(sums, best_k)
    return {
        "responses": len(sums.sequence_ids),
        "by_k": by_k,
        "best": {
            "k": best_k,
            "tokens_per_step": estimate.value,
            "ci95": None if estimate.low is None else [estimate.low, estimate.high],
            "over": estimate.over,
        },
    }


def lookup_advice(answer: Mapping[str, Any]) -> str:
    """What to do about lookup, in one sentence."""
    best = {name: lookup["all"]["best"] for name, lookup in answer["lookups"].items()}
    name = max(best, key=lambda lookup: best[lookup]["tokens_per_step"])
    words = answer["lookups"][name]["in_words"]
    longest = best[name]
    ends = longest["ci95"]
    interval = f" [{ends[0]:.2f}, {ends[1]:.2f}]" if ends else ""
    delivered = f"{longest['tokens_per_step']:.2f}{interval} tokens per step at K = {longest['k']}"
    if longest["tokens_per_step"] < LITTLE:
        return (
            f"lookup finds little to copy here ({words}: {delivered}): train a head, and measure it"
            " against lookup by speculator.kind=auto"
        )
    # By default, a request searches only what its own tenant was answered.
    sharing = answer["tenants"] > 1 and answer["lookups"][name]["searches_history"]
    if_shared = ", if all tenants share a history" if sharing else ""
    keys = f"speculator.kind={name}" + (" lookup.shared=true" if sharing else "")
    free = f"{words} delivers {delivered} without training{if_shared}: {keys}"
    if longest["tokens_per_step"] < MUCH:
        return (
            f"{free} measures it, and ships it if it is faster. On three workloads where lookup"
            " delivered about as much, a trained head delivered no more; speculator.kind=auto"
            " trains one, measures both and ships the faster"
        )
    return (
        f"{free} measures it, and ships it if it is faster. On two workloads where lookup delivered"
        " this much, trained heads were slower: train none before it is measured"
    )
