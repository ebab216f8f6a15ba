"""How the tests are distributed over processes, and fixtures for all of them.

`make test` runs four processes, two a core of two. What is expensive is shared or forked: one
server and one load generator for tests/serving; engines forked from the process that
opens them (serving/vllm_hooks/process_start.py); servers, load generators, stages and training
ranks from one that has imported vLLM and DeepSpeed (tests/warm_process/); commands in this
process (tests/cli/commands.py). Text is written by a target with a quarter of the embedded
one's layers (tests/short_r1/). Each real path keeps at least one test: spawned engine processes,
every training launcher, every command.
"""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outrider.serving.vllm_hooks import process_start
from outrider.serving.vllm_hooks.version import runs_on_cpu
from tests.fuzzing import register_profile
from tests.rewritten_asserts import cache_rewritten
from tests.short_r1 import write_short_r1
from tests.warm_process.commands import install
from tests.warm_process.process import WarmProcess

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

TESTS = Path(__file__).resolve().parent
EMBEDDED_TARGET = TESTS.parent / "recipes" / "nano_r1" / "target"
ONE_SERVER = (
    "live/test_live_server.py",
    "serving/test_endpoint.py",
    "serving/test_sampling.py",
    "serving/test_server.py",
)
"""Files that share the server of tests/serving/conftest.py."""
LONGEST_FIRST = (
    *ONE_SERVER,
    "training/distributed/test_ranks.py",
    "eval/test_evaluate.py",
    "training/test_trainer.py",
    "eval/bench/test_step_timing.py",
    "data/features",
    "serving/test_other_speculators.py",
    "data/on_policy/test_check.py",
    "serving/test_server_ends.py",
    "eval/prediction/test_step_fit.py",
    "eval/replay/test_draft_parity.py",
    "live/test_router.py",
    "recipes",
    "training",
    "eval/test_browser.py",
    "data/formats",
)
"""Files and folders that take longer than 10 s, by how long. The last file to start must be a short
one."""

# Before torch is imported: forked engines keep the number of threads of this process.
os.environ.setdefault("OMP_NUM_THREADS", "1")
FORKING = runs_on_cpu() and os.environ["OMP_NUM_THREADS"] == "1"
"""Whether the tests fork engines, and commands with long imports (warm_process/)."""
if FORKING:
    os.environ.setdefault(process_start.FORK, "1")

register_profile()


def pytest_configure(config: pytest.Config) -> None:
    """Pins each of several pytest processes, and all that it starts, to its share of the cores.

    Two engines whose threads wait for each other on the same cores crawl. Commands with long
    imports are forked from one process for all of them.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None:
        if config.getoption("numprocesses", 0) and FORKING:
            warm = WarmProcess()
            config.add_cleanup(warm.stop)
            os.environ |= warm.start()
            install()
            cache_rewritten(config, TESTS)  # while the other process imports
        return
    install()
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        own = cores[
            int(worker["workerid"].removeprefix("gw")) % len(cores) :: worker["workercount"]
        ]
        os.sched_setaffinity(0, own)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: two a core, four at most, on a CPU; none on a GPU, which one engine fills.

    With one a core, a core waits half of the time: for servers that settle, ranks, other processes.
    """
    cores = len(os.sched_getaffinity(0))
    return min(4, 2 * cores) if runs_on_cpu() and cores > 1 else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(
    config: pytest.Config, log: "Producer"
) -> "LoadFileScheduling | None":
    """For `--dist loadfile`: one process runs all of a file, and all files that share a server."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class FilesOfServers(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "server" if file.removeprefix("tests/") in ONE_SERVER else file

    return FilesOfServers(config, log)


@pytest.hookimpl(trylast=True)  # after -m has deselected tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts the files by how long they take, if several processes share them."""
    if not hasattr(config, "workerinput"):
        return

    def turn(item: pytest.Item) -> int:
        place = item.path.relative_to(TESTS)
        for index, name in enumerate(LONGEST_FIRST):
            if place.is_relative_to(name):
                return index
        return len(LONGEST_FIRST)

    items.sort(key=turn)


@pytest.hookimpl(tryfirst=True)  # before the fixtures
def pytest_runtest_setup() -> None:
    """Seeds the generators, so that a test draws the same whatever ran before it."""
    random.seed(0)
    for module, seed in (("numpy.random", "seed"), ("torch", "manual_seed")):
        if module in sys.modules:
            getattr(sys.modules[module], seed)(0)


@pytest.fixture(scope="session")
def nano_r1() -> Path:
    """The embedded target's directory, or another of the same architecture.

    OUTRIDER_TEST_TARGET names the other.
    """
    directory = Path(os.environ.get("OUTRIDER_TEST_TARGET", EMBEDDED_TARGET))
    if not (directory / "config.json").is_file():
        pytest.fail(f"{directory}: no target here; OUTRIDER_TEST_TARGET may name another")
    return directory


@pytest.fixture(scope="session")
def short_r1(nano_r1: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded target with 4 layers: where any trained target will do, in half the time."""
    return write_short_r1(nano_r1, tmp_path_factory.mktemp("targets") / "short_r1")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 5 MB; skipped where the user may not mount one."""
    disk_dir = tmp_path / "disk"
    disk_dir.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(disk_dir)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no right to mount a small disk")
    yield disk_dir
    subprocess.run(["umount", str(disk_dir)], check=True)
