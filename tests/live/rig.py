"""A controller on a small endpoint, with a clock that does not wait.

controller = Rig(small).controller()
controller.deploy(small.bundles["better"])
"""

from collections.abc import Callable, Sequence
from typing import Any

from outrider.common.anytime import Bounds
from outrider.live.controller import Controller
from outrider.live.deploy import journal_path, replicas_of
from outrider.live.endpoint_file import CanaryPolicy
from outrider.live.journal import Journal
from outrider.live.judge import Decision
from outrider.live.metrics import LiveMetrics
from outrider.live.observations import Observation
from outrider.live.parts import Parts
from outrider.live.releases import Release, Releases
from outrider.live.router import Router
from outrider.serving.admin.replica import Watch
from tests.live.small_endpoint import SmallEndpoint


class TestClock:
    """Sleeping costs nothing and brings `requests` requests."""

    __test__ = False

    def __init__(self, small: SmallEndpoint, requests: int = 8, start: float = 1000.0) -> None:
        self.now, self.small, self.requests = start, small, requests
        self.then: Callable[[float], None] = lambda now: None
        """Called after every sleep."""

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1.0)
        if self.requests:
            self.small.test("/test/traffic", at=self.now, requests=self.requests)
        self.then(self.now)


def by_acceptance(
    stable: Sequence[Observation], canary: Sequence[Observation], policy: CanaryPolicy
) -> Decision:
    """The judge for requests without noise: the mean of a few decides."""

    def mean(group: Sequence[Observation]) -> float:
        return sum(each.completion_tokens for each in group) / sum(each.drafts for each in group)

    action: Any = "wait"
    ratio = 1.0
    if min(len(stable), len(canary)) >= 3:
        ratio = mean(canary) / mean(stable)
        action = "promote" if ratio > 1.03 else "roll_back" if ratio < 0.97 else "wait"
    known = Bounds(ratio, ratio, ratio, len(canary))
    return Decision(
        action=action,
        reason=f"acceptance ratio {ratio:.3f}",
        speed=known,
        acceptance=known,
        ttft=known,
        tail=0.0,
        errors=0.0,
        stable_requests=len(stable),
        canary_requests=len(canary),
        canary_sessions=len(canary),
    )


def claimed(release: Release, policy: CanaryPolicy) -> Watch | None:
    """A watch where the bundle's evidence has a floor."""
    floor = release.manifest["evidence"].get("floor")
    return Watch(policy.watch_requests, floor) if floor else None


class Rig:
    """One start of the controller."""

    def __init__(self, small: SmallEndpoint, clock: TestClock | None = None) -> None:
        self.small, self.clock = small, clock or TestClock(small)
        self.said: list[str] = []
        self.journal = Journal(journal_path(small.endpoint), clock=self.clock.time)

    def controller(self) -> Controller:
        endpoint = self.small.endpoint
        parts = Parts(
            self.journal,
            Releases(endpoint.releases, clock=self.clock.time),
            dict(replicas_of(endpoint)),
            Router(endpoint),
            LiveMetrics("small"),
            self.said.append,
            by_acceptance,
            claimed,
            self.clock,
        )
        return Controller(endpoint, parts)

    def __enter__(self) -> Controller:
        return self.controller()

    def __exit__(self, *_: object) -> None:
        self.journal.close()
