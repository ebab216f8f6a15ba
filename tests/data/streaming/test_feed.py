"""The thread that feeds the desk: order, new work, failures, off-policy traffic."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from outrider.common.errors import OutriderError
from outrider.data.features.capture_plan import Piece
from outrider.data.streaming.desk import Desk, Taken
from outrider.data.streaming.feed import Feed
from outrider.serving.engine import LoggedRow
from outrider.training.plan import Place

PIECES = [
    Piece(n, tuple(LoggedRow(f"p{n}s{k}", [1] * 5, 2, 1.0, 1.0) for k in range(40)))
    for n in range(4)
]
PIECE_OF = {name: piece.index for piece in PIECES for name in piece.row_ids}


class Replicas:
    """Captures at once; the streams that were closed early are counted."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at, self.captured, self.closed = fails_at, [], 0

    @contextmanager
    def references(self, plan: Iterable[Piece], limit_bytes: int) -> Iterator[SimpleNamespace]:
        pieces = list(plan)
        try:
            yield SimpleNamespace(take=lambda: self.taken(pieces.pop(0)))
        finally:
            self.closed += bool(pieces)

    def taken(self, piece: Piece) -> SimpleNamespace:
        if piece.index == self.fails_at:
            raise OutriderError("no replica is left")
        self.captured.append(piece.index)
        return SimpleNamespace(piece=piece, states=f"{piece.index}/{len(self.captured)}")


def on_policy(captured: SimpleNamespace) -> Mapping[str, bool]:
    return dict.fromkeys(captured.piece.row_ids, False)


def taken(desk: Desk, number: int, position: int) -> Taken:
    return desk.take(number, position, timeout=20)


def test_pieces_arrive_in_the_order_of_the_plan_and_new_work_ends_the_old_one() -> None:
    desk, replicas = Desk(PIECE_OF, [100] * 4, 100), Replicas()
    with Feed(desk, replicas, PIECES.__getitem__, 100, on_policy) as feed:
        order = ["p2s0", "p0s0", "p3s1", "p1s0"]
        number = desk.begin([Place(n, name, 1, n) for n, name in enumerate(order)])
        assert taken(desk, number, 0).answer == ["2/1"]
        desk.done(number, 0)
        assert taken(desk, number, 1).answer == ["0/2"]
        number = desk.begin([Place(2, "p3s1", 1, 2), Place(3, "p1s0", 1, 3)])
        assert taken(desk, number, 2).answer == ["3/3"]
        desk.done(number, 2)
        assert taken(desk, number, 3).answer == ["1/4"]
    assert replicas.captured == [2, 0, 3, 1]
    assert replicas.closed == 1
    assert set(feed.verdicts) == set(PIECE_OF)


def test_a_lost_piece_is_captured_again_before_the_next_one() -> None:
    desk, replicas = Desk(PIECE_OF, [100] * 4, 200), Replicas()
    with Feed(desk, replicas, PIECES.__getitem__, 100, on_policy):
        order = ["p2s0", "p0s0", "p3s1"]
        number = desk.begin([Place(n, name, 1, n) for n, name in enumerate(order)])
        lost = taken(desk, number, 1).answer
        desk.lost(number, 1, lost)
        assert taken(desk, number, 1).answer == ["0/3"]
        desk.done(number, 0)
        assert taken(desk, number, 2).answer == ["3/4"]
    assert replicas.captured == [2, 0, 0, 3]


def test_what_ends_capture_is_what_every_rank_raises() -> None:
    desk = Desk(PIECE_OF, [100] * 4, 400)
    with Feed(desk, Replicas(fails_at=1), PIECES.__getitem__, 100, on_policy):
        number = desk.begin([Place(0, "p0s0", 1, 0), Place(1, "p1s0", 1, 1)])
        assert taken(desk, number, 1).failed == "no replica is left"


@pytest.mark.parametrize(("off", "stops"), [(0.45, False), (0.55, True)])
def test_mostly_off_policy_traffic_stops_the_run(off: float, stops: bool) -> None:
    def judge(captured: SimpleNamespace) -> Mapping[str, bool]:
        ids = captured.piece.row_ids
        return {name: number < off * len(ids) for number, name in enumerate(ids)}

    desk = Desk(PIECE_OF, [100] * 4, 400)
    with Feed(desk, Replicas(), PIECES.__getitem__, 100, judge):
        order = ["p0s0", "p1s0", "p2s0"]
        number = desk.begin([Place(n, name, 1, n) for n, name in enumerate(order)])
        last = taken(desk, number, 2)
    assert (last.failed is not None) == stops
    if stops:
        assert "44 of the first 80 sequences" in str(last.failed)


def test_the_end_does_not_wait_for_a_replica_that_never_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Silent(Replicas):
        def taken(self, piece: Piece) -> SimpleNamespace:
            time.sleep(3600)
            return super().taken(piece)

    monkeypatch.setattr("outrider.data.streaming.feed.LEAVE_S", 0.05)
    desk = Desk(PIECE_OF, [100] * 4, 400)
    with Feed(desk, Silent(), PIECES.__getitem__, 100, on_policy):
        number = desk.begin([Place(0, "p0s0", 1, 0)])
        assert desk.take(number, 0, timeout=0.05).waits
    assert desk.take(number, 0, timeout=0.05).void
