"""The tiny targets of the speculators' tests."""

from pathlib import Path

import pytest

from tests.tiny import TINY, write_tiny_target


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_target(tmp_path_factory.mktemp("tiny") / "target")


@pytest.fixture(scope="session", params=TINY)
def each_target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of every architecture with an MTP layer."""
    folder = tmp_path_factory.mktemp("tiny")
    return write_tiny_target(folder / "target", config=TINY[request.param]())
