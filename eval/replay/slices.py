"""Where the custom speculator gains and where it loses: acceptance length of base and custom, broken down.

By response: the slices that the split named (tenant, route, template, ...) and the length of the prompt. Within responses: reasoning
and answer, and the position (regions.py). Every figure is a ratio of sums over a slice's responses, its interval a paired bootstrap
over the slice's sessions.

    sliced(base, custom, k=3, slices=slices, samples=2000, seed=0)    # {"tenant": [{"name": "acme", "ratio": {...}, ...}]}
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from outrider.eval.replay.replay import ReplaySums
from outrider.eval.stats.bootstrap import bootstrap

LEAST_SESSIONS = 5
"""A slice with fewer sessions has figures but no interval: so few draws would say too much."""

PROMPT_LENGTHS = (256, 1024, 4096, 16384)
"""Upper ends in tokens of the slices by prompt length; what is longer is the last one."""

Slices = Mapping[str, Mapping[str, Sequence[str]]]
"""dimension -> name -> sequence ids"""


def by_prompt_length(starts: Mapping[str, int]) -> dict[str, list[str]]:
    """Sequence ids by the tokens of their prompt (`starts`: id -> completion_start), shortest first; empty slices left out."""
    names = [f"up to {limit:,} tokens" for limit in PROMPT_LENGTHS] + [
        f"beyond {PROMPT_LENGTHS[-1]:,}"
    ]
    slices: dict[str, list[str]] = {name: [] for name in names}
    for sequence_id, start in starts.items():
        slices[names[int(np.searchsorted(PROMPT_LENGTHS, start))]].append(sequence_id)
    return {name: ids for name, ids in slices.items() if ids}


def sliced(
    base: ReplaySums, custom: ReplaySums, k: int, slices: Slices, *, samples: int, seed: int
) -> dict[str, list[dict[str, Any]]]:
    """Per dimension that tells responses apart, its slices in order: `name`, `sequences`, `sessions`, `tokens`, and `base`, `custom` and
    `ratio` with `value`, `low` and `high` (None with fewer than LEAST_SESSIONS sessions)."""
    if base.sequence_ids != custom.sequence_ids:
        raise ValueError("base and custom were replayed on different sequences")
    table: dict[str, list[dict[str, Any]]] = {}
    for dimension, name, rows_N, sums_NM in (
        *_of_responses(base, custom, k, slices),
        *_of_regions(base, custom, k),
    ):
        if sums_NM.sum(
            axis=0
        ).all():  # a region may be so small that no step is expected to start in it
            sessions = [base.sessions[row] for row in rows_N]
            table.setdefault(dimension, []).append(
                {"name": name, **_figures(sums_NM, sessions, samples, seed)}
            )
    return {dimension: rows for dimension, rows in table.items() if len(rows) > 1}


def _of_responses(
    base: ReplaySums, custom: ReplaySums, k: int, slices: Slices
) -> Iterator[tuple[str, str, np.ndarray, np.ndarray]]:
    """(dimension, name, rows, [tokens, base's steps, custom's steps] of each)."""
    place = {sequence_id: row for row, sequence_id in enumerate(base.sequence_ids)}
    sums_RM = np.stack([base.tokens_R, base.steps_RK[:, k - 1], custom.steps_RK[:, k - 1]], axis=1)
    for dimension, names in slices.items():
        for name, ids in names.items():
            rows_N = np.array(
                [place[sequence_id] for sequence_id in ids if sequence_id in place], int
            )
            if len(rows_N):
                yield dimension, name, rows_N, sums_RM[rows_N]


def _of_regions(
    base: ReplaySums, custom: ReplaySums, k: int
) -> Iterator[tuple[str, str, np.ndarray, np.ndarray]]:
    """The same for the regions within responses; a row is a response that has the region."""
    for g, (dimension, name) in enumerate(base.regions):
        tokens_R = base.region_tokens_RG[:, g]
        rows_N = tokens_R.nonzero()[0]
        steps = [sums.region_steps_RGK[rows_N, g, k - 1] for sums in (base, custom)]
        yield dimension, name, rows_N, np.stack([tokens_R[rows_N], *steps], axis=1)


def _figures(
    sums_NM: np.ndarray, sessions: Sequence[str], samples: int, seed: int
) -> dict[str, Any]:
    statistics = {
        "base": lambda s: s[..., 0] / s[..., 1],
        "custom": lambda s: s[..., 0] / s[..., 2],
        "ratio": lambda s: s[..., 1] / s[..., 2],
    }
    clusters = len(set(sessions))
    row: dict[str, Any] = {
        "sequences": len(sums_NM),
        "sessions": clusters,
        "tokens": int(sums_NM[:, 0].sum()),
    }
    for name, statistic in statistics.items():
        if clusters >= LEAST_SESSIONS:
            estimate = bootstrap(sums_NM, sessions, statistic, samples=samples, seed=seed)
            row[name] = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
        else:
            row[name] = {"value": float(statistic(sums_NM.sum(axis=0))), "low": None, "high": None}
    return row
