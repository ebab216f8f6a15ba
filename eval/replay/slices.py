"""Acceptance lengths of base and custom by slice of the held-out traffic.

    slice_results(base, custom, k=3, slices=slices)["tenant"][0].ratio

Responses are sliced by the split's dimensions (tenant, route, template, ...) and by prompt length.
Regions within responses are also slices: reasoning or answer, and ranges of positions (regions.py).
Every figure is a ratio of sums over a slice's responses, with an interval over the slice's sessions
or users, which is null if there are too few of them (eval/stats/clusters.py).
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from outrider.eval.replay.sums import ReplaySums, compare_replays
from outrider.eval.results.sections import Slice

PROMPT_LENGTHS = (256, 1024, 4096, 16384)
"""Upper bounds of the prompt-length slices, in tokens; longer prompts form the last slice."""

Slices = Mapping[str, Mapping[str, Sequence[str]]]
"""dimension -> name -> sequence ids"""


def by_prompt_length(starts: Mapping[str, int]) -> dict[str, list[str]]:
    """Groups sequence ids by prompt length (completion_start), shortest first."""
    names = [f"up to {limit:,} tokens" for limit in PROMPT_LENGTHS]
    names.append(f"beyond {PROMPT_LENGTHS[-1]:,}")
    slices: dict[str, list[str]] = {name: [] for name in names}
    for sequence_id, start in starts.items():
        # searchsorted counts the limits below a length, so a limit belongs to its own slice.
        slices[names[int(np.searchsorted(PROMPT_LENGTHS, start))]].append(sequence_id)
    return {name: ids for name, ids in slices.items() if ids}


def slice_results(
    base: ReplaySums, custom: ReplaySums, k: int, slices: Slices
) -> dict[str, list[Slice]]:
    """Computes the slices of every dimension with more than one slice."""
    table: dict[str, list[Slice]] = {}
    for dimension, name, own_base, own_custom in _parts(base, custom, slices):
        # A region may be so small that no step is expected to start in it.
        if own_base.steps_RK[:, k - 1].any() and own_custom.steps_RK[:, k - 1].any():
            row = Slice(name=name, **compare_replays(own_base, own_custom, k))
            table.setdefault(dimension, []).append(row)
    return {dimension: rows for dimension, rows in table.items() if len(rows) > 1}


def _parts(
    base: ReplaySums, custom: ReplaySums, slices: Slices
) -> Iterator[tuple[str, str, ReplaySums, ReplaySums]]:
    """Yields (dimension, name, base's sums, custom's sums): slices, then regions."""
    for dimension, names in slices.items():
        for name, ids in names.items():
            yield dimension, name, base.select(ids), custom.select(ids)
    for g, (dimension, name) in enumerate(base.regions):
        yield dimension, name, base.region(g), custom.region(g)
