"""Acceptance length by slice of the held-out traffic, base and custom.

    sliced(base, custom, k=3, slices=slices)["tenant"][0].ratio

Responses are sliced by the split's dimensions (tenant, route, template, ...) and by prompt length;
parts of responses by reasoning and answer, and by position (regions.py). Every figure is a ratio of
sums over a slice's responses; its interval is over the slice's sessions or users, and is null if
they are few (eval/stats/clusters.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.eval.replay.replay import ReplaySums, lengths_and_ratio
from outrider.eval.results.sections import Slice

PROMPT_LENGTHS = (256, 1024, 4096, 16384)
"""Upper ends in tokens of the slices by prompt length; longer prompts form the last slice."""

Slices = Mapping[str, Mapping[str, Sequence[str]]]
"""dimension -> name -> sequence ids"""

SliceSums = tuple[str, str, NDArray[Any], NDArray[Any]]
"""(dimension, name, rows, [tokens, base's steps, custom's steps] of each row)."""


def by_prompt_length(starts: Mapping[str, int]) -> dict[str, list[str]]:
    """Groups sequence ids by prompt length (`starts`: id -> completion_start).

    Shortest first; empty slices are left out.
    """
    names = [f"up to {limit:,} tokens" for limit in PROMPT_LENGTHS]
    names.append(f"beyond {PROMPT_LENGTHS[-1]:,}")
    slices: dict[str, list[str]] = {name: [] for name in names}
    for sequence_id, start in starts.items():
        slices[names[int(np.searchsorted(PROMPT_LENGTHS, start))]].append(sequence_id)
    return {name: ids for name, ids in slices.items() if ids}


def sliced(base: ReplaySums, custom: ReplaySums, k: int, slices: Slices) -> dict[str, list[Slice]]:
    """Computes the slices of every dimension with more than one slice."""
    table: dict[str, list[Slice]] = {}
    for dimension, name, rows_N, sums_NM in (
        *_of_responses(base, custom, k, slices),
        *_of_regions(base, custom, k),
    ):
        # A region may be so small that no step is expected to start in it.
        if sums_NM.sum(axis=0).all():
            sessions, users = ([of[row] for row in rows_N] for of in (base.sessions, base.users))
            found = Slice(name=name, **lengths_and_ratio(sums_NM, sessions, users))
            table.setdefault(dimension, []).append(found)
    return {dimension: rows for dimension, rows in table.items() if len(rows) > 1}


def _of_responses(
    base: ReplaySums, custom: ReplaySums, k: int, slices: Slices
) -> Iterator[SliceSums]:
    """Yields slices of whole responses."""
    place = {sequence_id: row for row, sequence_id in enumerate(base.sequence_ids)}
    sums_RM = np.stack([base.tokens_R, base.steps_RK[:, k - 1], custom.steps_RK[:, k - 1]], axis=1)
    for dimension, names in slices.items():
        for name, ids in names.items():
            rows_N = np.array([place[each] for each in ids if each in place], int)
            if len(rows_N):
                yield dimension, name, rows_N, sums_RM[rows_N]


def _of_regions(base: ReplaySums, custom: ReplaySums, k: int) -> Iterator[SliceSums]:
    """Yields regions within responses; each row is a response with the region."""
    for g, (dimension, name) in enumerate(base.regions):
        tokens_R = base.region_tokens_RG[:, g]
        rows_N = tokens_R.nonzero()[0]
        steps = [sums.region_steps_RGK[rows_N, g, k - 1] for sums in (base, custom)]
        yield dimension, name, rows_N, np.stack([tokens_R[rows_N], *steps], axis=1)
