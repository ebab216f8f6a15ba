"""Packs sequences into rows and rows into steps.

The result depends only on the lengths, the seed and the epoch, not on earlier steps or the number
of processes, so a resumed run needs only the step number.

    samples, left_out = make_samples(store.sequences.values(), row_tokens=4096)
    for step in plan_epoch(samples, row_tokens=4096, rows_per_step=2, seed=0, epoch=0):
        for row in step: ...                             # indices into samples
    rows_of_process(steps, first_step, rows_per_step, rank, world)
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.lost_ends import LostEnds, count_lost_ends
from outrider.data.features.feature_store import SequenceLength

WINDOW = 1024
"""Sequences packed together: enough to fill rows, few enough to keep the order random."""


@dataclass(frozen=True)
class TrainingSample:
    """One training sequence. Token indices count from 0 within the sequence."""

    sequence_id: str
    length: int
    """Number of tokens after truncation to a row."""
    first_anchor: int
    """The first index i at which the engine would draft a chain."""

    def targets(self, depth: int) -> int:
        """Returns the number of tokens that draft position `depth` predicts.

        The index i runs from first_anchor to length - 3 - depth.
        """
        return max(0, self.length - 2 - depth - self.first_anchor)


Row = tuple[int, ...]
"""Indices of a row's samples."""


def make_samples(
    sequences: Iterable[SequenceLength], row_tokens: int
) -> tuple[list[TrainingSample], dict[str, str]]:
    """Returns the samples, and why each of the other sequences is omitted.

    The engine drafts only after the prefill has returned the first token of the completion, at
    index S. Its first chain uses tokens up to S and starts from the state at i = S - 1. Anchors
    therefore start at S - 1, and every token that a chain predicts, i + 2 + s, is inside the
    completion."""
    samples = []
    left_out = {}
    for sequence in sequences:
        sample = TrainingSample(
            sequence_id=sequence.id,
            length=min(sequence.length, row_tokens),
            first_anchor=max(sequence.completion_start - 1, 0),
        )
        if sample.targets(0):
            samples.append(sample)
        elif sequence.length > row_tokens:
            left_out[sequence.id] = (
                f"its prompt of {sequence.completion_start} tokens fills a row of {row_tokens}"
            )
        else:
            left_out[sequence.id] = "its completion is shorter than two tokens: nothing to draft"
    return samples, left_out


def cut_at_rows(sequences: Sequence[SequenceLength], row_tokens: int) -> LostEnds:
    """Counts the sequences and tokens lost to truncation at `row_tokens`."""
    lengths = [sequence.length for sequence in sequences]
    # A sequence with fewer than two completion tokens in its row has no draft targets.
    starts = [sequence.completion_start + 1 for sequence in sequences]
    return count_lost_ends(lengths, starts, row_tokens, f"training.row_tokens = {row_tokens:,}")[0]


def samples_of_part(
    sequences: Mapping[str, SequenceLength],
    sequence_ids: Sequence[str],
    *,
    row_tokens: int,
    part: str,
    features_dir: Path,
) -> tuple[list[TrainingSample], dict[str, str]]:
    """Runs `make_samples` on a part; raises if states or samples are missing."""
    missing = [sequence_id for sequence_id in sequence_ids if sequence_id not in sequences]
    if missing:
        raise OutriderError(
            f"{features_dir}: no states for {len(missing)} sequences of the {part} part, first"
            f" {missing[0]}; run the capture stage again"
        )
    chosen = [sequences[sequence_id] for sequence_id in sequence_ids]
    samples, left_out = make_samples(chosen, row_tokens)
    if not samples:
        reason = next(iter(left_out.values()))
        raise OutriderError(
            f"training: every sequence of the {part} part was left out, the first because {reason}"
        )
    return samples, left_out


def plan_epoch(
    samples: Sequence[TrainingSample], row_tokens: int, rows_per_step: int, seed: int, epoch: int
) -> list[list[Row]]:
    """Returns the steps of one epoch, each with at most `rows_per_step` rows."""
    generator = random.Random(f"{seed}/{epoch}")
    order = list(range(len(samples)))
    generator.shuffle(order)
    rows = []
    for start in range(0, len(order), WINDOW):
        window = order[start : start + WINDOW]
        rows += pack([(index, samples[index].length) for index in window], row_tokens)
    # Packing may put long sequences first; steps must not grow shorter towards an epoch's end.
    generator.shuffle(rows)
    return [rows[start : start + rows_per_step] for start in range(0, len(rows), rows_per_step)]


def rows_per_process(rows_per_step: int, world: int) -> int:
    """Returns the number of rows that each process computes per step."""
    return -(-rows_per_step // world)


def rows_of_process(
    steps: Sequence[Sequence[Row]], first_step: int, rows_per_step: int, rank: int, world: int
) -> list[Row]:
    """Returns the rows of process `rank` from `first_step` on, in order.

    A step with too few rows repeats its first row; the repetition is not counted.
    """
    numbers = range(rank, world * rows_per_process(rows_per_step, world), world)
    return [
        step[number if number < len(step) else 0]
        for step in steps[first_step:]
        for number in numbers
    ]


def pack(pieces: Sequence[tuple[int, int]], row_tokens: int) -> list[Row]:
    """Packs pieces (index, length) into rows by minimum bin slack.

    A row takes the first remaining piece and those that fill it best (Gupta and Ho, 1999). Both
    descending order and the given order are tried; the result with fewer rows is used. With
    descending order, no long piece is left until the end, when nothing else would fit next to it.
    The given order is better if lengths hardly differ (413 +- 30 tokens in rows of 2,048: five do
    not quite fit), because descending order uses up the short pieces to fill the rows of the long
    ones.
    """
    ways = (sorted(pieces, key=lambda piece: -piece[1]), list(pieces))
    return min((_fill_rows(way, row_tokens) for way in ways), key=len)


def _fill_rows(pieces: list[tuple[int, int]], row_tokens: int) -> list[Row]:
    rows = []
    while pieces:
        (first_index, first_length), *remaining = pieces
        room = row_tokens - first_length
        chosen = _best_filling([length for _, length in remaining], room)
        rows.append((first_index, *(remaining[number][0] for number in chosen)))
        taken = set(chosen)
        pieces = [piece for number, piece in enumerate(remaining) if number not in taken]
    return rows


def _best_filling(lengths: Sequence[int], room: int) -> list[int]:
    """Returns indices of the lengths with the largest sum up to `room`.

    Ties go to the earliest lengths. Bit n of `reachable` is set if some of the lengths so far sum
    to n; each length updates it with one shift of a long integer. The search ends as soon as `room`
    can be filled exactly, usually after about twenty lengths. Backwards, a length is part of the
    sum if the sum could not be reached without it.
    """
    within = (1 << (room + 1)) - 1
    before = []
    reachable = 1
    for length in lengths:
        # The row is full: a further length cannot improve it.
        if reachable >> room & 1:
            break
        before.append(reachable)
        reachable |= reachable << length & within
    total = reachable.bit_length() - 1
    taken = []
    for index in reversed(range(len(before))):
        if not before[index] >> total & 1:
            taken.append(index)
            total -= lengths[index]
    return taken[::-1]
