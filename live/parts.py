"""What the controller works with: replicas, the router, the judge and the clock, as protocols.

The real ones are serving/admin/replica.py, live/router.py and live/judge/decision.py.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from outrider.live.access_log import RoutedRequest
from outrider.live.endpoint_file import CanaryPolicy
from outrider.live.judge import Decision
from outrider.live.observations import Observation
from outrider.live.releases import Release
from outrider.serving.admin.replica import Cache, LiveRequest, ReplicaStatus, SwapResult, Watch


class ReplicaClient(Protocol):
    """A server that can exchange its speculator."""

    def status(self) -> ReplicaStatus:
        """Which speculator it drafts with."""

    def swap(
        self,
        directory: Path,
        version: str,
        digest: str,
        cache: Cache,
        watch: Watch | None = None,
        expected: str | None = None,
        timeout_s: float = 600,
    ) -> SwapResult:
        """Exchanges it where it drafts with `expected`; only `SwapRefused` leaves the old one."""

    def requests(self, after: int) -> tuple[list[LiveRequest], int]:
        """Finished requests from an index on, and the next index."""


class RouterClient(Protocol):
    """What shares out the requests."""

    def set_canary_share(self, percent: float) -> None:
        """From the next request on."""

    def share(self) -> float:
        """Percent that the canary gets now."""

    def active(self, cluster: Literal["stable", "canary"]) -> int:
        """Requests that the replicas of a role are answering."""

    def requests(self, offset: int) -> tuple[list[RoutedRequest], int]:
        """Requests that ended since an offset of the log, and the next offset."""


class Clock(Protocol):
    """The time; tests have one that does not wait."""

    def time(self) -> float:
        """Unix time in seconds."""

    def sleep(self, seconds: float) -> None:
        """Waits."""


Decide = Callable[[Sequence[Observation], Sequence[Observation], CanaryPolicy], Decision]
"""Stable and canary observations since the canary's first share, to a decision."""

WatchOf = Callable[[Release, CanaryPolicy], Watch | None]
"""What a release's evidence promises, for the replica to check after the exchange."""


class SystemClock:
    """The machine's clock."""

    def time(self) -> float:
        """Unix time in seconds."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Waits."""
        time.sleep(seconds)


class Events:
    """The methods of `LiveMetrics` (live/metrics.py), doing nothing."""

    def state(self, name: str) -> None:
        """The controller is in this state."""

    def serving(self, replica: str, version: str | None) -> None:
        """A replica serves this release."""

    def share(self, percent: float) -> None:
        """The canary gets this share."""

    def swapped(self, replica: str, read_s: float, apply_s: float, stall_s: float) -> None:
        """A replica was exchanged."""

    def swap_refused(self, replica: str) -> None:
        """A replica refused a bundle."""

    def swap_reverted(self, replica: str) -> None:
        """A replica took an exchange back."""

    def deployment_started(self) -> None:
        """A deployment begins."""

    def deployment_finished(self, outcome: Literal["promoted", "rolled_back", "failed"]) -> None:
        """A deployment ended."""

    def observed(self, group: Literal["stable", "canary"], requests: Iterable[Observation]) -> None:
        """Finished requests, each once."""

    def decided(
        self,
        action: Literal["wait", "promote", "roll_back"],
        ratios: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        """A decision and its bounds."""

    def recovered(self) -> None:
        """A start found a deployment that had not ended."""

    def error(self, error: BaseException) -> None:
        """An error."""
