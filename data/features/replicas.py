"""Capture replicas on a cluster, streaming a plan's pieces in order.

    with start_replicas(config, setup) as (_, actors):
        replicas = Replicas(actors, state_bytes(setup.spec), config.start_timeout_s)
        for piece, states in replicas.stream(plan, limit_bytes):
            ...

Each replica is an actor with an engine (replica.py). If an actor or its node fails, the cluster
restarts it on any node with room, at most `cluster.replica_restarts` times. Meanwhile the other
replicas capture its pieces. A piece whose states are lost is captured again. A replica is left out
if its engine does not start or its checks fail. Any process in the cluster may use the actors.
"""

import contextlib
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from outrider.common.cluster.actors import (
    Actor,
    ActorLost,
    Call,
    CallFailed,
    Placement,
    ResultLost,
    StoreFull,
    start_actors,
    wait_for_any,
)
from outrider.common.cluster.config import ClusterConfig
from outrider.common.errors import OutriderError
from outrider.data.features.capture_plan import CaptureBatch
from outrider.data.features.replica import (
    PIECES_AT_A_TIME,
    CaptureReplica,
    ReplicaSetup,
)
from outrider.serving.engine import AskedRow, in_process
from outrider.serving.vllm_version import runs_on_cpu
from outrider.speculators.features import SequenceStates

POLL_S = 0.5
"""Longest wait for the next event, in seconds."""
TRIES = 10
"""Maximum number of attempts to capture a piece whose replica or object is lost."""


@contextlib.contextmanager
def start_replicas(
    config: ClusterConfig, setup: ReplicaSetup, actor: type[CaptureReplica] = CaptureReplica
) -> Iterator[tuple[str, dict[str, Actor[CaptureReplica]]]]:
    """Starts the actors, yields their namespace and the actors, and finally ends them."""
    placement = Placement(
        cpus=config.cores_per_replica,
        gpus=0 if runs_on_cpu() else in_process(setup.engine)[0].gpus,
        concurrent_calls=PIECES_AT_A_TIME,
        restarts=config.replica_restarts,
    )
    names = [f"replica {number}" for number in range(config.capture_replicas)]
    with start_actors(actor, setup, names, placement) as (namespace, actors):
        yield namespace, actors


@dataclass(eq=False)
class _Task:
    """A piece in flight."""

    piece: CaptureBatch
    tries: int = 0
    replica: str | None = None
    """The replica that captures the piece; None before assignment and after a failed attempt."""
    call: Call[list[SequenceStates]] | None = None
    """The call that captures the piece."""
    states: list[SequenceStates] | None = None
    """States of the piece's rows; None until it is captured."""


class Replicas:
    """This process's view of the replicas. Use it from one thread at a time."""

    def __init__(
        self,
        actors: Mapping[str, Actor[CaptureReplica]],
        token_bytes: int,
        start_timeout_s: float,
        console: Console | None = None,
    ) -> None:
        """`token_bytes` is the size of one token's states."""
        self.running: dict[str, dict[str, object]] = {}
        """Host and checks of the running replicas, by name."""
        self.left_out: list[str] = []
        """Replicas that failed to start, with the reason."""
        self.stopped = False
        """Set to True, from any thread, to end a stream."""
        self.lost = 0
        """How many times a replica was lost."""
        self._actors = dict(actors)
        self._token_bytes = token_bytes
        self._timeout_s = start_timeout_s
        self._console = console or Console(stderr=True)
        self._idle_since = time.monotonic()
        # Each call returns when the engine of its replica has started.
        self._starting = {
            actor.call(CaptureReplica.start): name for name, actor in self._actors.items()
        }

    def answer(self, rows: Sequence[AskedRow]) -> list[list[int]]:
        """Generates answers on one replica, like `Engine.answer`; returns token ids."""
        while True:
            while not self.running:
                self._wait([], POLL_S)
            name = next(iter(self.running))
            try:
                return self._actors[name].call(CaptureReplica.answer, rows).result()
            except ActorLost as error:
                self._lose(name, error)

    def stream(
        self, plan: Iterable[CaptureBatch], limit_bytes: int
    ) -> Iterator[tuple[CaptureBatch, list[SequenceStates]]]:
        """Yields each piece of `plan` with the states of its rows, in the plan's order.

        Pieces that are being captured, queued or consumed hold at most `limit_bytes` in total, so a
        slow consumer pauses the replicas. A piece above the limit is captured alone.

        Raises:
            OutriderError: If no replica is left, or none starts within `cluster.start_timeout_s`.
        """
        remaining = iter(plan)
        following = next(remaining, None)
        tasks: deque[_Task] = deque()
        held_bytes = 0
        while (following is not None or tasks) and not self.stopped:
            while following is not None and (
                not tasks or held_bytes + following.tokens * self._token_bytes <= limit_bytes
            ):
                tasks.append(_Task(following))
                held_bytes += following.tokens * self._token_bytes
                following = next(remaining, None)
            self._assign(tasks)
            self._wait(tasks, 0 if tasks[0].states is not None else POLL_S)
            if tasks[0].states is not None:
                first = tasks.popleft()
                yield first.piece, first.states or []
                held_bytes -= first.piece.tokens * self._token_bytes

    def _assign(self, tasks: Collection[_Task]) -> None:
        """Assigns each waiting piece, in order, to the least loaded replica."""
        for task in tasks:
            if task.replica is None and self.running:
                load = Counter(busy.replica for busy in tasks if busy.states is None)
                name = min(self.running, key=lambda replica: load[replica])
                if load[name] >= PIECES_AT_A_TIME:
                    return
                task.replica = name
                # Once: a repetition would wait until this replica had restarted.
                task.call = self._actors[name].call_once(CaptureReplica.capture, task.piece)

    def _wait(self, tasks: Iterable[_Task], timeout_s: float) -> None:
        """Waits until a replica starts or a task ends, and handles the event."""
        task_of = {task.call: task for task in tasks if task.call is not None}
        calls: list[Call[Any]] = [*self._starting, *task_of]
        if calls:
            # Handles all ended calls now; otherwise, a lost replica's second failed call would
            # later be blamed on the restarted one.
            for call in wait_for_any(calls, timeout_s):
                if call in task_of:
                    self._finish(task_of[call])
                else:
                    self._started(self._starting.pop(call), call)
        if self.running:
            self._idle_since = time.monotonic()
        elif not self._starting:
            raise OutriderError("no capture replica is left: " + "; ".join(self.left_out))
        elif time.monotonic() - self._idle_since > self._timeout_s:
            raise OutriderError(
                f"cluster.start_timeout_s = {self._timeout_s:g}: no capture replica is running."
                " Compare `ray status` with what each replica needs on one node: lower"
                " cluster.cores_per_replica or serving.engine's parallel sizes, or wait longer"
            )

    def _started(self, name: str, call: Call[dict[str, object]]) -> None:
        try:
            started = call.result()
        except (CallFailed, OutriderError) as error:
            cause = str(error).strip().partition("\n")[0]
            self.left_out.append(f"{name}: {cause}")
            self._say(f"{name} is left out: {cause}")
            return
        checks_in_words = started.pop("in_words", "")
        self.running[name] = started
        self._say(
            f"{name} on {started['host']} is ready after {started['start_s']:.0f} s."
            f" {checks_in_words}"
        )

    def _finish(self, task: _Task) -> None:
        """Takes the states of a piece, or lets another replica capture it."""
        call = task.call
        task.call = None
        assert call is not None
        try:
            # Unpickling copies the states out of the object store, which can then free them.
            task.states = call.result()
        except CallFailed as error:
            if isinstance(error, StoreFull):
                time.sleep(1.0)  # other work is filling the store
            elif not isinstance(error, ResultLost):
                assert task.replica is not None
                self._lose(task.replica, error)
            task.replica = None
            task.tries += 1
            if task.tries == TRIES:
                raise OutriderError(
                    f"piece {task.piece.index} was lost {TRIES} times; if object stores are full,"
                    " lower cluster.in_flight_gb or capture.batch_tokens, or give Ray larger stores"
                ) from None

    def _lose(self, name: str, error: CallFailed) -> None:
        if self.running.pop(name, None) is None:
            return  # already handled for another piece
        if not isinstance(error, ActorLost):
            # The replica's engine may have died, and only a new actor starts another engine.
            self._actors[name].restart()
        self.lost += 1
        self._say(f"{name} ended ({error}); its work goes to the others")
        self._starting[self._actors[name].call(CaptureReplica.start)] = name

    def _say(self, line: str) -> None:
        self._console.print(f"capture: {line}", highlight=False, soft_wrap=True)
