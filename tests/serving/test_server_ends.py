"""A real `vllm serve` ends with the process that started it."""

import contextlib
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from outrider.common.process_tree import members, wait_until
from outrider.serving.config import TargetConfig

pytestmark = [pytest.mark.engine, pytest.mark.slow]

STARTER = """
import sys, time
from pathlib import Path
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.server import Server
server = Server(TargetConfig(model=sys.argv[1]), EngineConfig(), log_path=Path(sys.argv[2]))
server.start()
print(server._child.mark, flush=True)
time.sleep(600)
"""


def has_worker(mark: str) -> bool:
    """Whether a server's worker runs."""
    for process in members(mark):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if "Worker" in " ".join(process.cmdline()):
                return True
    return False


def test_no_process_of_a_server_outlives_kill_minus_nine_of_its_starter(
    target: TargetConfig, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", STARTER, target.model, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        mark = starter.stdout.readline().strip()
        try:
            assert wait_until(lambda: has_worker(mark), 300)
        finally:
            starter.kill()
    assert wait_until(lambda: members(mark) == [], 15)
