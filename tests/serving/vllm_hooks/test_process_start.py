"""Engine processes are forked where the environment asks for it, and only there."""

import subprocess
import sys

import pytest

from outrider.serving.engine import Engine, runs_on_cpu
from outrider.serving.vllm_hooks import process_start


@pytest.mark.engine
@pytest.mark.skipif(not runs_on_cpu(), reason="tests fork engines on a CPU only")
def test_the_tests_fork_their_engines(engine: Engine) -> None:
    from vllm.v1.engine import utils

    assert utils.get_mp_context().get_start_method() == "fork"


def test_a_command_spawns_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(process_start.FORK)
    code = (
        "from outrider.serving.vllm_hooks import plugin, process_start\n"
        "from vllm.utils import system_utils\n"
        "plugin.register()\n"
        "print(system_utils.get_mp_context is process_start.fork_context)"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.stdout == "False\n", finished.stderr
