"""How the tests are shared out among processes, and fixtures that every part of them shares."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from outrider.serving.vllm_hooks import process_start
from outrider.serving.vllm_hooks.version import runs_on_cpu

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

TESTS = Path(__file__).resolve().parent
EMBEDDED_TARGET = TESTS.parent / "recipes" / "nano_r1" / "target"
ONE_ENGINE = ("tests/serving/",)
"""Folders whose conftest.py starts engines for all their files."""
LONG = ("training", "recipes")
"""Folders whose tests start processes, which takes seconds each."""

# Before torch is imported: a forked engine keeps the number of threads of the process that starts it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if runs_on_cpu():
    os.environ.setdefault(process_start.FORK, "1")

# The same examples every time: a change is judged by what it changed. benchmarks/fuzz.py draws new ones.
settings.register_profile("outrider", derandomize=True, deadline=None)
settings.load_profile("outrider")


def pytest_configure(config: pytest.Config) -> None:
    """Of several pytest processes each keeps to cores of its own, with all that it starts: two engines whose threads wait for
    each other on the same cores crawl."""
    worker = getattr(config, "workerinput", None)
    if worker is None or not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    own = cores[int(worker["workerid"].removeprefix("gw")) % len(cores) :: worker["workercount"]]
    os.sched_setaffinity(0, own)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: two, which took 10 GB at their most; none beside this process where an engine takes a GPU for itself."""
    return 2 if runs_on_cpu() and len(os.sched_getaffinity(0)) > 1 else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(
    config: pytest.Config, log: "Producer"
) -> "LoadFileScheduling | None":
    """For `--dist loadfile`: a file goes to one process as a whole, and so does a folder whose files share an engine."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class FilesAndFolders(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return next((folder for folder in ONE_ENGINE if file.startswith(folder)), file)

    return FilesAndFolders(config, log)


@pytest.hookimpl(trylast=True)  # after -m has left tests out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of several processes none is to begin a long file when the others are done: the long ones come first."""
    if not hasattr(config, "workerinput"):
        return
    with_engine = {item.path for item in items if item.get_closest_marker("engine")}

    def turn(item: pytest.Item) -> int:
        folder = item.path.relative_to(TESTS).parts[0]
        return (
            0
            if item.path in with_engine
            else LONG.index(folder) + 1
            if folder in LONG
            else len(LONG) + 1
        )

    items.sort(key=turn)


@pytest.hookimpl(tryfirst=True)  # before the fixtures
def pytest_runtest_setup() -> None:
    """The same draws in every test, whatever ran before it in its process."""
    random.seed(0)
    for module, seed in (("numpy.random", "seed"), ("torch", "manual_seed")):
        if module in sys.modules:
            getattr(sys.modules[module], seed)(0)


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
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(disk_dir)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no right to mount a small disk")
    yield disk_dir
    subprocess.run(["umount", str(disk_dir)], check=True)
