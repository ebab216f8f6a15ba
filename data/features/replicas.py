"""Capture replicas on a Ray cluster: pieces of a plan in, their states out in plan order.

    with Replicas(session, config, setup, plan) as replicas:
        for captured in replicas.stream(plan, limit_bytes):
            for row in captured.rows():
                ...

Each replica is an actor with an engine (replica.py), in a placement group of its own: all GPUs of
an engine are on one node. Replicas take pieces as they get free. States stay in the object store
of their node until the consumer reads them. Back-pressure: a piece is given out only while the
bytes of all pieces that are being captured, waiting, or being read are within `limit_bytes`.

A replica that ends, with its node or alone, is started again where there is room, at most
`cluster.replica_restarts` times. Its pieces, and those whose objects are lost, go to the others. A
replica whose engine does not start or whose self-check fails is left out. Each such event is one
line on stderr.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console

from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import ClusterSession
from outrider.common.errors import OutriderError
from outrider.data.features.capture_plan import Piece, state_bytes
from outrider.data.features.replica import (
    PIECES_AT_A_TIME,
    CapturedRow,
    CaptureReplica,
    PieceFacts,
    ReplicaSetup,
    load_states,
)
from outrider.serving.engine import AskedRow
from outrider.serving.vllm_hooks.version import runs_on_cpu

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle
    from ray.util.placement_group import PlacementGroup

POLL_S = 1.0
"""Longest wait for the next event, in seconds."""
STORE_TRIES = 5
"""How often a piece is captured again because an object store was full."""


@dataclass
class Watermarks:
    """What is in flight now and was at most."""

    limit_bytes: int = 0
    in_flight_bytes: int = 0
    peak_bytes: int = 0
    pieces_in_flight: int = 0
    running: int = 0
    """Replicas that capture."""
    wanted: int = 0
    """`cluster.capture_replicas`."""
    captured_again: int = 0
    """Pieces whose replica or object was lost."""
    lost_replicas: int = 0
    left_out: list[str] = field(default_factory=list)
    """Replicas that are not started again, and why."""

    def describe(self) -> str:
        """For the progress line."""
        return (
            f"{self.running}/{self.wanted} replicas, {self.in_flight_bytes / 1e6:,.0f} of"
            f" {self.limit_bytes / 1e6:,.0f} MB in flight (peak {self.peak_bytes / 1e6:,.0f})"
        )


@dataclass(frozen=True)
class CapturedPiece:
    """A captured piece in the object store."""

    piece: Piece
    reference: "ObjectRef"
    """Of a list of `StoredRow`; any process of the cluster can read it with `load_states`."""
    facts: PieceFacts

    def rows(self) -> list[CapturedRow]:
        """The states, copied into this process."""
        import ray

        return load_states(ray.get(self.reference))


@dataclass
class _Replica:
    """One of `cluster.capture_replicas`, in whichever actor it lives now."""

    name: str
    group: "PlacementGroup"
    actor: "ActorHandle | None" = None
    node_id: str = ""
    slot: int = 0
    """Which share of its node's cores it has."""
    ready: bool = False
    starts: int = 0
    checks: dict[str, Any] = field(default_factory=dict)
    pieces: set[int] = field(default_factory=set)


class Replicas:
    """The running replicas; a context manager that ends them."""

    def __init__(
        self,
        session: ClusterSession,
        config: ClusterConfig,
        setup: ReplicaSetup,
        piece_tokens: int,
    ) -> None:
        """`piece_tokens`: tokens of the largest piece that will be captured."""
        raise NotImplementedError

    def __enter__(self) -> "Replicas":
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        raise NotImplementedError

    def checks(self) -> dict[str, Any]:
        """Self-checks of the running replicas, by name; waits for the first one."""
        raise NotImplementedError

    def stream(self, plan: Iterable[Piece], limit_bytes: int) -> Iterator[CapturedPiece]:
        """Yields the pieces in the order of `plan`, which may repeat and skip indices.

        The bytes of a piece count as in flight until the next one is taken. One stream runs at a
        time.

        Raises:
            OutriderError: no replica is left, or none started within `cluster.start_timeout_s`.
        """
        raise NotImplementedError

    def again(self, captured: CapturedPiece) -> CapturedPiece:
        """Captures a piece of `stream` again whose object another process found lost."""
        raise NotImplementedError

    def answer(self, rows: Sequence[AskedRow]) -> list[list[int]]:
        """Token ids of the target's answers, from one replica; as `Engine.answer`."""
        raise NotImplementedError
