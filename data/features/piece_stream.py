"""Pieces from replicas in the order of a plan, with a limit on the bytes in flight.

    with PieceStream(replicas, plan, limit_bytes) as stream:
        while (captured := stream.take()) is not None:
            rows = stream.rows(captured)

In flight are the bytes of all pieces that are being captured, waiting in object stores, or with the
consumer. The next piece of the plan is given out when it fits the limit; a piece that is larger
than the limit goes alone. So a slow consumer stops the replicas, and slow replicas stop the
consumer. A thread gives pieces out, so that replicas work while the consumer does.

A piece goes to another replica when its own one ends, and is captured again when its object is
lost. States are the return values of actor tasks: they belong to this process and outlive the
actor, but not its node.
"""

import heapq
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from outrider.common.errors import OutriderError
from outrider.data.features.capture_plan import Piece
from outrider.data.features.replica import (
    PIECES_AT_A_TIME,
    CapturedRow,
    PieceFacts,
    ReplicaSetup,
    load_states,
)
from outrider.data.features.replica_slot import POLL_S, Replica, Watermarks, cause_of, ended_why

if TYPE_CHECKING:
    from ray import ObjectRef

STORE_TRIES = 10
"""How often pieces are captured again because an object store was full."""


class Pool(Protocol):
    """The replicas that a stream gives its pieces to (replicas.py)."""

    setup: ReplicaSetup
    watermarks: Watermarks

    def running(self) -> list[Replica]:
        """Replicas that capture now."""

    def wait(self, others: "Sequence[ObjectRef]") -> "list[ObjectRef]":
        """Those of `others` that are done or failed."""

    def lose(self, replica: Replica, start: int, why: str) -> None:
        """Notes that an actor ended."""


@dataclass(frozen=True, eq=False)
class CapturedPiece:
    """A captured piece in an object store."""

    place: int
    """In the stream."""
    piece: Piece
    states: "ObjectRef"
    """Of a list of `StoredRow`; any process of the cluster reads it with `load_states`."""
    facts: PieceFacts


@dataclass(frozen=True, eq=False)
class _Task:
    """A piece that a replica captures."""

    place: int
    piece: Piece
    replica: Replica
    start: int
    states: "ObjectRef"


class PieceStream:
    """One pass over a plan; a context manager."""

    def __init__(self, replicas: Pool, plan: Iterable[Piece], limit_bytes: int) -> None:
        self._replicas, self._limit = replicas, limit_bytes
        self._watermarks = replicas.watermarks
        self._watermarks.limit_bytes = limit_bytes
        self._plan = enumerate(plan)
        self._next = next(self._plan, None)
        self._again: list[tuple[int, Piece]] = []
        self._tasks: dict[ObjectRef, _Task] = {}
        self._done: dict[int, CapturedPiece] = {}
        self._bytes: dict[int, int] = {}
        """In flight, by place."""
        self._place = -1
        """Of the piece that the consumer has."""
        self._store_full = 0
        self._error: BaseException | None = None
        self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="pieces", daemon=True)

    def __enter__(self) -> "PieceStream":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()
        self._tasks.clear()
        self._done.clear()
        self._watermarks.in_flight_bytes = 0

    def take(self) -> CapturedPiece | None:
        """The next piece, once it is captured; None after the last one.

        Releases the bytes of the piece before.
        """
        with self._changed:
            self._bytes.pop(self._place, None)
            self._measure()
            self._place += 1
            return self._wait_for(self._place)

    def rows(self, captured: CapturedPiece) -> list[CapturedRow]:
        """The states of a taken piece, copied into this process; captured again where lost."""
        import ray

        while True:
            try:
                return load_states(ray.get(captured.states))
            except ray.exceptions.RayError as error:
                if not lost_object(error):
                    raise
            captured = self.again(captured)

    def again(self, captured: CapturedPiece) -> CapturedPiece:
        """Captures a taken piece again whose object was lost (`lost_object`)."""
        with self._changed:
            self._give_back(captured.place, captured.piece)
            found = self._wait_for(captured.place)
            assert found is not None
            return found

    def _wait_for(self, place: int) -> CapturedPiece | None:
        self._changed.notify_all()
        while place not in self._done:
            if self._error is not None:
                raise self._error
            if self._next is None and not self._bytes:
                return None
            self._changed.wait(1.0)
        return self._done.pop(place)

    def _run(self) -> None:
        try:
            while not self._stopped:
                with self._changed:
                    self._give()
                    waiting = list(self._tasks)
                    if not waiting and self._replicas.running():
                        self._changed.wait(POLL_S)
                done = self._replicas.wait(waiting)
                with self._changed:
                    for reference in done:
                        self._finish(self._tasks.pop(reference), reference)
                    self._changed.notify_all()
        except BaseException as error:  # raised where the pieces are taken
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _give(self) -> None:
        """Gives pieces to replicas with room, those that were lost first."""
        load = dict.fromkeys(self._replicas.running(), 0)
        for task in self._tasks.values():
            if task.replica in load and task.start == task.replica.starts:
                load[task.replica] += 1
        while load and (replica := min(load, key=lambda one: load[one])) is not None:
            if load[replica] >= PIECES_AT_A_TIME:
                return
            if self._again:
                place, piece = heapq.heappop(self._again)
            elif self._next is not None:
                place, piece = self._next
                size = piece.nbytes(self._replicas.setup.spec)
                if self._bytes and sum(self._bytes.values()) + size > self._limit:
                    return
                self._bytes[place] = size
                self._measure()
                self._next = next(self._plan, None)
            else:
                return
            assert replica.actor is not None
            capture: Any = replica.actor.capture
            facts, states = capture.options(num_returns=2).remote(piece)
            self._tasks[facts] = _Task(place, piece, replica, replica.starts, states)
            load[replica] += 1

    def _finish(self, task: _Task, reference: "ObjectRef") -> None:
        """Keeps a captured piece, or gives it back and handles the error."""
        import ray

        try:
            facts: PieceFacts = ray.get(reference)
        except ray.exceptions.RayActorError as error:
            self._replicas.lose(task.replica, task.start, ended_why(error))
        except ray.exceptions.RayError as error:
            self._handle(task, error)
        else:
            self._done[task.place] = CapturedPiece(task.place, task.piece, task.states, facts)
            self._watermarks.pieces += 1
            self._watermarks.engine_seconds += facts.seconds
            return
        self._give_back(task.place, task.piece)

    def _handle(self, task: _Task, error: Exception) -> None:
        """Decides about an error of a replica that is alive."""
        import ray

        cause = getattr(error, "cause", None)
        if isinstance(cause, OutriderError):
            raise cause
        full = ray.exceptions.ObjectStoreFullError
        if isinstance(error, full) or isinstance(cause, full):
            self._store_full += 1
            if self._store_full > STORE_TRIES:
                raise OutriderError(
                    f"the object store of node {task.replica.node_id[:8]} is full, although only"
                    f" {self._watermarks.in_flight_bytes / 1e6:,.0f} MB are in flight: other work"
                    " of the cluster uses it; lower cluster.in_flight_gb or capture.batch_tokens,"
                    " or give Ray a larger store"
                ) from error
            self._changed.wait(1.0)
        elif not lost_object(error):
            # Its engine may have ended, which only a new actor mends.
            self._replicas.lose(task.replica, task.start, cause_of(error))

    def _give_back(self, place: int, piece: Piece) -> None:
        self._watermarks.captured_again += 1
        heapq.heappush(self._again, (place, piece))

    def _measure(self) -> None:
        self._watermarks.in_flight_bytes = sum(self._bytes.values())
        self._watermarks.peak_bytes = max(
            self._watermarks.peak_bytes, self._watermarks.in_flight_bytes
        )


def lost_object(error: Exception) -> bool:
    """Whether an error of `ray.get` says that the object is gone and can be made again."""
    import ray

    kinds = (
        ray.exceptions.ObjectLostError,
        ray.exceptions.ObjectFetchTimedOutError,
        ray.exceptions.OwnerDiedError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.RayActorError,
        ray.exceptions.OutOfDiskError,
    )
    return isinstance(error, kinds) or isinstance(getattr(error, "cause", None), kinds)
