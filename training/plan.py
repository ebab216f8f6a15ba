"""The plan of a run as one list of places: which sequence is read when, and by which process.

    plan = Plan(steps, samples, rows_per_step)
    plan.places(first_step, left_out)              # what is still to be read, in order
    plan.rows(first_step, left_out, rank, world)   # a process's rows
    plan.mine(first_step, left_out, rank, world)   # the places of these rows

A position numbers the sequences of all steps, rows and epochs in the order of the plan. It is a
function of recipe and traffic alone, so a streamed run captures in this order (feature_source.py).
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from outrider.training.packing import Row, Sample


class Place(NamedTuple):
    """One plan position."""

    position: int
    sequence_id: str
    uses: int
    """How often it is read: a short step repeats its first row in the turns without one."""
    until: int
    """The last position that is read before its last use."""


class Plan:
    """The steps of all epochs, and the position of every sequence in them."""

    def __init__(
        self, steps: Sequence[Sequence[Row]], samples: Sequence[Sample], rows_per_step: int
    ):
        self.steps, self.samples, self.rows_per_step = steps, samples, rows_per_step
        self._starts = []
        position = 0
        for rows in steps:
            self._starts.append(position)
            position += sum(map(len, rows))

    def places_of(self, step: int) -> list[Place]:
        """The places of one step."""
        return [place for row in self._rows_of(step) for place in row]

    def places(self, first_step: int, left_out: Collection[int]) -> list[Place]:
        """The places of all steps from `first_step` on that are not left out, in order."""
        steps = self._remaining(first_step, left_out)
        return [place for step in steps for place in self.places_of(step)]

    def rows(
        self, first_step: int, left_out: Collection[int], rank: int, world: int
    ) -> Iterator[Row]:
        """A process's rows of all remaining steps.

        A short step repeats its first row, which is not counted.
        """
        for step in self._remaining(first_step, left_out):
            rows = self.steps[step]
            yield from (rows[number] for number in self._turns(step, rank, world))

    def mine(
        self, first_step: int, left_out: Collection[int], rank: int, world: int
    ) -> list[Place]:
        """The places that a process reads, in order."""
        found = []
        for step in self._remaining(first_step, left_out):
            rows = self._rows_of(step)
            for number in self._turns(step, rank, world):
                found += rows[number]
        return found

    def _rows_of(self, step: int) -> list[list[Place]]:
        rows, position, found = self.steps[step], self._starts[step], []
        last = position + sum(map(len, rows)) - 1
        for number, row in enumerate(rows):
            uses = 1 if number else 1 + self.rows_per_step - len(rows)
            places = []
            for index in row:
                until = position if uses == 1 else last
                places.append(Place(position, self.samples[index].sequence_id, uses, until))
                position += 1
            found.append(places)
        return found

    def _remaining(self, first_step: int, left_out: Collection[int]) -> Iterator[int]:
        return (step for step in range(first_step, len(self.steps)) if step not in left_out)

    def _turns(self, step: int, rank: int, world: int) -> Iterator[int]:
        """Numbers of the rows that a process computes in a step."""
        for turn in range(self.rows_per_step // world):
            place = turn * world + rank
            yield place if place < len(self.steps[step]) else 0
