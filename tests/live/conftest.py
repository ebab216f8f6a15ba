"""The simulated endpoint of world.py in place of servers and Envoy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.world import World


@pytest.fixture
def make_world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., World]:
    """A world with these replicas and this policy; the newest one counts."""

    def make(**settings: Any) -> World:
        world = World(tmp_path, **settings)
        monkeypatch.setattr("outrider.live.fleet.Replica", lambda address, token: world.at(address))
        for module in ("controller", "status"):
            monkeypatch.setattr(f"outrider.live.{module}.Router", lambda endpoint: world)
        monkeypatch.setattr("outrider.live.controller.time", world)
        return world

    return make


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """A canary and two stable replicas."""
    return make_world(stable=2)
