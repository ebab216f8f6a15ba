"""The controller is killed with -9 at every point; the next start reaches one release.

A point is before or after anything that changes something outside of the process: a line of the
journal, also torn in the middle, an exchange, the router's share, the copy of a release. Each is
a process of its own, killed by SIGKILL. Replicas and router are processes that live on.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.live.controller import Controller, read_state
from outrider.live.journal import Journal
from outrider.live.releases import Releases
from tests.live.rig import Rig, TestClock
from tests.live.small_endpoint import SmallEndpoint

Work = Callable[[Controller], Any]


class Points:
    """Counts the points of a run, and kills the process at one of them."""

    def __init__(self, fatal: int) -> None:
        self.passed, self.fatal = 0, fatal

    def __call__(self) -> None:
        if self.passed == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        self.passed += 1

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self()
            result = function(*args, **kwargs)
            self()
            return result

        return wrapped


class TornJournal(Journal):
    """Writes a line in two halves, with a point between them."""

    points: Points

    def _write(self, line: bytes) -> None:
        os.pwrite(self._file, line[: len(line) // 2], self._end)
        self.points()
        super()._write(line)


def run(small: SmallEndpoint, work: Work, fatal: int, start: float) -> int | None:
    """Points passed by a controller that did its work, None if it was killed at `fatal`."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            points = Points(fatal)
            TornJournal.points = points
            rig = Rig(small, TestClock(small, start=start))
            rig.journal = TornJournal(small.endpoint.journal, clock=rig.clock.time)
            controller = rig.__enter__()
            journal, releases = controller.journal, controller.releases
            journal.append = points.around(journal.append)  # type: ignore[method-assign]
            releases.add = points.around(releases.add)  # type: ignore[method-assign]
            router = controller.router
            router.set_canary_share = points.around(router.set_canary_share)  # type: ignore[method-assign]
            for replica in controller.fleet.replicas.values():
                replica.swap = points.around(replica.swap)  # type: ignore[method-assign]
            controller.recover()
            work(controller)
            os.write(writing, str(points.passed).encode())
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        passed = told.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    assert os.WEXITSTATUS(status) == 0, "the controller failed; its traceback is above"
    return int(passed)


def deploying(bundle: Path) -> Work:
    return lambda controller: controller.deploy(bundle)


def nothing(controller: Controller) -> None:
    """Only the recovery that every start begins with."""


def kill_at_every_point(
    small: SmallEndpoint, work: Work, then: Callable[[int], None], every: int = 1
) -> int:
    """Kills a first start at each point; `then` looks at what the next one reaches."""
    small.restart()
    points = run(small, work, fatal=-1, start=1000.0)
    assert points is not None
    for fatal in range(0, points, every):
        small.restart()
        assert run(small, work, fatal, start=1000.0) is None
        then(fatal)
    return points


@pytest.fixture
def small() -> Iterator[SmallEndpoint]:
    with SmallEndpoint(stable=1) as endpoint:
        yield endpoint


def one_release(small: SmallEndpoint, at: str) -> str:
    """The release that all serve after a recovery, which journal and router agree with."""
    served = small.served()
    assert len(served) == 2 and len(set(served.values())) == 1, f"{at}: {served}"
    state = read_state(small.endpoint)
    assert state.open is None, at
    bundle = served["canary"]
    if state.serving is not None:
        release = Releases(small.endpoint.releases).verified(state.serving)
        assert release.manifest == small.manifest(bundle), at
        assert small.share() == 50, at
    else:
        assert bundle == "first", at
    return bundle


@pytest.mark.parametrize(("bundle", "reached"), [("better", "better"), ("worse", "first")])
def test_killed_while_deploying(small: SmallEndpoint, bundle: str, reached: str) -> None:
    ends: list[str] = []

    def recovered(fatal: int) -> None:
        decided = (opened := read_state(small.endpoint).open) is not None and opened.verdict
        assert run(small, nothing, fatal=-1, start=2000.0) is not None
        ends.append(one_release(small, f"killed at point {fatal}"))
        if decided:  # carried out
            assert ends[-1] == ("better" if decided == "promote" else "first")
        # The same command again does what it would have done.
        if fatal % 5 == 0 and (ends[-1] != reached or bundle == "worse"):
            assert run(small, deploying(small.bundles[bundle]), fatal=-1, start=3000.0)
            assert one_release(small, f"again after {fatal}") == reached

    points = kill_at_every_point(small, deploying(small.bundles[bundle]), recovered)
    assert points > 30
    assert set(ends) == {"first", reached}
    assert ends == sorted(ends, key=lambda end: end != "first"), "no way back from a promotion"


def test_killed_while_rolling_back_by_request(small: SmallEndpoint) -> None:
    def there_and_back(controller: Controller) -> None:
        controller.deploy(small.bundles["better"])
        controller.roll_back()

    def recovered(fatal: int) -> None:
        assert run(small, nothing, fatal=-1, start=2000.0) is not None
        one_release(small, f"killed at point {fatal}")

    kill_at_every_point(small, there_and_back, recovered, every=3)
