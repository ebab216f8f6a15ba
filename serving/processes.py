"""Nothing that Outrider starts outlives it: families of processes, ended as one, even when their starter is killed.

vLLM's engine and workers are grandchildren that notice neither the end of the server nor that of the command. So each
family carries a mark in its environment, which children inherit, and a guard process holds a pipe from the starter: when
the pipe closes, for whatever reason (kill -9 included), the guard kills every process with the mark. PR_SET_PDEATHSIG
alone would miss grandchildren, and fires when a mere thread of the starter ends.

    with Family() as family:
        subprocess.Popen(command, env=os.environ | family.environment)
"""

import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from types import TracebackType

import psutil

MARK = "OUTRIDER_FAMILY"
_QUIET_S = 0.5
"""How long no member may be found before a family counts as ended: a process between fork and exec shows no mark."""


class Family:
    """Processes that end together; leaving the context kills those that are left."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        # Without SPT_NOENV, vLLM's process titles overwrite the environment that /proc shows, mark and all.
        self.environment = {MARK: self.mark, "SPT_NOENV": "1"}

    def __enter__(self) -> "Family":
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "outrider.serving.processes", self.mark],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._guard.stdin.close()
        self._guard.wait()


def members(mark: str) -> list[psutil.Process]:
    """The living processes that carry the mark."""
    return [process for process in psutil.process_iter() if _environment(process).get(MARK) == mark]


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether `condition` came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def guard(mark: str) -> None:
    """Waits for the starter's end, then kills the family until none of it is found any more."""
    sys.stdin.buffer.read()
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < _QUIET_S:
        for process in members(mark):
            quiet_since = time.monotonic()
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.05)


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return {} if process.status() == psutil.STATUS_ZOMBIE else process.environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return {}


if __name__ == "__main__":
    guard(sys.argv[1])
