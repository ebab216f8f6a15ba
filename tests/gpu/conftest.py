"""Checks that only a GPU can make: `make gpu-check`.

Each test that takes `on_gpu` runs twice: there with `-m gpu`, and as its twin on a CPU with
`-m slow`, which covers the same code as far as a CPU goes. The docstring of a test that needs a GPU
names its twin, or says why there is none. Figures are JUnit properties, and end in
build/gpu_check.json and in the summary of the run. Each file is a part of `make gpu-check`, which
should take less than 8 minutes.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from outrider.common.process_tree import wait_until
from outrider.serving.vllm_version import runs_on_cpu
from tools.gpu_check import FOLDER

LEFT_BYTES = 2e9
"""GPU memory that a test may leave in use: the CUDA context and workspaces of this process."""
LEFT_HOST_BYTES = 8e9
SETTLE_S = 30


def why_no_gpu() -> str:
    """Why GPU checks are skipped here; empty where they can run."""
    if runs_on_cpu():
        return "vLLM's CPU build is installed"
    return "" if gpus_used() else "nvidia-smi lists no GPU"


def gpus_used() -> list[float]:
    """Bytes in use on each GPU, by any process."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    return [float(line) * 2**20 for line in answer.stdout.splitlines()]


@pytest.fixture(
    params=[pytest.param(True, marks=pytest.mark.gpu), pytest.param(False, marks=pytest.mark.slow)],
    ids=["gpu", "cpu"],
)
def on_gpu(request: pytest.FixtureRequest) -> bool:
    """Whether the test runs on a GPU; skipped where this machine is the other kind."""
    reason = why_no_gpu()
    if request.param and reason:
        pytest.skip(f"no GPU: {reason}")
    if not request.param and not reason:
        pytest.skip("a GPU is here; this is the twin for machines without one")
    return bool(request.param)


@pytest.fixture
def gpu() -> None:
    """Skips where there is none."""
    if reason := why_no_gpu():
        pytest.skip(f"no GPU: {reason}")


@pytest.fixture
def two_gpus(gpu: None) -> None:
    """Skips where there are fewer than two."""
    if len(gpus_used()) < 2:
        pytest.skip("needs two GPUs")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Where a run is kept, so that a part that was out of time continues."""
    folder = Path(os.environ.get(FOLDER, tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """GPU and host memory return after a test, or the next stage of a run would not fit."""
    before = gpus_used()
    host = psutil.virtual_memory().available
    yield
    if not before or runs_on_cpu():
        return
    import torch

    torch.cuda.empty_cache()

    def left() -> dict[str, float]:
        """Bytes still in use, by where they are more than may be left."""
        gpu = max(now - then for now, then in zip(gpus_used(), before, strict=True))
        lost = host - psutil.virtual_memory().available
        found = {"a GPU": gpu - LEFT_BYTES, "the host": lost - LEFT_HOST_BYTES}
        return {name: more for name, more in found.items() if more >= 0}

    assert wait_until(lambda: not left(), SETTLE_S), f"bytes too many in use: {left()}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the figures of every test."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        if report.user_properties and report.when == "call":
            figures = ", ".join(
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in report.user_properties
            )
            terminalreporter.write_line(f"{report.nodeid}: {figures}")
