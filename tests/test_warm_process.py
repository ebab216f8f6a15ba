"""What is forked from a warm process is like a started command."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from outrider.common.process_tree import ProcessTree, members, wait_until
from outrider.serving.vllm_hooks.process_start import FORK
from tests.warm_process import commands
from tests.warm_process.commands import ForkedPopen
from tests.warm_process.process import ADDRESS, WarmProcess

PROGRAM = """
import json, os, sys, time
facts = {
    "words": sys.argv[1:],
    "folder": os.getcwd(),
    "read": sys.stdin.readline(),
    "session": os.getsid(0) == os.getpid(),
    "cores": sorted(os.sched_getaffinity(0)),
    "variable": os.environ["VARIABLE"],
    "open": sorted(int(name) for name in os.listdir("/proc/self/fd")),
    "parent": os.getppid(),
}
os.write(int(sys.argv[1]), b"passed")
print(json.dumps(facts), flush=True)
print("an error", file=sys.stderr, flush=True)
if sys.argv[2] == "wait":
    time.sleep(600)
sys.exit(7)
"""


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Its process id."""
    process = WarmProcess(imported=())
    for name, value in (process.start() | {FORK: "1"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(commands, "MODULES", ("program",))
    yield process.pid
    process.stop()
    assert not psutil.pid_exists(process.pid)


def start(folder: Path, pipe: int, how: str, **environment: str) -> subprocess.Popen:
    (folder / "program.py").write_text(PROGRAM)
    return ForkedPopen(
        [sys.executable, "-m", "program", str(pipe), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"VARIABLE": "its own"} | environment,
        pass_fds=(pipe,),
        start_new_session=True,
    )


@pytest.mark.parametrize("forks", ["1", "0"])
def test_a_forked_command_is_as_a_started_one(warm: int, tmp_path: Path, forks: str) -> None:
    reads, writes = os.pipe()
    command = start(tmp_path, writes, "end", **{FORK: forks})
    os.close(writes)
    output, errors = command.communicate("a line\n", timeout=60)
    assert (command.returncode, command.poll(), errors) == (7, 7, "an error\n")
    with os.fdopen(reads, "rb") as passed:
        assert passed.read() == b"passed"  # to the end: nobody else holds the pipe
    facts = json.loads(output)
    assert facts.pop("open") == [0, 1, 2, *sorted({writes, facts_descriptor(facts)})]
    assert facts == {
        "words": [str(writes), "end"],
        "folder": str(tmp_path),
        "read": "a line\n",
        "session": True,
        "cores": sorted(os.sched_getaffinity(0)),
        "variable": "its own",
        "parent": warm if forks == "1" else os.getpid(),
    }


def facts_descriptor(facts: dict) -> int:
    """The descriptor of /proc/self/fd while it is listed: the lowest free one."""
    return next(number for number in range(3, 99) if number != int(facts["words"][0]))


def test_it_is_found_by_its_environment_and_ends_by_signals(warm: int, tmp_path: Path) -> None:
    reads, writes = os.pipe()
    with ProcessTree() as tree, os.fdopen(reads), os.fdopen(writes, "w"):
        command = start(tmp_path, writes, "wait", **tree.environment)
        assert command.stdin is not None and command.stdout is not None
        print(file=command.stdin, flush=True)
        command.stdout.readline()
        assert command.pid in {member.pid for member in members(tree.mark)}
        with pytest.raises(subprocess.TimeoutExpired):
            command.wait(0.1)
        command.terminate()
        assert command.wait(60) == -signal.SIGTERM
        command.communicate()
        left = start(tmp_path, writes, "wait", **tree.environment)
        assert wait_until(lambda: left.pid in {each.pid for each in members(tree.mark)}, 60)
    assert left.wait(60) == -signal.SIGKILL  # by the tree's guard
    left.communicate()


def test_what_keeps_it_from_starting_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = WarmProcess(imported=("no_such_module",))
    for name, value in (broken.start() | {FORK: "1"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(commands, "MODULES", ("program",))
    reads, writes = os.pipe()
    raises = pytest.raises(RuntimeError, match="No module named 'no_such_module'")
    with os.fdopen(reads), os.fdopen(writes, "w"), raises:
        start(tmp_path, writes, "end")
    broken.stop()


def test_without_it_commands_start_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    monkeypatch.setattr(subprocess, "Popen", real := subprocess.Popen)
    commands.install()
    assert subprocess.Popen is real
