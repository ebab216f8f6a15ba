"""Acceptance length by slice of the held-out traffic, base and custom.

    sliced(base, custom, k=3, slices=slices, samples=2000, seed=0)["tenant"][0].ratio

Slices of responses are those that the split named (tenant, route, template, ...) and the length of
the prompt. Slices within responses are reasoning and answer, and the position
(response_segments.py). Every figure is a ratio of sums over a slice's responses; its interval is a
paired bootstrap over the slice's sessions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.eval.replay.replay import ReplaySums
from outrider.eval.results.acceptance import Slice
from outrider.eval.results.parts import SliceEstimate
from outrider.eval.stats.bootstrap import bootstrap

LEAST_SESSIONS = 5
"""A slice with fewer sessions has no interval: so few clusters make it too narrow."""

PROMPT_LENGTHS = (256, 1024, 4096, 16384)
"""Upper ends in tokens of the slices by prompt length; longer prompts are the last slice."""

Slices = Mapping[str, Mapping[str, Sequence[str]]]
"""dimension -> name -> sequence ids"""

Statistic = Callable[[NDArray[Any]], NDArray[Any]]

SliceSums = tuple[str, str, NDArray[Any], NDArray[Any]]
"""(dimension, name, rows, [tokens, base's steps, custom's steps] of each row)."""


def by_prompt_length(starts: Mapping[str, int]) -> dict[str, list[str]]:
    """Slice -> sequence ids, by the prompt's tokens (`starts`: id -> completion_start).

    Shortest first; empty slices are left out.
    """
    names = [f"up to {limit:,} tokens" for limit in PROMPT_LENGTHS]
    names.append(f"beyond {PROMPT_LENGTHS[-1]:,}")
    slices: dict[str, list[str]] = {name: [] for name in names}
    for sequence_id, start in starts.items():
        slices[names[int(np.searchsorted(PROMPT_LENGTHS, start))]].append(sequence_id)
    return {name: ids for name, ids in slices.items() if ids}


def sliced(
    base: ReplaySums, custom: ReplaySums, k: int, slices: Slices, *, samples: int, seed: int
) -> dict[str, list[Slice]]:
    """The slices of each dimension that has more than one."""
    if base.sequence_ids != custom.sequence_ids:
        raise ValueError("base and custom were replayed on different sequences")
    table: dict[str, list[Slice]] = {}
    for dimension, name, rows_N, sums_NM in (
        *_of_responses(base, custom, k, slices),
        *_of_regions(base, custom, k),
    ):
        # A region may be so small that no step is expected to start in it.
        if sums_NM.sum(axis=0).all():
            sessions = [base.sessions[row] for row in rows_N]
            row = _slice(name, sums_NM, sessions, samples, seed)
            table.setdefault(dimension, []).append(row)
    return {dimension: rows for dimension, rows in table.items() if len(rows) > 1}


def _of_responses(
    base: ReplaySums, custom: ReplaySums, k: int, slices: Slices
) -> Iterator[SliceSums]:
    """Slices of whole responses."""
    place = {sequence_id: row for row, sequence_id in enumerate(base.sequence_ids)}
    sums_RM = np.stack([base.tokens_R, base.steps_RK[:, k - 1], custom.steps_RK[:, k - 1]], axis=1)
    for dimension, names in slices.items():
        for name, ids in names.items():
            rows_N = np.array([place[each] for each in ids if each in place], int)
            if len(rows_N):
                yield dimension, name, rows_N, sums_RM[rows_N]


def _of_regions(base: ReplaySums, custom: ReplaySums, k: int) -> Iterator[SliceSums]:
    """Regions within responses; a row is a response that has the region."""
    for g, (dimension, name) in enumerate(base.regions):
        tokens_R = base.region_tokens_RG[:, g]
        rows_N = tokens_R.nonzero()[0]
        steps = [sums.region_steps_RGK[rows_N, g, k - 1] for sums in (base, custom)]
        yield dimension, name, rows_N, np.stack([tokens_R[rows_N], *steps], axis=1)


def _slice(
    name: str, sums_NM: NDArray[Any], sessions: Sequence[str], samples: int, seed: int
) -> Slice:
    clusters = len(set(sessions))

    def estimate(statistic: Statistic) -> SliceEstimate:
        if clusters < LEAST_SESSIONS:
            value = float(statistic(sums_NM.sum(axis=0)))
            return SliceEstimate(value=value, low=None, high=None)
        found = bootstrap(sums_NM, sessions, statistic, samples=samples, seed=seed)
        return SliceEstimate(value=found.value, low=found.low, high=found.high)

    return Slice(
        name=name,
        sequences=len(sums_NM),
        sessions=clusters,
        tokens=int(sums_NM[:, 0].sum()),
        base=estimate(lambda s: s[..., 0] / s[..., 1]),
        custom=estimate(lambda s: s[..., 0] / s[..., 2]),
        ratio=estimate(lambda s: s[..., 1] / s[..., 2]),
    )
