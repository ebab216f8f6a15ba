"""Feeds the desk from capture replicas, in a thread of the process that started both.

    with Feed(desk, replicas, piece, limit_bytes, judge, say): train(...)

The replicas capture the pieces in the order of the desk's jobs. Their own limit of bytes in flight
covers pieces that are being captured or have not been handed over; the desk's limit the others.
When the desk has other work (a rollback, a lost piece, a trainer that was started again) the stream
of pieces is closed and another one begins.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol

from outrider.common.errors import OutriderError
from outrider.data.features.capture_plan import Piece
from outrider.data.streaming.desk import StreamMarks, Work

FEWEST_JUDGED = 64
"""Sequences that must have arrived before off-policy traffic stops a run."""
MOST_OFF = 0.5
"""Largest share of off-policy sequences, as in on_policy/check.py."""
LEAVE_S = 10.0
"""How long the end waits for the piece that is being captured, in seconds."""


class Captured(Protocol):
    """A captured piece (features/piece_stream.py)."""

    @property
    def piece(self) -> Piece:
        """Its rows."""

    @property
    def states(self) -> Any:
        """A reference to its states."""


class TakesPieces(Protocol):
    """One pass over a plan."""

    def take(self) -> Any:
        """The next piece, `Captured`; None after the last one."""


class CapturesPieces(Protocol):
    """Capture replicas (features/replicas.py), or anything that captures pieces."""

    def references(
        self, plan: Iterable[Piece], limit_bytes: int
    ) -> AbstractContextManager[TakesPieces]:
        """The pieces in the order of the plan, with a limit on the bytes that are in flight."""


class CapturesDesk(Protocol):
    """The methods of the desk that capture calls."""

    def work(self, known: int) -> Work | None: ...

    def room(self, revision: int) -> bool | None: ...

    def put(self, revision: int, name: int, payload: Any, off: Mapping[str, bool]) -> bool: ...

    def fail(self, message: str) -> None: ...

    def close(self) -> None: ...

    def marks(self) -> StreamMarks: ...


class Feed:
    """The thread; a context manager that ends the stream of states."""

    def __init__(
        self,
        desk: CapturesDesk,
        replicas: CapturesPieces,
        piece: Callable[[int], Piece],
        limit_bytes: int,
        judge: Callable[[Any], Mapping[str, bool]],
    ):
        """`piece` makes a piece by its number; `judge` finds off-policy sequences (`Captured`)."""
        self._desk, self._replicas, self._piece = desk, replicas, piece
        self._limit, self._judge = limit_bytes, judge
        self._verdicts: dict[str, bool] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="capture-feed", daemon=True)

    def __enter__(self) -> "Feed":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._desk.close()
        # Without end where an engine still starts; the replicas end after this, and with them it.
        self._thread.join(timeout=LEAVE_S)

    @property
    def verdicts(self) -> dict[str, bool]:
        """Whether each sequence that has arrived is off-policy."""
        return dict(self._verdicts)

    def _run(self) -> None:
        try:
            revision = 0
            while not self._ended.is_set():
                work = self._desk.work(revision)
                if work is not None:
                    revision = work.revision
                    self._follow(work)
        except OutriderError as error:
            self._desk.fail(str(error))
        except Exception as error:
            if not self._ended.is_set():
                self._desk.fail(f"capture ended with {type(error).__name__}: {error}")
                raise

    def _follow(self, work: Work) -> None:
        """Captures the jobs until the desk has others."""
        pieces = (self._piece(number) for _, number in work.jobs)
        with self._replicas.references(pieces, self._limit) as captured:
            for name, _ in work.jobs:
                if not self._room(work.revision):
                    return
                following = captured.take()
                off = self._judge(following)
                self._verdicts |= off
                self._require_on_policy()
                if not self._desk.put(work.revision, name, [following.states], off):
                    return

    def _room(self, revision: int) -> bool:
        while not self._ended.is_set():
            room = self._desk.room(revision)
            if room is not None:
                return room
        return False

    def _require_on_policy(self) -> None:
        off, judged = sum(self._verdicts.values()), len(self._verdicts)
        if judged >= FEWEST_JUDGED and off > MOST_OFF * judged:
            raise OutriderError(
                f"{off:,} of the first {judged:,} sequences of the training part are off-policy"
                " (capture.min_on_policy); docs/traffic.md describes the causes. To train on them"
                " anyway, lower capture.min_on_policy (null: keep everything)"
            )
