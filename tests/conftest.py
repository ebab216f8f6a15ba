"""Fixtures for all tests, and each pytest process's share of the cores.

Text is written by a target with a quarter of the embedded one's layers (tests/short_r1/), and
commands run in this process (tests/cli/commands.py). Files of tests/serving share one server in
each pytest process.
"""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzzing import register_profile
from tests.short_r1 import write_short_r1

os.environ.setdefault("RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES", "200000000")
# 30 % of the memory otherwise, for every private cluster of a test.

EMBEDDED_TARGET = Path(__file__).resolve().parents[1] / "recipes" / "nano_r1" / "target"

register_profile()

LONGEST = (
    *(
        "eval/test_evaluate.py",
        "cli/test_init.py",
        "cli/test_cli.py",
        "serving/test_live_server.py",
    ),
    *(
        "pipeline/test_elsewhere.py",
        "serving/test_load_generator.py",
        "data/on_policy/test_check.py",
    ),
    *("training/test_trainer.py", "serving/test_other_speculators.py", "adapt/test_policy.py"),
    *("serving/test_suffix_history.py", "serving/test_server.py"),
    *("training/distributed/test_ranks.py", "pipeline/test_customer_text.py"),
    *("eval/test_browser.py", "data/formats/test_fuzz.py", "examples/test_research.py"),
    *("pipeline/test_measured_targets.py", "speculators/layers/test_prefix_attention.py"),
    *("training/test_devices.py", "pipeline/test_inspection.py", "test_setup.py"),
    *("eval/replay/test_draft_parity.py", "serving/vllm_hooks/test_capture_extension.py"),
    *("live/test_router.py", "test_any_json.py", "training/test_streamed_training.py"),
    *("training/test_eagle3_training.py", "live/test_controller.py"),
)
"""Files of 20 to 471 s in `make test`, longest first. A process runs a whole file, so that they run
first and end together with the others (799 s; 887 s where two began last)."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs the longest files first, and all others in their order."""
    tests = Path(__file__).parent
    ranks = {tests / name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(LONGEST)))


def pytest_configure(config: pytest.Config) -> None:
    """Pins each of several pytest processes, and all that it starts, to its share of the cores.

    Two engines whose threads wait for each other on the same cores crawl. A process that replaces
    one that died is not pinned: its number does not tell whose cores are free.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None or not hasattr(os, "sched_setaffinity"):
        return
    number = int(worker["workerid"].removeprefix("gw"))
    if number >= worker["workercount"]:
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[number % len(cores) :: worker["workercount"]])


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
