"""The simulated endpoint of tests/live, to which rounds are deployed."""

from tests.live.conftest import make_world as make_world
