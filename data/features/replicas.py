"""Capture replicas on a Ray cluster: engines that start, end and are started again.

    with Replicas(session, config, setup, piece_tokens) as replicas:
        for piece, rows in replicas.stream(plan, limit_bytes):
            ...

Each replica is an actor with an engine (replica.py), in a placement group of its own: all GPUs of
an engine are on one node. Pieces of a plan are given to replicas as they get free, and come back in
the plan's order (piece_stream.py).

A replica that ends, with its node or alone, is started again where there is room, at most
`cluster.replica_restarts` times. A replica whose engine does not start or whose self-check fails is
left out. Each such event is one line on stderr.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import ClusterSession
from outrider.common.errors import OutriderError
from outrider.data.features.capture_plan import Piece
from outrider.data.features.piece_stream import PieceStream
from outrider.data.features.replica import (
    PIECES_AT_A_TIME,
    CapturedRow,
    CaptureReplica,
    ReplicaSetup,
)
from outrider.data.features.replica_slot import POLL_S, Replica, Watermarks, cause_of, ended_why
from outrider.serving.config import EngineConfig
from outrider.serving.engine import AskedRow
from outrider.serving.in_process import in_process
from outrider.serving.vllm_hooks.version import runs_on_cpu

if TYPE_CHECKING:
    from ray import ObjectRef


class Replicas:
    """The running replicas; a context manager that ends them."""

    def __init__(
        self,
        session: ClusterSession,
        config: ClusterConfig,
        setup: ReplicaSetup,
        piece_tokens: int,
        console: Console | None = None,
        actor: type = CaptureReplica,
    ) -> None:
        """`piece_tokens`: tokens of the largest piece that will be captured."""
        self.watermarks = Watermarks(wanted=config.capture_replicas)
        self.setup, self._actor = setup, actor
        self._config, self._piece_tokens = config, piece_tokens
        self._console = console or Console(stderr=True)
        self._bundle = bundle_of(session, config, setup.engine)
        self._shares = config.cores_per_replica is not None or self._bundle["CPU"] < min(
            node.cpus for node in session.nodes()
        )
        self._replicas: list[Replica] = []
        self._starting: dict[ObjectRef, tuple[Replica, int]] = {}
        self._idle_since = time.monotonic()

    def __enter__(self) -> "Replicas":
        for index in range(self._config.capture_replicas):
            replica = Replica(f"replica {index}")
            self._replicas.append(replica)
            self._place(replica)
        return self

    def __exit__(self, *_: object) -> None:
        for replica in self._replicas:
            self._free(replica)
        self._replicas.clear()
        self._starting.clear()

    def running(self) -> list[Replica]:
        """Replicas that capture now."""
        return [replica for replica in self._replicas if replica.ready]

    def checks(self) -> dict[str, Any]:
        """Host and self-check of the running replicas, by name; waits for the first one."""
        while not self.running():
            self.wait([])
        return {replica.name: replica.checks for replica in self.running()}

    def answer(self, rows: Sequence[AskedRow]) -> list[list[int]]:
        """Token ids of the target's answers, from one replica; as `Engine.answer`."""
        import ray

        while True:
            self.checks()
            replica = self.running()[0]
            assert replica.actor is not None
            try:
                return ray.get(replica.actor.answer.remote(rows))
            except ray.exceptions.RayActorError as error:
                self.lose(replica, replica.starts, ended_why(error))

    def stream(
        self, plan: Iterable[Piece], limit_bytes: int
    ) -> Iterator[tuple[Piece, list[CapturedRow]]]:
        """Yields each piece of `plan` and its states, in its order; indices may repeat and skip.

        The states are copies in this process. The bytes of a piece count as in flight until the
        next one is taken. One stream runs at a time.

        Raises:
            OutriderError: no replica is left, or none started within `cluster.start_timeout_s`.
        """
        with self.references(plan, limit_bytes) as stream:
            while (captured := stream.take()) is not None:
                yield captured.piece, stream.rows(captured)

    def references(self, plan: Iterable[Piece], limit_bytes: int) -> PieceStream:
        """As `stream`, for consumers in other processes: references instead of states."""
        return PieceStream(self, plan, limit_bytes)

    def wait(self, others: Sequence["ObjectRef"]) -> list["ObjectRef"]:
        """Handles starts of replicas; returns those of `others` that are done or failed.

        Returns after `POLL_S` at the latest.

        Raises:
            OutriderError: no replica can start any more, or none did in time.
        """
        import ray

        self._start_placed()
        self._require_one()
        known = [*self._starting, *others]
        if not known:
            time.sleep(POLL_S)
            return []
        done, _ = ray.wait(known, num_returns=len(known), timeout=0, fetch_local=False)
        if not done:
            done, _ = ray.wait(known, num_returns=1, timeout=POLL_S, fetch_local=False)
        for reference in set(done) & self._starting.keys():
            self._started(*self._starting.pop(reference), reference)
        return [reference for reference in done if reference in set(others)]

    def lose(self, replica: Replica, start: int, why: str) -> None:
        """Notes that actor number `start` of a replica ended, and starts another one.

        What it was capturing is the caller's to give again.
        """
        if start != replica.starts or replica not in self._replicas:
            return  # known already
        self.watermarks.lost_replicas += 1
        what = f"{replica.name} on node {replica.node_id[:8]} ended ({why})"
        if replica.starts > self._config.replica_restarts:
            self._leave_out(replica, f"{what}, {replica.starts} times (cluster.replica_restarts)")
            return
        self._say(f"{what}; its work goes to the others, and it is started again")
        self._free(replica)
        self._place(replica)

    def _place(self, replica: Replica) -> None:
        """Asks for room for a replica."""
        from ray.util.placement_group import placement_group

        replica.starts += 1
        replica.group = placement_group([self._bundle], strategy="STRICT_PACK")

    def _start_placed(self) -> None:
        """Starts the actors of replicas whose placement groups have room."""
        from ray.util import placement_group_table

        for replica in self._replicas:
            if replica.actor is not None or replica.group is None:
                continue
            found = placement_group_table(replica.group)
            if found.get("state") == "CREATED":
                (replica.node_id,) = found["bundles_to_node_id"].values()
                self._start(replica)

    def _start(self, replica: Replica) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        taken = {
            other.slot
            for other in self._replicas
            if other.actor is not None and other.node_id == replica.node_id
        }
        assert replica.group is not None
        replica.slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
        actor: Any = ray.remote(self._actor)
        replica.actor = actor.options(
            num_cpus=self._bundle["CPU"],
            num_gpus=self._bundle.get("GPU", 0),
            max_concurrency=PIECES_AT_A_TIME,
            scheduling_strategy=PlacementGroupSchedulingStrategy(replica.group),
        ).remote(self.setup)
        assert replica.actor is not None
        shares = self._shares and "GPU" not in self._bundle
        share = (replica.slot, int(self._bundle["CPU"])) if shares else None
        started = replica.actor.start.remote(share, self._piece_tokens)
        self._starting[started] = (replica, replica.starts)

    def _require_one(self) -> None:
        self.watermarks.running = len(self.running())
        if self.watermarks.running:
            self._idle_since = time.monotonic()
        elif not self._replicas:
            raise OutriderError("no capture replica is left: " + "; ".join(self.left_out()))
        elif time.monotonic() - self._idle_since > self._config.start_timeout_s:
            need = ", ".join(f"{count:g} {name}" for name, count in self._bundle.items())
            raise OutriderError(
                f"cluster.start_timeout_s = {self._config.start_timeout_s:g}: no capture replica"
                f" is running; each needs {need} of one node. Compare with `ray status`: lower"
                " cluster.cores_per_replica or serving.engine's parallel sizes, or wait longer"
            )

    def left_out(self) -> list[str]:
        """Replicas that are not started again, and why."""
        return self.watermarks.left_out

    def _started(self, replica: Replica, start: int, reference: "ObjectRef") -> None:
        import ray

        if start != replica.starts:
            return
        try:
            result = ray.get(reference)
        except ray.exceptions.RayActorError as error:
            self.lose(replica, start, ended_why(error))
        except ray.exceptions.RayError as error:
            self._leave_out(replica, cause_of(error))
        else:
            replica.ready, replica.checks = True, result
            where = f"{replica.name} on {result['host']}, node {replica.node_id[:8]}"
            self._say(f"{where}, is ready after {result['start_s']:.0f} s")
            if "in_words" in result:
                self._say(f"{replica.name}: {result['in_words']}")

    def _leave_out(self, replica: Replica, why: str) -> None:
        self._free(replica)
        self._replicas.remove(replica)
        self.watermarks.left_out.append(f"{replica.name}: {why}")
        self._say(f"{replica.name} is left out: {why}")

    def _free(self, replica: Replica) -> None:
        """Ends the actor and frees its room."""
        import ray
        from ray.util.placement_group import remove_placement_group

        if replica.actor is not None:
            ray.kill(replica.actor)
        if replica.group is not None:
            remove_placement_group(replica.group)
        replica.ready, replica.actor, replica.group = False, None, None

    def _say(self, line: str) -> None:
        self._console.print(f"capture: {line}", highlight=False, soft_wrap=True)


def bundle_of(
    session: ClusterSession, config: ClusterConfig, engine: EngineConfig
) -> dict[str, float]:
    """Resources of one replica, all of one node."""
    if not runs_on_cpu():
        gpus = in_process(engine)[0].gpus
        return {"CPU": float(config.cores_per_replica or 1), "GPU": float(gpus)}
    if config.cores_per_replica is not None:
        return {"CPU": float(config.cores_per_replica)}
    nodes = session.nodes()
    on_each = -(-config.capture_replicas // len(nodes))
    return {"CPU": max(min(node.cpus for node in nodes) // on_each, 1.0)}
