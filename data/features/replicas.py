"""Capture replicas on a Ray cluster, streaming a plan's pieces in order.

    with start_replicas(config, setup) as (_, actors):
        replicas = Replicas(actors, state_bytes(setup.spec), config.start_timeout_s)
        for piece, states in replicas.stream(plan, limit_bytes):
            ...

Each replica is an actor with an engine (replica.py). If an actor or its node fails, Ray restarts
the actor on any node with room, at most `cluster.replica_restarts` times. Meanwhile the other
replicas capture its pieces. A piece whose object is lost is captured again. A replica is left out
if its engine does not start or its checks fail. Any process in the cluster may use the actors.
"""

import contextlib
import time
import uuid
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray import ObjectRef
from ray.actor import ActorHandle
from rich.console import Console

from outrider.common.cluster.config import ClusterConfig
from outrider.common.errors import OutriderError
from outrider.data.features.capture_plan import Piece
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
    config: ClusterConfig, setup: ReplicaSetup, actor: type = CaptureReplica
) -> Iterator[tuple[str, dict[str, ActorHandle]]]:
    """Starts the actors, yields their namespace and handles, and finally kills them."""
    gpus = 0 if runs_on_cpu() else in_process(setup.engine)[0].gpus
    remote: Any = ray.remote(num_cpus=config.cores_per_replica, num_gpus=gpus)(actor)
    namespace = f"outrider-{uuid.uuid4().hex}"
    actors = {}
    for number in range(config.capture_replicas):
        name = f"replica {number}"
        actors[name] = remote.options(
            name=name,
            namespace=namespace,
            max_concurrency=PIECES_AT_A_TIME,
            max_restarts=config.replica_restarts,
            max_task_retries=-1,
        ).remote(setup)
    try:
        yield namespace, actors
    finally:
        for handle in actors.values():
            ray.kill(handle)


@dataclass(eq=False)
class _Task:
    """A piece in flight."""

    piece: Piece
    tries: int = 0
    replica: str | None = None
    """The replica that captures the piece; None before assignment and after a failed attempt."""
    reference: ObjectRef | None = None
    """The call that captures the piece."""
    states: list[SequenceStates] | None = None
    """States of the piece's rows; None until it is captured."""


class Replicas:
    """This process's view of the replicas. Use it from one thread at a time."""

    def __init__(
        self,
        actors: Mapping[str, ActorHandle],
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
        self._actors: dict[str, Any] = dict(actors)
        self._token_bytes = token_bytes
        self._timeout_s = start_timeout_s
        self._console = console or Console(stderr=True)
        self._idle_since = time.monotonic()
        # Each call returns when the engine of its replica has started.
        self._starting = {handle.start.remote(): name for name, handle in self._actors.items()}

    def answer(self, rows: Sequence[AskedRow]) -> list[list[int]]:
        """Generates answers on one replica, like `Engine.answer`; returns token ids."""
        while True:
            while not self.running:
                self._wait([], POLL_S)
            name = next(iter(self.running))
            try:
                answers: list[list[int]] = ray.get(self._actors[name].answer.remote(rows))
            except ray.exceptions.RayActorError as error:
                self._lose(name, error)
            else:
                return answers

    def stream(
        self, plan: Iterable[Piece], limit_bytes: int
    ) -> Iterator[tuple[Piece, list[SequenceStates]]]:
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
                # No retries: Ray would wait until this replica had restarted.
                capture = self._actors[name].capture.options(max_task_retries=0)
                task.replica = name
                task.reference = capture.remote(task.piece)

    def _wait(self, tasks: Iterable[_Task], timeout_s: float) -> None:
        """Waits until a replica starts or a task ends, and handles the event."""
        task_of = {task.reference: task for task in tasks if task.reference is not None}
        references = [*self._starting, *task_of]
        if references:
            ray.wait(references, timeout=timeout_s)
            # Handles all ended calls now; otherwise, a lost replica's second failed call would
            # later be blamed on the restarted one.
            ended, _ = ray.wait(references, num_returns=len(references), timeout=0)
            for reference in ended:
                if reference in task_of:
                    self._finish(task_of[reference])
                else:
                    self._started(self._starting.pop(reference), reference)
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

    def _started(self, name: str, reference: ObjectRef) -> None:
        try:
            started = ray.get(reference)
        except ray.exceptions.RayError as error:
            self.left_out.append(f"{name}: {_cause(error)}")
            self._say(f"{name} is left out: {_cause(error)}")
            return
        checks_in_words = started.pop("in_words", "")
        self.running[name] = started
        self._say(
            f"{name} on {started['host']} is ready after {started['start_s']:.0f} s."
            f" {checks_in_words}"
        )

    def _finish(self, task: _Task) -> None:
        """Takes the states of a piece, or lets another replica capture it."""
        reference = task.reference
        task.reference = None
        assert reference is not None
        try:
            # Unpickling copies the states out of the object store, which can then free them.
            task.states = ray.get(reference)
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            if isinstance(cause, OutriderError):
                raise cause from None
            if isinstance(cause, ray.exceptions.ObjectStoreFullError):
                time.sleep(1.0)  # other work is filling the store
            elif not isinstance(error, ray.exceptions.ObjectLostError):
                assert task.replica is not None
                self._lose(task.replica, error)
            task.replica = None
            task.tries += 1
            if task.tries == TRIES:
                raise OutriderError(
                    f"piece {task.piece.index} was lost {TRIES} times; if object stores are full,"
                    " lower cluster.in_flight_gb or capture.batch_tokens, or give Ray larger stores"
                ) from None

    def _lose(self, name: str, error: Exception) -> None:
        if self.running.pop(name, None) is None:
            return  # already handled for another piece
        if not isinstance(error, ray.exceptions.RayActorError):
            # The replica's engine may have died, and only a new actor starts another engine.
            ray.kill(self._actors[name], no_restart=False)
        self.lost += 1
        self._say(f"{name} ended ({_cause(error)}); its work goes to the others")
        self._starting[self._actors[name].start.remote()] = name

    def _say(self, line: str) -> None:
        self._console.print(f"capture: {line}", highlight=False, soft_wrap=True)


def _cause(error: Exception) -> str:
    """Returns why an actor or task failed, in one line."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()] or [""]
    if isinstance(cause, OutriderError):
        return lines[0]
    return f"{type(cause).__name__}: {lines[-1][:200]}"
