"""`make test` in a scratch checkout, whose tools only record that they ran."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = (
    "ruff check",
    "ruff format --check",
    "mypy.sh",
    "mkdocs build --strict",
    "python -m pytest",
)
"""What `make test` runs, in its order; the tests are last, since their count ends the output."""

TOOL = """\
#!/bin/sh
call="$(basename "$0") $*"
echo "$call" >> calls
case "$call" in "$FAILS"*) exit 1;; esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    names = [f".venv/bin/{name}" for name in ("ruff", "mkdocs", "python")]
    names += [f"requirements/{name}.sh" for name in ("setup", "browser", "mypy")]
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TOOL)
        path.chmod(0o755)
    return tmp_path


def make_test(checkout: Path, fails: str) -> tuple[int, list[str]]:
    """Status of `make test` if the calls that begin with `fails` fail, and the calls of `PARTS`."""
    # MAKEFLAGS of a `make test` that runs this test would change how this one runs.
    environment = {key: text for key, text in os.environ.items() if not key.startswith("MAKE")}
    finished = subprocess.run(
        ["make", "test"], cwd=checkout, env=environment | {"FAILS": fails}, capture_output=True
    )
    calls = (checkout / "calls").read_text().splitlines()
    return finished.returncode, [call for call in calls if call.startswith(PARTS)]


def test_all_parts_run_and_the_tests_last(checkout: Path) -> None:
    status, calls = make_test(checkout, fails="nothing")
    assert status == 0
    for call, part in zip(calls, PARTS, strict=True):
        assert call.startswith(part)


@pytest.mark.parametrize("part", PARTS)
def test_each_part_fails_a_submission_after_all_have_run(checkout: Path, part: str) -> None:
    status, calls = make_test(checkout, fails=part)
    assert status != 0
    assert len(calls) == len(PARTS)
