"""A replica's place on the cluster, and what all of them have in flight."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outrider.common.errors import OutriderError

if TYPE_CHECKING:
    from ray.actor import ActorHandle
    from ray.util.placement_group import PlacementGroup

POLL_S = 0.1
"""Longest wait for the next event, in seconds."""


@dataclass
class Watermarks:
    """What is in flight now and was at most."""

    limit_bytes: int = 0
    in_flight_bytes: int = 0
    peak_bytes: int = 0
    running: int = 0
    """Replicas that capture."""
    wanted: int = 0
    """`cluster.capture_replicas`."""
    pieces: int = 0
    """Pieces captured."""
    captured_again: int = 0
    """Pieces whose replica or object was lost."""
    engine_seconds: float = 0.0
    """Summed over the pieces."""
    lost_replicas: int = 0
    left_out: list[str] = field(default_factory=list)
    """Replicas that are not started again, and why."""

    def describe(self) -> str:
        """For the progress line."""
        return (
            f"{self.running}/{self.wanted} replicas, {self.in_flight_bytes / 1e6:,.0f} of"
            f" {self.limit_bytes / 1e6:,.0f} MB in flight (peak {self.peak_bytes / 1e6:,.0f})"
        )


@dataclass(eq=False)
class Replica:
    """One of `cluster.capture_replicas`, in whichever actor it lives now."""

    name: str
    group: "PlacementGroup | None" = None
    actor: "ActorHandle | None" = None
    node_id: str = ""
    slot: int = 0
    """Which share of its node's cores it has."""
    ready: bool = False
    starts: int = 0
    """Number of the actor: an older one's end is no news."""
    checks: dict[str, Any] = field(default_factory=dict)


def cause_of(error: Exception) -> str:
    """What an actor raised, in one line."""
    cause = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines() or [""]
    line = lines[0] if isinstance(cause, OutriderError) else lines[-1]
    return line if isinstance(cause, OutriderError) else f"{type(cause).__name__}: {line}"


def ended_why(error: Exception) -> str:
    """Why an actor ended, in one line: Ray's messages have many, and the cause is in the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:200]}" if lines else type(error).__name__
