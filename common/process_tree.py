"""Processes that end with their starter, even if it is killed.

    child = Child(command, Path("server.log"), "the server")
    child.wait_until(healthy, 60)
    child.stop()

    with ProcessTree() as tree:         # several processes and their descendants
        subprocess.Popen(command, env=os.environ | tree.environment)

    status = run_supervised(command, Path("stage.log"), dict(os.environ))   # handles signals too

Engines, servers, launchers and workers start further processes, some in separate sessions.
A vLLM server's grandchildren do not notice when the server or the command ends. So each tree has a
mark in its environment, which every descendant inherits, and a guard process that holds a pipe from
the starter. When the pipe closes, on leaving the context or on `kill -9`, the guard kills every
process with the mark. PR_SET_PDEATHSIG alone misses grandchildren and also fires when only the
thread that started the child ends; a subreaper finds orphans only while it lives.

A process gets the mark at exec, so a fork of the starter without exec is not a member. Trees nest:
processes of an inner tree carry both marks, so the outer guard also kills the inner tree and its
guard.
"""

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from outrider.common.errors import OutriderError

MARK = "OUTRIDER_PROCESS_TREE"
"""Environment variable: the marks of the trees that a process belongs to, outermost first."""

_QUIET_S = 0.25
"""A tree counts as ended after this many seconds without a member. Not 0, because a process between
fork and exec shows no mark."""


class ProcessTree:
    """Processes that end together; leaving the context kills those still running."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` is removed after the last process has ended."""
        self.mark = uuid.uuid4().hex
        outer = os.environ.get(MARK)
        # Without SPT_NOENV, vLLM's process titles overwrite the environment that /proc shows.
        self.environment = {MARK: f"{outer}:{self.mark}" if outer else self.mark, "SPT_NOENV": "1"}
        self._folder = folder

    def __enter__(self) -> "ProcessTree":
        command = [sys.executable, "-m", "outrider.common.process_tree"]
        self._guard = subprocess.Popen(
            [*command, self.mark, *([self._folder] if self._folder else [])],
            stdin=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        _OPEN.add(self._guard)
        return self

    def __exit__(self, *_: object) -> None:
        _OPEN.discard(self._guard)
        self._guard.communicate()  # closes the pipe and waits


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yields a private folder in TMPDIR, which is removed even if this process is killed."""
    with tempfile.TemporaryDirectory(prefix="outrider-") as folder, ProcessTree(Path(folder)):
        yield Path(folder)


class Child:
    """A child process with its log and its process tree."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        name: str,
        environment: Mapping[str, str] | None = None,
        *,
        pipes: bool = False,
        descriptors: Sequence[int] = (),
    ) -> None:
        """Starts the process and appends its output to `log`, a private file.

        `name` is used in errors; `environment` defaults to this process's. With `pipes`, stdin
        and stdout are text pipes to this process. `descriptors` stay open in the child.
        """
        self.log, self._name = log, name
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch(mode=0o600)
        self._log_start = log.stat().st_size
        self._tree = ProcessTree().__enter__()
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                env={
                    **(os.environ if environment is None else environment),
                    **self._tree.environment,
                },
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else output,
                stderr=output,
                text=True,
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C reaches only the starter, which stops the child
            )

    def wait_until(
        self, ready: Callable[[], bool], seconds: float, reason: Callable[[str], str] | None = None
    ) -> None:
        """Waits until `ready` returns true.

        Raises an `OutriderError` if the process exits first or is not ready within `seconds`. The
        message quotes `reason(log text)`, by default the end of the log.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            if (code := self.process.poll()) is not None:
                raise self.failure(f"ended with code {code}", reason)
            if time.monotonic() > deadline:
                raise self.failure(f"was not ready within {seconds:.0f} s", reason)
            time.sleep(0.05)

    def ended(self) -> bool:
        """Whether the process has exited."""
        return self.process.poll() is not None

    def failure(self, what: str, reason: Callable[[str], str] | None = None) -> OutriderError:
        """Builds the error: what happened, and the cause according to the log."""
        text = self.log.read_bytes()[self._log_start :].decode(errors="replace")
        why = reason(text) if reason else "\n".join(text.splitlines()[-25:])
        return OutriderError(f"{self._name} {what}: {why}\n(log: {self.log})")

    def stop(self, patience_s: float = 0.0) -> None:
        """Sends SIGTERM if `patience_s` is positive, then SIGKILL to the tree."""
        try:
            if patience_s:
                self.process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(patience_s)
                wait_until(lambda: not marked_processes(self._tree.mark), 2)
        finally:
            with self.process:  # closes its pipes
                self._tree.__exit__()


_OPEN: set[subprocess.Popen[bytes]] = set()
"""Guards of this process's trees."""


def _close_pipes() -> None:
    """In a forked child, closes the pipes that would keep guards waiting."""
    for guard in _OPEN:
        assert guard.stdin is not None
        guard.stdin.close()
    _OPEN.clear()


os.register_at_fork(after_in_child=_close_pipes)


def marked_processes(mark: str) -> list[psutil.Process]:
    """Lists the running processes with this mark."""
    return [process for process in psutil.process_iter() if mark in _marks(process)]


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Waits until `condition` is true; returns False after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def guard(mark: str, folder: str | None = None) -> None:
    """Kills the tree and removes `folder` when the starter closes the pipe."""
    sys.stdin.read()
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < _QUIET_S:
        for process in marked_processes(mark):
            quiet_since = time.monotonic()
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.05)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _marks(process: psutil.Process) -> list[str]:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return []
        return process.environ().get(MARK, "").split(":")
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return []


TERMINAL_DESCRIPTOR = "OUTRIDER_TERMINAL_DESCRIPTOR"
"""Environment variable: the file descriptor of the terminal, for showing progress. The child's
stdout and stderr go to the log."""


class Interrupted(Exception):
    """A signal stopped this run; the same command resumes it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 130 if number == signal.SIGINT else 75


PATIENCE_S = 900.0
"""Time for a checkpoint after the end of a window, in seconds; then the processes are killed. R1's
layer takes 163 GB: 3 minutes at 1 GB/s."""

AGAIN_S = 2.0
"""Seconds until an interrupt that a library has lost is raised again."""

INTERRUPTS = (signal.SIGALRM, signal.SIGINT, signal.SIGTERM)
"""Signals of `interrupt`."""


def run_supervised(
    argv: list[str], log: Path, environment: dict[str, str], end: float = math.inf
) -> int:
    """Runs `argv` with its output in `log`; returns its exit status.

    The first signal is passed to the child as SIGTERM; a second one ends all processes. At `end`
    (Unix time), the child gets SIGTERM too, and all processes are killed `PATIENCE_S` later. Raises
    `Interrupted` after a signal.
    """
    received: list[int] = []
    try:
        terminal = os.dup(sys.stderr.fileno())
    except OSError:  # a notebook's stderr has no descriptor; its kernel forwards descriptor 2
        terminal = os.dup(2)
    with signal_handlers(lambda number, _: received.append(number)):
        variables = environment | {TERMINAL_DESCRIPTOR: str(terminal)}
        child = Child(argv, log, log.stem, variables, descriptors=(terminal,))
        os.close(terminal)
        try:
            wait_until(lambda: received or time.time() >= end or child.ended(), math.inf)
            if received or not child.ended():
                _ask_to_stop(child, received)
        finally:
            child.stop()
    if received:
        raise Interrupted(received[0])
    return child.process.returncode


def _ask_to_stop(child: Child, received: list[int]) -> None:
    """Sends SIGTERM and waits: after a signal for a second one, else at most `PATIENCE_S`."""
    why = "the window has ended, stopping"
    again = ""
    patience_s = PATIENCE_S
    if received:
        why = "stopping"
        again = " again"
        patience_s = math.inf
    print(
        f"{why}; completed work is kept (Ctrl-C{again} to stop at once)",
        file=sys.stderr,
        flush=True,
    )
    enough = 2 if received else 1
    child.process.terminate()
    wait_until(lambda: len(received) >= enough or child.ended(), patience_s)


@contextlib.contextmanager
def stopped_by_signal() -> Iterator[None]:
    """Makes signals raise `Interrupted`, so that temporary files are removed."""

    def stop(number: int, _: object) -> None:
        raise Interrupted(number)

    with signal_handlers(stop):
        yield


def interrupt(_number: int, _frame: object) -> None:
    """The handler of `INTERRUPTS`: raises `KeyboardInterrupt`, again until one is handled.

    Libraries lose exceptions of a handler, and Python ignores them in destructors and in callbacks
    of weak references, of which imports run many (importlib's module locks). A capture whose engine
    was starting then went on to its end. Nothing is raised in a `finally` or `except` that handles
    an earlier one.
    """
    signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return
        error = error.__context__
    raise KeyboardInterrupt


@contextlib.contextmanager
def signal_handlers(
    handler: Callable[[int, Any], object],
    signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
) -> Iterator[None]:
    """Handles `signals` with `handler` and restores the previous handlers afterwards."""
    previous = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


@contextlib.contextmanager
def changed_environment(
    variables: Mapping[str, str], restored: Sequence[str] = ()
) -> Iterator[None]:
    """Sets environment variables; afterwards restores them and those in `restored`."""
    before = {name: os.environ.get(name) for name in (*variables, *restored)}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


if __name__ == "__main__":
    guard(*sys.argv[1:])
