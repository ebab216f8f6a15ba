"""Commands that are killed with `kill -9` at moments of their work, and what they leave.

command = Command(words, cwd=folder, scratch=folder / "tmp")
took_s = command.run(began, ended)                  # the time of the work
killed = command.kill(began, 0.4 * took_s)          # False if it ended before
assert_nothing_runs(command, run.root)
"""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from outrider.common.files import lock_holder
from outrider.common.process_tree import wait_until
from outrider.pipeline.run_dir import RunDirectory
from tests.shipped_traffic import logged_rows

MARK = "OUTRIDER_TEST_OF_KILLS"
"""Environment variable that all processes of a command inherit."""

PATIENCE_S = 60.0
"""In which the guard of a killed command ends the processes of its tree."""

PRIVATE = ("traffic", "features", "evaluation/steps")
"""Folders of a run that hold customer text (docs/how-to/privacy.md)."""

Sign = Callable[[], object]

_STAGES = """
import sys
from pathlib import Path
from rich.console import Console
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.runner import attempt, run_stages
root, *names = sys.argv[1:]
run = RunDirectory(Path(root))
recipe = run.read_resolved()
options = {"force": True}
with attempt(run, recipe, ()):
    run_stages(run=run, recipe=recipe, names=names, options=options, console=Console())
"""


def stages_script(run: RunDirectory, stages: Sequence[str]) -> list[str]:
    """Words after `python` that run stages of a run as the commands do, whatever the verdict."""
    return ["-c", _STAGES, str(run.root), *stages]


class Command:
    """A command of Python's, and all processes that it starts."""

    def __init__(
        self,
        words: Sequence[str],
        cwd: Path,
        scratch: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`scratch`: its folder of temporary files; `environment`: further variables."""
        self._words = [sys.executable, *words]
        self._cwd = cwd
        self.scratch = scratch
        scratch.mkdir(exist_ok=True)
        self._environment = dict(environment or {})
        self._mark = uuid.uuid4().hex

    def _start(self) -> subprocess.Popen[bytes]:
        variables = {MARK: self._mark, "TMPDIR": str(self.scratch), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            self._words,
            cwd=self._cwd,
            env=os.environ | variables | self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def run(self, began: Sign, ended: Sign) -> float:
        """Runs it to its end; returns the seconds between two signs of its work."""
        process = self._start()
        wait_for(began, process)
        begin = time.monotonic()
        wait_for(ended, process)
        seconds = time.monotonic() - begin
        assert process.wait() == 0
        return seconds

    def kill(self, began: Sign, after_s: float) -> bool:
        """Kills it some time after the sign that its work began; False if it ended before."""
        process = self._start()
        wait_for(began, process)
        try:
            process.wait(after_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return True
        assert process.returncode == 0
        return False

    def alive(self) -> list[psutil.Process]:
        """Processes that it started and that have not ended."""
        return [process for process in psutil.process_iter() if self._mark == _mark_of(process)]


def wait_for(sign: Sign, process: subprocess.Popen[bytes]) -> None:
    """Waits for a sign of the process's work, or for its end."""
    while not sign() and process.poll() is None:
        time.sleep(0.002)


def _mark_of(process: psutil.Process) -> str | None:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process.environ().get(MARK)
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return None


def assert_nothing_runs(command: Command, run_dir: Path) -> None:
    """No process of a killed command is left, so none holds a port, and the run is not locked."""
    assert wait_until(lambda: not command.alive(), PATIENCE_S), command.alive()
    assert lock_holder(run_dir / ".lock") is None


def files_below(folder: Path) -> dict[str, bytes]:
    """Contents by path below a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def quotes() -> list[bytes]:
    """A line of every prompt in the log that no other prompt and no template has."""
    lines = []
    for row in logged_rows("resume_screening"):
        text = row["request"]["messages"][-1]["content"]
        lines += [line for line in text.splitlines() if line.startswith("summary: ")]
    assert len(lines) > 100
    return [line.encode() for line in set(lines)]


def assert_no_text(run: RunDirectory, scratch: Path, wanted: list[bytes]) -> None:
    """Only the private folders quote the customer's prompts, not even temporary files."""
    for name, content in files_below(scratch).items():
        assert not any(line in content for line in wanted), f"{name} quotes a prompt"
    for path in run.root.rglob("*"):
        inside = path.relative_to(run.root).as_posix()
        if path.is_file() and not inside.startswith(PRIVATE):
            content = path.read_bytes()
            assert not any(line in content for line in wanted), f"{inside} quotes a prompt"
