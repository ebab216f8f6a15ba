"""Engine processes are forked where that is safe or the environment asks for it."""

import os
import subprocess
import sys

import pytest

from outrider.serving.admin.live_flags import HOOKS
from outrider.serving.engine import Engine
from outrider.serving.vllm_hooks import process_start
from outrider.serving.vllm_hooks.plugin import register
from outrider.serving.vllm_hooks.version import runs_on_cpu


@pytest.mark.engine
@pytest.mark.skipif(not runs_on_cpu(), reason="tests fork engines on a CPU only")
def test_the_tests_fork_their_engines(engine: Engine) -> None:
    from vllm.v1.engine import utils

    assert utils.get_mp_context().get_start_method() == "fork"


@pytest.mark.parametrize(("value", "forks"), [(None, False), ("0", False), ("1", True)])
def test_engines_are_forked_on_request_only(
    value: str | None, forks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[bool] = []
    monkeypatch.setattr(process_start, "install", lambda: installed.append(True))
    monkeypatch.delenv(process_start.FORK, raising=False)
    monkeypatch.setenv(HOOKS, "1")
    if value is not None:
        monkeypatch.setenv(process_start.FORK, value)
    register()
    assert bool(installed) == forks


COMPUTES_AFTER_A_FORK = """
import os

import torch

from outrider.serving.vllm_hooks import process_start

process_start.drop_forking_environment()
matrix = torch.randn(300, 300)
matrix @ matrix  # a parallel region: GNU's OpenMP would deadlock in the child
cores = os.sched_getaffinity(0)
os.environ |= process_start.FORKING
child = os.fork()
if child == 0:
    matrix @ matrix
    os._exit(0 if os.sched_getaffinity(0) == cores and torch.get_num_threads() == 2 else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(process_start.forks_safely(), status, os.environ.get("LD_PRELOAD"))
"""


@pytest.mark.skipif(
    not runs_on_cpu() or process_start.openmp_library() is None, reason="needs Intel's OpenMP"
)
@pytest.mark.parametrize("preloaded", [True, False])
def test_a_process_with_intels_openmp_may_fork_and_its_child_keeps_threads_and_cores(
    preloaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(process_start.FORK, raising=False)
    monkeypatch.setenv("LD_PRELOAD", "")
    if preloaded:
        for name, value in process_start.forking_environment().items():
            monkeypatch.setenv(name, value)
        code = COMPUTES_AFTER_A_FORK
    else:
        code = "from outrider.serving.vllm_hooks import process_start as p; print(p.forks_safely())"
    finished = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert finished.stdout.split() == (["True", "0", "None"] if preloaded else ["False"])


def test_what_users_preload_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    if not process_start.forking_environment():
        pytest.skip("engines are spawned here")
    monkeypatch.setenv("LD_PRELOAD", "/lib/theirs.so")
    with_ours = process_start.forking_environment()
    assert with_ours["LD_PRELOAD"].startswith("/lib/theirs.so:")
    monkeypatch.setenv("LD_PRELOAD", with_ours["LD_PRELOAD"])
    process_start.drop_forking_environment()
    assert os.environ["LD_PRELOAD"] == "/lib/theirs.so"
    monkeypatch.setenv(process_start.FORK, "0")
    assert process_start.forking_environment() == {}
