"""The desk: order, limits, epochs, losses, against a plan that is walked place by place."""

import random
import threading

import pytest

from outrider.common.errors import OutriderError
from outrider.data.streaming.desk import Desk
from outrider.training.packing import Sample, plan_windows
from outrider.training.plan import Place, Plan

SIZE = 100
"""Bytes of a piece."""


def desk(pieces: int, each: int = 2, limit: int = 10 * SIZE, cache: int = 0) -> Desk:
    """Pieces of sequences p0s0, p0s1, ..."""
    piece_of = {f"p{piece}s{n}": piece for piece in range(pieces) for n in range(each)}
    return Desk(piece_of, [SIZE] * pieces, limit, cache)


def places(*ids: str) -> list[Place]:
    return [Place(position, sequence_id, 1, position) for position, sequence_id in enumerate(ids)]


def jobs(of: Desk, known: int = 0) -> list[int]:
    """Pieces in the order in which capture gets them."""
    work = of.work(known, timeout=0)
    assert work is not None
    return [piece for _, piece in work.jobs]


def put_all(of: Desk) -> None:
    work = of.work(0, timeout=0)
    assert work is not None
    for name, piece in work.jobs:
        assert of.put(work.revision, name, f"states of {piece}", {})


def test_a_piece_is_captured_once_an_epoch_in_the_order_of_the_plan() -> None:
    of = desk(3)
    epochs = ["p1s0", "p2s1", "p1s1", "p0s0"], ["p0s0", "p1s1", "p1s0", "p2s1"]
    of.begin(places(*epochs[0], *epochs[1]))
    assert jobs(of) == [1, 2, 0, 0, 1, 2]


def test_what_fits_the_cache_is_captured_once_in_all_epochs() -> None:
    of = desk(3, cache=2 * SIZE + 50)
    epoch = ["p1s0", "p2s1", "p1s1", "p0s0"]
    number = of.begin(places(*epoch, *epoch, *epoch))
    assert jobs(of) == [1, 2, 0, 0, 0]
    put_all(of)
    assert of.marks().kept_bytes == 2 * SIZE
    for position, sequence_id in enumerate(epoch * 3):
        assert of.take(number, position, 0).answer == f"states of {sequence_id[1]}"
        of.done(number, position)
    assert of.marks().kept_bytes == of.marks().held_bytes == 0
    assert of.marks().read == 12


def test_a_last_epoch_is_not_kept() -> None:
    of = desk(3, cache=10 * SIZE)
    of.begin(places("p0s0", "p1s0", "p2s0"))
    put_all(of)
    assert of.marks().kept_bytes == 0


def test_a_new_announcement_keeps_what_later_epochs_read() -> None:
    of = desk(2, cache=SIZE)
    of.begin(places("p0s0", "p1s0", "p0s0", "p1s0"))
    put_all(of)
    number = of.begin(places("p1s0", "p0s0", "p1s0"))
    assert jobs(of) == [1, 1]
    assert of.take(number, 1, 0).answer == "states of 0"


def test_states_are_held_until_the_last_use_of_their_piece() -> None:
    of = desk(2)
    number = of.begin([Place(0, "p0s0", 2, 2), Place(1, "p0s1", 1, 1), Place(2, "p1s0", 1, 2)])
    put_all(of)
    assert of.marks().held_bytes == 2 * SIZE
    for position in (0, 1):
        of.done(number, position)
    assert of.marks().held_bytes == 2 * SIZE
    of.done(number, 0)
    assert of.marks().held_bytes == SIZE


def test_capture_waits_for_room() -> None:
    of = desk(3, limit=2 * SIZE)
    number = of.begin(places("p0s0", "p1s0", "p2s0"))
    work = of.work(0, timeout=0)
    assert work is not None
    for name, _ in work.jobs[:2]:
        assert of.room(work.revision, 0) is True
        of.put(work.revision, name, "states", {})
    assert of.room(work.revision, 0) is None
    of.done(number, 0)
    assert of.room(work.revision, 0) is True
    assert of.marks().most_held_bytes == 2 * SIZE
    assert of.marks().capture_waited_s >= 0


def test_a_limit_below_one_window_is_refused_with_the_numbers() -> None:
    of = desk(3, limit=2 * SIZE)
    with pytest.raises(OutriderError, match=r"raise cluster\.in_flight_gb"):
        of.begin(places("p0s0", "p1s0", "p2s0", "p0s1", "p1s1"))
    of.begin(places("p0s0", "p0s1", "p1s0", "p2s0", "p1s1"))  # two at a time


def test_a_lost_piece_comes_first_and_without_regard_to_the_limit() -> None:
    of = desk(3, limit=2 * SIZE)
    number = of.begin(places("p0s0", "p1s0", "p2s0", "p1s1"))
    work = of.work(0, timeout=0)
    assert work is not None
    for name, piece in work.jobs[:2]:
        of.put(work.revision, name, f"states of {piece}", {})
    lost = of.take(number, 1, 0).answer
    of.lost(number, 1, lost)
    of.lost(number, 1, lost)  # another rank
    assert of.room(work.revision, 0) is False
    again = of.work(work.revision, timeout=0)
    assert again is not None
    assert [piece for _, piece in again.jobs] == [1, 2]
    assert of.room(again.revision, 0) is True
    assert of.take(number, 1, 0).waits
    assert of.put(again.revision, again.jobs[0][0], "new", {})
    assert of.take(number, 1, 0).answer == "new"
    of.lost(number, 1, lost)  # late
    assert of.take(number, 1, 0).answer == "new"


def test_an_older_announcement_is_void_and_its_pieces_are_not_taken() -> None:
    of = desk(2)
    first = of.begin(places("p0s0", "p1s0"))
    work = of.work(0, timeout=0)
    assert work is not None
    second = of.begin(places("p1s0"))
    assert of.take(first, 0, 0).void
    assert of.room(work.revision, 0) is False
    assert not of.put(work.revision, work.jobs[0][0], "states", {})
    assert of.take(second, 0, 0).waits
    of.done(first, 0)
    assert of.marks().read == 0


def test_verdicts_are_known_once_a_sequence_has_arrived() -> None:
    of = desk(2)
    number = of.begin(places("p0s0", "p1s0"))
    work = of.work(0, timeout=0)
    assert work is not None
    of.put(work.revision, work.jobs[0][0], "states", {"p0s0": False, "p0s1": True})
    assert of.off_policy(number, [0], 0).answer == [False]
    assert of.off_policy(number, [0, 1], 0).waits
    of.put(work.revision, work.jobs[1][0], "states", {"p1s0": True, "p1s1": False})
    assert of.off_policy(number, [0, 1], 0).answer == [False, True]


def test_a_failed_capture_and_the_end_wake_everyone() -> None:
    of = desk(1)
    number = of.begin(places("p0s0"))
    answers: list[object] = []
    waiting = threading.Thread(target=lambda: answers.append(of.take(number, 0, 60)))
    waiting.start()
    of.fail("no replica is left")
    waiting.join(10)
    assert answers[0].failed == "no replica is left"
    of = desk(1)
    number = of.begin(places("p0s0"))
    of.close()
    assert of.take(number, 0, 60).void
    assert of.work(1, 60) is None


@pytest.mark.parametrize(
    ("seed", "worlds"),
    [(0, [1]), (1, [2]), (2, [4]), (3, [4]), (4, [2]), (5, [4, 2]), (6, [2, 1, 4])],
)
def test_ranks_that_read_in_step_never_wait_in_vain(seed: int, worlds: list[int]) -> None:
    """Any plan, any world, the smallest limit that is allowed: everything is read, in bounds.

    A further world resumes two steps before the end of the one before, as from a checkpoint.
    """
    draw = random.Random(seed)
    pieces = [draw.randrange(1, 6) for _ in range(12)]
    samples = [
        Sample(f"p{piece}s{n}", draw.randrange(20, 60), 3)
        for piece, count in enumerate(pieces)
        for n in range(count)
    ]
    numbers = [int(sample.sequence_id[1:].split("s")[0]) for sample in samples]
    steps = []
    for epoch in range(2):
        steps += plan_windows(samples, numbers, 200, 100, 4, seed, epoch)
    plan = Plan(steps, samples, 4)
    piece_of = {sample.sequence_id: number for sample, number in zip(samples, numbers, strict=True)}
    needed = smallest_limit(piece_of, plan.places(0, ()))
    of = Desk(piece_of, [SIZE] * 12, needed)

    def capture() -> None:
        known = 0
        while work := of.work(known, 60):
            known = work.revision
            for name, piece in work.jobs:
                if not of.room(known, 20) or not of.put(known, name, piece, {}):
                    break

    def rank(own: int, world: int, number: int, first: int, last: int) -> None:
        for step in range(first, last):
            barrier.wait(20)
            for place in plan.mine(step, range(step + 1, len(plan.steps)), own, world):
                assert of.take(number, place.position, 20).answer == piece_of[place.sequence_id]
                of.done(number, place.position)
                read.append(place.position)

    def joined(threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()

    capturing = threading.Thread(target=capture, daemon=True)
    capturing.start()
    ends = [len(steps) * (n + 1) // len(worlds) for n in range(len(worlds))]
    first = 0
    for world, last in zip(worlds, ends, strict=True):
        read: list[int] = []
        number, barrier = of.begin(plan.places(first, ())), threading.Barrier(world)
        ranks = [
            threading.Thread(target=rank, args=(own, world, number, first, last), daemon=True)
            for own in range(world)
        ]
        for thread in ranks:
            thread.start()
        joined(ranks)
        uses = {place.position: place.uses for place in plan.places(first, range(last, len(steps)))}
        assert sorted(read) == sorted(p for p, count in uses.items() for _ in range(count))
        first = last - 2
    assert of.marks().most_held_bytes <= needed
    assert of.marks().held_bytes == 0
    of.close()
    joined([capturing])


def smallest_limit(piece_of: dict[str, int], places: list[Place]) -> int:
    """The first limit that `begin` accepts."""
    for count in range(1, 13):
        try:
            Desk(piece_of, [SIZE] * 12, count * SIZE).begin(places)
        except OutriderError:
            continue
        return count * SIZE
    raise AssertionError("no limit is enough")
