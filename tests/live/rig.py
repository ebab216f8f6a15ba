"""A controller on a small endpoint, with a clock that does not wait.

with Rig(small) as controller:
    controller.deploy(small.bundles["better"])
"""

from collections.abc import Callable

from outrider.live.controller import Controller
from outrider.live.journal import Journal
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


class Rig:
    """One start of the controller."""

    def __init__(self, small: SmallEndpoint, clock: TestClock | None = None) -> None:
        self.small, self.clock = small, clock or TestClock(small)
        self.said: list[str] = []
        self.journal = Journal(small.endpoint.journal, clock=self.clock.time)

    def __enter__(self) -> Controller:
        return Controller(self.small.endpoint, self.journal, self.said.append, self.clock)

    def __exit__(self, *_: object) -> None:
        self.journal.close()

    def ask(self, action: str) -> None:
        """What `--rollback` or `--promote` of another process does."""
        with Journal(self.journal.path, clock=self.clock.time) as journal:
            opened = journal.read().open
            assert opened is not None
            journal.append("request", deployment=opened.id, action=action, by="tester")
