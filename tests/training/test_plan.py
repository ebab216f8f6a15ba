"""Places of a plan, and windows of whole pieces."""

import random

import pytest

from outrider.training.packing import Sample, plan_epoch, plan_windows
from outrider.training.plan import Plan

SAMPLES = [
    Sample(f"p{piece}s{n}", random.Random(f"{piece}/{n}").randrange(10, 40), 3)
    for piece in range(9)
    for n in range(7)
]
PIECES = [number // 7 for number in range(len(SAMPLES))]
TOKENS = [sum(sample.length for sample in SAMPLES[7 * piece :][:7]) for piece in range(9)]


def windows(epoch: int = 0, seed: int = 0) -> list[list[tuple[int, ...]]]:
    return plan_windows(SAMPLES, PIECES, 400, 64, 4, seed, epoch)


def test_an_epoch_reads_everything_once_and_a_window_is_read_before_the_next() -> None:
    rows = [row for step in windows() for row in step]
    assert sorted(index for row in rows for index in row) == list(range(len(SAMPLES)))
    assert all(sum(SAMPLES[index].length for index in row) <= 64 for row in rows)
    # Between two windows every piece that has been begun has been read.
    remaining, begun, tokens, sizes = [7] * 9, set(), 0, []
    for row in rows:
        for index in row:
            begun.add(PIECES[index])
            remaining[PIECES[index]] -= 1
        if not any(remaining[piece] for piece in begun):
            sizes.append(sum(TOKENS[piece] for piece in begun) - tokens)
            tokens = sum(TOKENS[piece] for piece in begun)
    assert len(sizes) > 2
    assert all(400 <= size < 400 + max(TOKENS) for size in sizes[:-1])


def test_pieces_and_sequences_come_in_another_order_in_every_epoch() -> None:
    assert windows(0) == windows(0)
    assert windows(0) != windows(1)
    assert windows(0) != windows(0, seed=1)
    order = list(dict.fromkeys(PIECES[i] for step in windows(0) for row in step for i in row))
    assert order != sorted(order)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_all_ranks_together_read_each_place_as_often_as_it_says(world: int) -> None:
    steps = plan_epoch(SAMPLES, 64, 4, 0, 0)[:-1] + windows(1)
    steps[-1] = steps[-1][:3]
    plan = Plan(steps, SAMPLES, 4)
    places = plan.places(2, {5})
    assert [place.position for place in places] == sorted({place.position for place in places})
    read: dict[int, int] = {}
    for rank in range(world):
        mine = plan.mine(2, {5}, rank, world)
        rows = list(plan.rows(2, {5}, rank, world))
        assert [SAMPLES[index].sequence_id for row in rows for index in row] == [
            place.sequence_id for place in mine
        ]
        for place in mine:
            read[place.position] = read.get(place.position, 0) + 1
    assert read == {place.position: place.uses for place in places}
    assert plan.places(0, ())[0].position == 0
    assert plan.places_of(2) == places[: len(plan.places_of(2))]
    last = places[-1].position
    assert {place.until for place in places if place.uses > 1} == {last}
