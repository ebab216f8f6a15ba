"""The repository passes `make lint`."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(find_spec("ruff") is None, reason="ruff comes with the dev requirements")
@pytest.mark.parametrize("words", [["check", "."], ["format", "--check", "."]], ids=" ".join)
def test_ruff_has_nothing_to_say(words: list[str]) -> None:
    command = [sys.executable, "-m", "ruff", *words, "--no-cache"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy comes with the dev requirements")
def test_mypy_has_nothing_to_say() -> None:
    command = ["sh", "requirements/mypy.sh"]
    environment = os.environ | {"PYTHON": sys.executable}
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
