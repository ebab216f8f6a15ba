"""Fixtures that every part of the tests shares."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

EMBEDDED_TARGET = Path(__file__).resolve().parent.parent / "recipes" / "nano_r1" / "target"

# The same examples every time: a change is judged by what it changed. benchmarks/fuzz.py draws new ones.
settings.register_profile("outrider", derandomize=True, deadline=None)
settings.load_profile("outrider")


@pytest.fixture(scope="session")
def nano_r1() -> Path:
    """The embedded target's directory; OUTRIDER_TEST_TARGET names another of the same architecture."""
    directory = Path(os.environ.get("OUTRIDER_TEST_TARGET", EMBEDDED_TARGET))
    if not (directory / "config.json").is_file():
        pytest.fail(f"{directory}: no target here; OUTRIDER_TEST_TARGET may name another")
    return directory


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 5 MB; mounting one takes rights that not everybody has."""
    disk_dir = tmp_path / "disk"
    disk_dir.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(disk_dir)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no right to mount a small disk")
    yield disk_dir
    subprocess.run(["umount", str(disk_dir)], check=True)
