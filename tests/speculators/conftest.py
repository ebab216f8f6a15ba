"""The tiny target of the speculators' tests."""

from pathlib import Path

import pytest

from tests.tiny import write_tiny_target


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_target(tmp_path_factory.mktemp("tiny") / "target")
