"""The controller is killed at every point; the next start reaches one release (world.py)."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from outrider.live.canary import CanaryTest
from outrider.live.controller import Controller
from outrider.live.releases import Releases
from outrider.live.state import read_state
from tests.live.world import Killed, World, killed_around

Work = Callable[[Controller], Any]


@pytest.fixture
def world(make_world, monkeypatch) -> World:
    world = make_world()
    monkeypatch.setattr(Releases, "add", killed_around(world.point, Releases.add))
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # nothing is lost with the machine
    return world


def start(world: World, work: Work = lambda controller: None, fatal: int = -1) -> int:
    """Points passed by a controller that recovers and does its work, or is killed at `fatal`."""
    world.points, world.fatal, world.dead = 0, fatal, False
    with contextlib.suppress(Killed), world.controller() as controller:
        controller.recover()
        work(controller)
    assert world.dead == (fatal >= 0)
    return world.points


def kill_at_every_point(world: World, work: Work, then: Callable[[int], None]) -> int:
    """Kills a first start at each point; `then` looks at what the next one reaches."""
    points = start(world, work)
    for fatal in range(points):
        world.restart()
        start(world, work, fatal)
        then(fatal)
    return points


def one_release(world: World, at: str) -> str:
    """The release that all serve after a recovery, which journal and router agree with."""
    served = world.served()
    state = read_state(world.endpoint)
    bundle = served["canary"]
    assert served == {"canary": bundle, "stable0": bundle} and state.open is None, at
    if state.serving is None:
        assert bundle == "first", at
    else:
        release = Releases(world.endpoint.releases).verified(state.serving)
        manifest = (world.bundles[bundle] / "bundle.json").read_bytes()
        assert (release.directory / "bundle.json").read_bytes() == manifest, at
        assert world.percent == 50, at
    return bundle


@pytest.mark.parametrize(("bundle", "reached"), [("better", "better"), ("worse", "first")])
def test_killed_while_deploying(world, bundle: str, reached: str) -> None:
    ends: list[str] = []

    def deploy(controller: Controller) -> Any:
        return controller.deploy(world.bundles[bundle])

    def recovered(fatal: int) -> None:
        opened = read_state(world.endpoint).open
        decided = opened.verdict.action if opened is not None else "wait"
        start(world)
        ends.append(one_release(world, f"killed at point {fatal}"))
        if decided != "wait":  # carried out
            assert ends[-1] == ("better" if decided == "promote" else "first")
        # The same command again does what it would have done.
        if ends[-1] != reached or bundle == "worse":
            start(world, deploy)
            assert one_release(world, f"again after {fatal}") == reached

    assert kill_at_every_point(world, deploy, recovered) > 30
    assert set(ends) == {"first", reached}
    assert ends == sorted(ends, key=lambda end: end != "first"), "no way back from a promotion"


def test_killed_while_rolling_back_by_request(world) -> None:
    def there_and_back(controller: Controller) -> None:
        controller.deploy(world.bundles["better"])
        controller.roll_back()

    def recovered(fatal: int) -> None:
        start(world)
        one_release(world, f"killed at point {fatal}")

    kill_at_every_point(world, there_and_back, recovered)


@pytest.mark.parametrize(("bundle", "action"), [("better", "promote"), ("worse", "roll_back")])
def test_killed_between_the_verdict_and_its_line_in_the_journal(
    world, monkeypatch, bundle: str, action: str
) -> None:
    """A verdict that nobody can read was never given: the endpoint goes back to what served."""
    run = CanaryTest.run
    given: list[str] = []

    def killed_with_a_verdict(test: CanaryTest) -> Any:
        given.append(run(test).action)
        world.dead = True
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(CanaryTest, "run", killed_with_a_verdict)
        with contextlib.suppress(Killed), world.controller() as controller:
            controller.deploy(world.bundles[bundle])
    assert given == [action]
    opened = read_state(world.endpoint).open
    assert opened is not None and opened.verdict.action == "wait"
    start(world)
    assert one_release(world, "after the verdict") == "first"
    start(world, lambda controller: controller.deploy(world.bundles["better"]))
    assert one_release(world, "again") == "better"
