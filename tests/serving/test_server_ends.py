"""A real `vllm serve` ends with the process that started it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.common.process_tree import members, members_running, wait_until
from outrider.serving.config import TargetConfig
from outrider.serving.vllm_hooks import process_start

pytestmark = pytest.mark.engine

STARTER = """
import sys, time
from pathlib import Path
from outrider.serving.config import ServingConfig, TargetConfig
from outrider.serving.server import Server
server = Server(TargetConfig(model=sys.argv[1]), ServingConfig(), log_path=Path(sys.argv[2]))
server.start()
print(server.mark, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "environment", [{}, pytest.param({process_start.FORK: "0"}, marks=pytest.mark.slow)]
)
def test_no_process_of_a_server_outlives_kill_minus_nine_of_its_starter(
    environment: dict[str, str], target: TargetConfig, tmp_path: Path
) -> None:
    """As users run it, where a server forks its engine; and with spawned engines."""
    command = [sys.executable, "-c", STARTER, target.model, str(tmp_path / "log")]
    own = {name: text for name, text in os.environ.items() if name != process_start.FORK}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=own | environment
    ) as starter:
        assert starter.stdout is not None
        mark = starter.stdout.readline().strip()
        try:
            assert wait_until(lambda: members_running(mark, "Worker"), 300)
        finally:
            starter.kill()
    assert wait_until(lambda: members(mark) == [], 15)
