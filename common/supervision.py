"""Runs a command as a supervised child process and handles signals for it.

    status = run_supervised([sys.executable, "-m", "some.module"], Path("log"), dict(os.environ))

The child runs in its own process group with its output in a log. Nothing that it starts outlives
it, after success, a crash, Ctrl-C, SIGTERM or `kill -9` of this process (process_tree.py).
"""

import contextlib
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from outrider.common.process_tree import ProcessTree, wait_until

TERMINAL_DESCRIPTOR = "OUTRIDER_TERMINAL_DESCRIPTOR"
"""Environment variable: the descriptor of the terminal, for progress. The child's stdout and stderr
are the log."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that stop a run."""


class Interrupted(Exception):
    """A signal stopped this run; the same command resumes it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 130 if number == signal.SIGINT else 75


def run_supervised(argv: list[str], log: Path, environment: dict[str, str]) -> int:
    """Runs `argv` to its end with its output in `log`; returns its exit status.

    The first signal is passed to the child as SIGTERM; a second one ends all processes. Raises
    `Interrupted` after a signal.
    """
    received: list[int] = []
    with contextlib.ExitStack() as stack:
        try:
            terminal = os.dup(sys.stderr.fileno())
        except OSError:  # a notebook's stderr has no descriptor; the kernel shows what 2 gets
            terminal = os.dup(2)
        stack.callback(os.close, terminal)
        log.touch(mode=0o600)
        output = stack.enter_context(log.open("ab"))
        stack.enter_context(signal_handlers(lambda number, _: received.append(number)))
        tree = stack.enter_context(ProcessTree())
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment | {TERMINAL_DESCRIPTOR: str(terminal)} | tree.environment,
            pass_fds=(terminal,),
            process_group=0,
        )
        wait_until(lambda: received or process.poll() is not None, math.inf)
        if received:
            print(
                "stopping; completed work is kept (Ctrl-C again to stop at once)",
                file=sys.stderr,
                flush=True,
            )
            process.terminate()
            wait_until(lambda: len(received) > 1 or process.poll() is not None, math.inf)
    status = process.wait()
    if received:
        raise Interrupted(received[0])
    return status


@contextlib.contextmanager
def stopped_by_signal() -> Iterator[None]:
    """Inside, a signal raises `Interrupted`, so that temporary files are removed."""

    def stop(number: int, _: object) -> None:
        raise Interrupted(number)

    with signal_handlers(stop):
        yield


@contextlib.contextmanager
def signal_handlers(
    handler: Callable[[int, Any], object], signals: Sequence[signal.Signals] = SIGNALS
) -> Iterator[None]:
    """Inside, `handler` gets the signals; the previous handlers come back afterwards."""
    previous = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
