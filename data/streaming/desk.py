"""The desk between capture and training: what is captured next, and what waits to be read.

    desk = Desk(piece_of, piece_bytes, limit_bytes, cache_bytes)
    number = desk.begin(places)                # first rank: what training reads, in order
    work = desk.work()                         # capture: the pieces to capture, in this order
    desk.room(work.revision)                   # capture: waits until fewer bytes are held
    desk.put(work.revision, job, payload, off) # capture: a piece's states, as a reference
    taken = desk.take(number, position)        # rank: waits until the states of a place are there
    desk.done(number, position)                # rank: has copied them

One desk serves the capture and all ranks. It runs in an actor (stream.py), whose threads call its
methods. It holds references to states, never states. What is captured at a time is a piece of the
capture plan (features/capture_plan.py), since bf16 results depend on the batch: so the states are
those of a stored capture, bit for bit. A job is one capture of a piece. It is made when the first
of its places comes up in the plan and serves the next place of each of its sequences. From `put`
until the last of these has been read its bytes are held, and capture waits while the next piece
would exceed `limit_bytes`.

A piece that comes up again, in a later epoch, is kept while it fits `cache_bytes`: the first ones
of the plan, which is as good as any other choice because an epoch reads every piece once. The
others are captured again. This is decided in `begin`, so the jobs do not depend on time.

A piece whose object is lost with its node is reported by a rank (`lost`) and handed out again
before everything else, without regard to the limit: the rank is waiting for it.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from outrider.common.errors import OutriderError


class Place(Protocol):
    """A place in the training plan (training.plan.Place)."""

    @property
    def position(self) -> int:
        """Its number in the order of the plan."""

    @property
    def sequence_id(self) -> str:
        """The sequence that is read there."""

    @property
    def uses(self) -> int:
        """How often."""

    @property
    def until(self) -> int:
        """The last position that is read before its last use."""


class Work(NamedTuple):
    """Pieces to capture, in order."""

    revision: int
    """Void as soon as the desk has another one."""
    jobs: list[tuple[int, int]]
    """(number of the job, piece)"""


class Taken(NamedTuple):
    """The answer to a rank: what it asked for, or why it is not there."""

    answer: Any = None
    void: bool = False
    """Something else has been announced, or the stream has ended."""
    failed: str | None = None
    """Why capture has ended."""

    @property
    def waits(self) -> bool:
        """Whether to ask again."""
        return self.answer is None and not self.void and self.failed is None


class StreamMarks(NamedTuple):
    """The state of the stream at one moment."""

    held_bytes: int
    most_held_bytes: int
    limit_bytes: int
    kept_bytes: int
    """For later epochs."""
    read: int
    """Places read since the announcement."""
    places: int
    pieces_captured: int
    capture_waited_s: float
    """Seconds that capture has waited for training."""


@dataclass
class _Job:
    """One capture of a piece and the places that it serves."""

    piece: int
    uses: int = 0
    """Reads that are still to come."""
    kept: bool = False
    """Whether it also serves later epochs."""
    payload: Any = None


class Desk:
    """References to the states between capture and training, under one lock."""

    def __init__(
        self,
        piece_of: Mapping[str, int],
        piece_bytes: Sequence[int],
        limit_bytes: int,
        cache_bytes: int = 0,
    ):
        self._piece_of, self._piece_bytes = piece_of, piece_bytes
        self._limit, self._cache_bytes = limit_bytes, cache_bytes
        self._changed = threading.Condition()
        self._number = self._revision = self._read = self._captured = 0
        self._closed = False
        self._failed: str | None = None
        self._ids: dict[int, str] = {}
        self._jobs: dict[int, _Job] = {}
        self._job_of: dict[int, int] = {}
        self._todo: dict[int, None] = {}
        self._urgent: dict[int, None] = {}
        self._last_job = 0
        self._off: dict[str, bool] = {}
        self._most_held, self._waited_s = 0, 0.0

    # -- the trainer's ranks

    def begin(self, places: Sequence[Place]) -> int:
        """Starts over with these places; returns the number that `take` needs.

        What is kept for later epochs stays, and so does what is known about sequences.

        Raises:
            OutriderError: the places need more states at a time than the limit allows.
        """
        with self._changed:
            self._number += 1
            self._revision += 1
            self._read, self._urgent = 0, {}
            self._ids = {place.position: place.sequence_id for place in places}
            self._make_jobs(places)
            self._require_room(places)
            self._changed.notify_all()
            return self._number

    def take(self, number: int, position: int, timeout: float = 5.0) -> Taken:
        """The reference to the states at a position."""

        def found() -> Any:
            return self._jobs[self._job_of[position]].payload

        with self._changed:
            return self._wait(number, found, timeout)

    def done(self, number: int, position: int) -> None:
        """A reader has its copy. After the last reader of a piece it is no longer held."""
        with self._changed:
            if number != self._number:
                return
            self._read += 1
            job = self._jobs[self._job_of[position]]
            job.uses -= 1
            if job.uses == 0:
                job.payload = None
                self._changed.notify_all()

    def lost(self, number: int, position: int, payload: Any) -> None:
        """The states at a position cannot be read: their node has died."""
        with self._changed:
            if number != self._number:
                return
            name = self._job_of[position]
            job = self._jobs[name]
            if job.payload is None or job.payload != payload:
                return  # reported before
            job.payload = None
            self._urgent[name] = None
            self._revision += 1
            self._changed.notify_all()

    def off_policy(self, number: int, positions: Iterable[int], timeout: float = 5.0) -> Taken:
        """Whether the sequence at each position is off-policy."""
        asked = list(positions)

        def found() -> list[bool] | None:
            verdicts = [self._off.get(self._ids[position]) for position in asked]
            known = [verdict for verdict in verdicts if verdict is not None]
            return known if len(known) == len(asked) else None

        with self._changed:
            return self._wait(number, found, timeout)

    # -- capture

    def work(self, known: int = 0, timeout: float = 5.0) -> Work | None:
        """The jobs that are still to be done, once they are others than in revision `known`.

        None after `timeout` seconds without news, or after `close`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._revision != known or self._closed, timeout)
            if self._revision == known or self._closed:
                return None
            names = [*self._urgent, *self._todo]
            return Work(self._revision, [(name, self._jobs[name].piece) for name in names])

    def room(self, revision: int, timeout: float = 5.0) -> bool | None:
        """Whether the next piece may come; None after `timeout` seconds without room.

        False: the desk has other work.
        """
        began = time.monotonic()
        with self._changed:
            found = self._changed.wait_for(
                lambda: self._closed or revision != self._revision or self._has_room(), timeout
            )
            self._waited_s += time.monotonic() - began
            if self._closed or revision != self._revision:
                return False
            return True if found else None

    def put(self, revision: int, name: int, payload: Any, off: Mapping[str, bool]) -> bool:
        """Takes the states of a job. `off`: which of the piece's sequences are off-policy.

        False: the desk has other work now. What was done is used if it is still wanted.
        """
        with self._changed:
            if name in self._urgent or name in self._todo:
                self._urgent.pop(name, None)
                self._todo.pop(name, None)
                self._captured += 1
                for sequence_id, is_off in off.items():
                    self._off.setdefault(sequence_id, is_off)
                self._jobs[name].payload = payload
                self._most_held = max(self._most_held, self._held())
                self._changed.notify_all()
            return revision == self._revision and not self._closed

    def fail(self, message: str) -> None:
        """Ends the stream with an error that every rank raises."""
        with self._changed:
            self._failed = self._failed or message
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the stream; nobody waits any longer."""
        with self._changed:
            self._closed = True
            for job in self._jobs.values():
                job.payload = None
            self._changed.notify_all()

    def verdicts(self) -> dict[str, bool]:
        """Whether each sequence is off-policy, as far as capture has come."""
        with self._changed:
            return dict(self._off)

    def marks(self) -> StreamMarks:
        """The state of the stream now."""
        with self._changed:
            return StreamMarks(
                self._held(),
                self._most_held,
                self._limit,
                self._kept(),
                self._read,
                len(self._ids),
                self._captured,
                round(self._waited_s, 3),
            )

    # -- under the lock

    def _make_jobs(self, places: Sequence[Place]) -> None:
        carried = {
            job.piece: job.payload
            for job in self._jobs.values()
            if job.kept and job.payload is not None
        }
        self._jobs, self._job_of, self._todo = {}, {}, {}
        newest: dict[int, int] = {}
        covered: dict[int, set[str]] = {}
        later = Counter(place.sequence_id for place in places)
        coming = {self._piece_of[place.sequence_id] for place in places}
        carried = {piece: payload for piece, payload in carried.items() if piece in coming}
        room = self._cache_bytes - sum(self._piece_bytes[piece] for piece in carried)
        for place in places:
            sequence_id = place.sequence_id
            piece = self._piece_of[sequence_id]
            name = newest.get(piece)
            again = name is not None and sequence_id in covered[name]
            if name is None or (again and not self._jobs[name].kept):
                self._last_job += 1
                name = newest[piece] = self._last_job
                covered[name] = set()
                size = self._piece_bytes[piece]
                kept = piece in carried or (later[sequence_id] > 1 and size <= room)
                payload = carried.get(piece)
                room -= size if kept and payload is None else 0
                self._jobs[name] = _Job(piece, kept=kept, payload=payload)
                if payload is None:
                    self._todo[name] = None
            later[sequence_id] -= 1
            covered[name].add(sequence_id)
            self._jobs[name].uses += place.uses
            self._job_of[place.position] = name

    def _require_room(self, places: Sequence[Place]) -> None:
        """The places must fit the limit if each is read as soon as it is there.

        Then no rank waits in vain: jobs come in the order of their first places, so at the first
        place that nobody has read, what is held are the jobs counted here.
        """
        until: dict[int, int] = {}
        for place in places:
            name = self._job_of[place.position]
            until[name] = max(until.get(name, 0), place.until)
        held = most = 0
        holding: dict[int, int] = {}
        for place in places:
            for name in [name for name, last in holding.items() if last < place.position]:
                held -= self._piece_bytes[self._jobs[name].piece]
                del holding[name]
            name = self._job_of[place.position]
            if name not in holding and not self._jobs[name].kept:
                holding[name] = until[name]
                held += self._piece_bytes[self._jobs[name].piece]
                most = max(most, held)
        if most > self._limit:
            raise OutriderError(
                f"training.features=streamed: the plan reads from pieces of {most / 1e9:.3g} GB of"
                f" states at a time, and {self._limit / 1e9:.3g} GB of cluster.in_flight_gb are for"
                " them; raise cluster.in_flight_gb (and the object stores), or lower"
                " training.shuffle_tokens or capture.batch_tokens"
            )

    def _wait(self, number: int, found: Any, timeout: float) -> Taken:
        deadline = time.monotonic() + timeout
        while True:
            if self._failed is not None:
                return Taken(failed=self._failed)
            if number != self._number or self._closed:
                return Taken(void=True)
            if (answer := found()) is not None:
                return Taken(answer)
            if not self._changed.wait(deadline - time.monotonic()):
                return Taken()

    def _has_room(self) -> bool:
        if self._urgent or not self._todo:
            return True
        held = self._held()
        following = self._jobs[next(iter(self._todo))]
        size = 0 if following.kept else self._piece_bytes[following.piece]
        return not held or held + size <= self._limit

    def _held(self) -> int:
        return self._bytes_of(kept=False)

    def _kept(self) -> int:
        return self._bytes_of(kept=True)

    def _bytes_of(self, kept: bool) -> int:
        return sum(
            self._piece_bytes[job.piece]
            for job in self._jobs.values()
            if job.kept is kept and job.payload is not None
        )
