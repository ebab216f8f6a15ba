"""What a private cluster's processes inherit; sessions themselves: tests/data/features."""

import os
import subprocess
import sys

import pytest

from outrider.serving.vllm_hooks import process_start
from outrider.serving.vllm_hooks.version import runs_on_cpu

FORKS_AS_RAY_DOES = """
import os, subprocess, sys

import torch

from outrider.common.cluster.session import _private_folder

torch.randn(300, 300) @ torch.randn(300, 300)  # the library knows its threads now
count = "import os; print(len(os.sched_getaffinity(0)))"
with _private_folder():
    subprocess.run([sys.executable, "-c", count], preexec_fn=lambda: None, check=True)
print(len(os.sched_getaffinity(0)))
"""


@pytest.mark.skipif(
    not runs_on_cpu() or process_start.openmp_library() is None, reason="needs Intel's OpenMP"
)
def test_processes_that_ray_forks_may_use_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a stage of the pipeline, which has Intel's OpenMP loaded."""
    for name, value in process_start.forking_environment().items():
        monkeypatch.setenv(name, value)
    finished = subprocess.run(
        [sys.executable, "-c", FORKS_AS_RAY_DOES],
        env=os.environ | {"OMP_NUM_THREADS": "2"},
        # The tests' processes are pinned, and the library keeps what it begins with.
        preexec_fn=lambda: os.sched_setaffinity(0, range(os.cpu_count() or 1)),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    forked, here = finished.stdout.split()
    assert forked == here
