"""Supervised runs with real processes: no process outlives its stage, however the run ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from outrider.common.process_tree import run_supervised, wait_until

# A stage whose grandchild is an orphan in another session, as an engine's worker may be.
STAGE = """
import os, subprocess, sys, time
sleeper = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
middle = (
    "import subprocess, sys;"
    "subprocess.Popen([sys.executable, '-c', sys.argv[2], sys.argv[1]], start_new_session=True)"
)
subprocess.run([sys.executable, "-c", middle, sys.argv[1], sleeper])
while not (os.path.exists(sys.argv[1]) and open(sys.argv[1]).read()):
    time.sleep(0.01)
if sys.argv[2] == "wait":
    time.sleep(600)
sys.exit(int(sys.argv[2]))
"""

RUNNER = """
import os, sys
from pathlib import Path
from outrider.common.process_tree import Interrupted, run_supervised
try:
    argv = [sys.executable, *sys.argv[2:]]
    sys.exit(run_supervised(argv, Path(sys.argv[1]), dict(os.environ)))
except Interrupted as signal:
    sys.exit(signal.exit_code)
"""


def wait_for_pid(path: Path) -> int:
    assert wait_until(lambda: path.is_file() and path.read_text(), 60), "it never started"
    return int(path.read_text())


def ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("status", [0, 3])
def test_processes_that_outlive_a_stage_are_ended_and_its_status_returned(tmp_path, status):
    pid_file = tmp_path / "pid"
    argv = [sys.executable, "-c", STAGE, str(pid_file), str(status)]
    assert run_supervised(argv, tmp_path / "log", dict(os.environ)) == status
    assert ended(wait_for_pid(pid_file))


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGHUP, 75)]
)
def test_a_signal_ends_the_whole_tree(tmp_path, number, exit_code):
    pid_file = tmp_path / "pid"
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(tmp_path / "log"), "-c", STAGE, str(pid_file), "wait"]
    )
    pid = wait_for_pid(pid_file)
    runner.send_signal(number)
    assert runner.wait(30) == exit_code
    assert ended(pid)


def test_output_goes_to_the_log_and_handlers_are_restored(tmp_path):
    handler = signal.getsignal(signal.SIGTERM)
    run_supervised(
        [sys.executable, "-c", "print('to the log')"], tmp_path / "log", dict(os.environ)
    )
    assert (tmp_path / "log").read_text() == "to the log\n"
    assert signal.getsignal(signal.SIGTERM) is handler
