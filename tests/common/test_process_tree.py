"""No process outlives its starter or its stage, grandchildren included, however a run ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from outrider.common import process_tree
from outrider.common.process_tree import marked_processes, run_supervised, wait_until

# A child that ignores SIGTERM and starts a grandchild in another session.
CHILD = (
    "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
    " start_new_session=True); time.sleep(600)"
)


STARTER = f"""
import os, subprocess, sys, time
from outrider.common.process_tree import ProcessTree
with ProcessTree() as tree:
    subprocess.Popen([sys.executable, "-c", {CHILD!r}], env=os.environ | tree.environment)
    forked = os.fork()
    if not forked:
        time.sleep(600)
    print(tree.mark, forked, flush=True)
    if sys.argv[1] == "killed":
        time.sleep(600)
print("left", flush=True)
"""


@pytest.mark.parametrize("how", ["left", "killed"])
def test_a_tree_ends_with_its_context_and_its_starter(how: str) -> None:
    """A process that the starter forked lives on, such as an engine, and holds no guard up."""
    command = [sys.executable, "-c", STARTER, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        mark, forked = starter.stdout.readline().split()
        try:
            if how == "left":
                assert starter.stdout.readline() == "left\n"
            else:
                assert wait_until(lambda: len(marked_processes(mark)) == 2, 30)
                starter.kill()
            assert wait_until(lambda: marked_processes(mark) == [], 10)
        finally:
            os.kill(int(forked), signal.SIGKILL)


DOWNLOADER = """
import time
from outrider.common.process_tree import temporary_folder
with temporary_folder() as folder:
    (folder / "history.npz").write_bytes(b"customer text")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_a_temporary_folder_goes_with_a_killed_process() -> None:
    command = [sys.executable, "-c", DOWNLOADER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as downloader:
        folder = Path(downloader.stdout.readline().strip())
        try:
            assert [file.name for file in folder.iterdir()] == ["history.npz"]
            assert folder.stat().st_mode & 0o77 == 0
        finally:
            downloader.kill()
        assert wait_until(lambda: not folder.exists(), 10)


INTERRUPTED = """
import signal, sys, time
from outrider.common import process_tree
process_tree.AGAIN_S = 0.2

class Destroyed:
    def __del__(self):
        print("ready", flush=True)
        time.sleep(600)  # the first interrupt ends it, and is ignored

for number in process_tree.INTERRUPTS:
    signal.signal(number, process_tree.interrupt)
try:
    try:
        Destroyed()
        print("lost", flush=True)
        time.sleep(600)
    finally:
        try:
            raise OSError
        except OSError:
            time.sleep(1)  # several alarms later
        print("cleaned", flush=True)
except KeyboardInterrupt:
    print("ended", flush=True)
"""


def test_an_interrupt_that_a_destructor_loses_is_raised_again_but_not_while_cleaning_up() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.terminate()
            output, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert output.split() == ["lost", "cleaned", "ended"]
    assert "Exception ignored in: <function Destroyed.__del__" in errors


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
    handler = signal.getsignal(signal.SIGTERM)
    assert run_supervised(argv, tmp_path / "log", dict(os.environ)) == status
    assert ended(wait_for_pid(pid_file)) and signal.getsignal(signal.SIGTERM) is handler


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


# Stops after SIGTERM with status 75, as stages do, or ignores it.
STOPS = """
import signal, sys, time
def stop(*_):
    if sys.argv[1] == "stops":
        sys.exit(75)
signal.signal(signal.SIGTERM, stop)
open(sys.argv[2], "w").close()
while True:
    time.sleep(0.01)
"""


@pytest.mark.parametrize(("how", "status"), [("stops", 75), ("hangs", -signal.SIGKILL)])
def test_a_child_is_stopped_at_the_end_of_its_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, status: int
) -> None:
    """The clock is 1 when the child has set its handler, and before that 0."""
    ready = tmp_path / "ready"
    monkeypatch.setattr(process_tree.time, "time", lambda: float(ready.exists()))
    if how == "hangs":
        monkeypatch.setattr(process_tree, "PATIENCE_S", 0.2)
    argv = [sys.executable, "-c", STOPS, how, str(ready)]
    assert run_supervised(argv, tmp_path / "log", dict(os.environ), end=1.0) == status
