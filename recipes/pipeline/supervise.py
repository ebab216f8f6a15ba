"""Runs a stage in a process of its own and leaves nothing behind: not on success, not on Ctrl-C, not on SIGTERM, not on a crash.

    code = run_supervised([sys.executable, "-m", "outrider.recipes.pipeline.stage_process", "capture", "runs/demo"], log, environment)

A stage starts engines, servers and workers, some in sessions of their own. This process makes itself the reaper of its
descendants (PR_SET_CHILD_SUBREAPER), so that one whose parent died is still found here, and ends whatever outlives its stage.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

GRACE_SECONDS = 900
"""How long a stage may take to close its engines and keep what is whole, a checkpoint of R1's layer (162 GB) with the step before
it; a second signal ends the wait."""

REPEAT_SECONDS = 30
"""How long until a stage that goes on is told again: while an engine starts, a signal has been seen to get lost in its libraries."""

TERMINAL_DESCRIPTOR = "OUTRIDER_TERMINAL_DESCRIPTOR"
"""Environment variable: the descriptor on which a stage's process shows its progress; its stdout and stderr are the log."""

_PARENT = "OUTRIDER_PARENT"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal asked this run to stop; the same command goes on afterwards."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 130 if number == signal.SIGINT else 75


def run_supervised(argv: list[str], log: Path, environment: dict[str, str]) -> int:
    """Exit status of `argv`, run in its own process group with its output in `log`; `Interrupted` when a signal came first."""
    before = {process.pid for process in psutil.Process().children()}
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    terminal = os.dup(sys.stderr.fileno())
    log.touch(mode=0o600)
    try:
        with _recorded_signals() as received, log.open("ab") as output:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment | {TERMINAL_DESCRIPTOR: str(terminal), _PARENT: str(os.getpid())},
                pass_fds=(terminal,),
                process_group=0,
            )
            while not received and not _ended(process, 0.2):
                pass
            if received:
                print(
                    "stopping; what is whole is kept (once more to stop at once)",
                    file=sys.stderr,
                    flush=True,
                )
                process.terminate()
                told = waited = 0.0
                while len(received) == 1 and waited < GRACE_SECONDS and not _ended(process, 0.2):
                    waited += 0.2
                    if waited - told >= REPEAT_SECONDS:
                        process.terminate()
                        told = waited
            end_descendants(keep=before)
            status = process.wait()
            if received:
                raise Interrupted(received[0])
            return status
    finally:
        end_descendants(keep=before)
        os.close(terminal)


def end_descendants(keep: set[int] | None = None) -> None:
    """Ends every process below this one, politely first, except the children in `keep` and what is below those."""
    spared = set(keep or ())
    for child in psutil.Process().children():
        if child.pid in spared:
            with contextlib.suppress(psutil.NoSuchProcess):
                spared.update(process.pid for process in child.children(recursive=True))
    for send, patience in ((psutil.Process.terminate, 5.0), (psutil.Process.kill, 5.0)):
        left = [
            process
            for process in psutil.Process().children(recursive=True)
            if process.pid not in spared
        ]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                send(process)
        psutil.wait_procs(left, timeout=patience)


def die_with_parent() -> None:
    """Called by a child: SIGTERM when the process that started it dies, even by SIGKILL; and it reaps its own descendants."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    parent = os.environ.pop(_PARENT, None)
    if parent is not None and os.getppid() != int(parent):
        sys.exit("the command that started this stage has ended")


@contextlib.contextmanager
def stopped_by_signal() -> Iterator[None]:
    """While inside, a signal that would end this process raises `Interrupted` instead, so that temporary files are removed."""

    def stop(number: int, _: object) -> None:
        raise Interrupted(number)

    previous = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _ended(process: subprocess.Popen, seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


@contextlib.contextmanager
def _recorded_signals() -> Iterator[list[int]]:
    """While inside, signals are noted in the list instead of acted on."""
    received: list[int] = []
    previous = {
        number: signal.signal(number, lambda n, _: received.append(n)) for number in _SIGNALS
    }
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
