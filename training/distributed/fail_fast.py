"""One process's failure ends all, within seconds and with that one's message, whatever launched them.

    watch(out_dir, rank)                                      # in every worker, at its start
    leave_error(out_dir, rank, "disk full", 1, expected=True)     # in the one that fails
    errors = read_errors(out_dir)                             # in the launcher: the one to tell first

A process that fails leaves `error.rankR.json` beside the checkpoints. The others may sit in a collective that never ends (NCCL)
or have swallowed the launcher's SIGTERM, which means "write a checkpoint and stop" to them: a thread of each looks for such files
and ends its process a few seconds after one has appeared.
"""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.training.distributed.spec import Preempted

EVERY_S = 0.5
GRACE_S = 5.0
"""What a process may take to fail by itself, and to say how, after another has."""

_CONSEQUENCE_S = 1.0
"""When one rank fails the others fail of its absence, often first: this long they wait to learn whose fault it was."""


@dataclass(frozen=True)
class RankError:
    """How a process ended. `expected`: its message says what to do; otherwise it may be a mere consequence."""

    rank: int
    message: str
    exit_code: int
    expected: bool
    at: float


def leave_error(out_dir: Path, rank: int, message: str, exit_code: int, expected: bool) -> None:
    """Tells the launcher and the other processes."""
    error = RankError(rank, message, exit_code, expected, time.time())
    write_json(out_dir / f"error.rank{rank}.json", vars(error))


def error_files(out_dir: Path) -> list[Path]:
    """What processes have left, by rank's name."""
    return sorted(out_dir.glob("error.rank*.json"))


def read_errors(out_dir: Path) -> list[RankError]:
    """Those with advice first, then by time: the first is the one to tell."""
    errors = [RankError(**read_json(path)) for path in error_files(out_dir)]
    return sorted(errors, key=lambda error: (not error.expected, error.at))


def describe(errors: list[RankError], processes: int) -> str:
    """The first error, its rank where there are several, and the ranks that ended without a word if it may be due to them."""
    first = errors[0]
    if processes == 1:
        return first.message
    message = f"rank {first.rank}: {first.message}"
    silent = sorted(set(range(processes)) - {error.rank for error in errors})
    if silent and not first.expected:
        names = ", ".join(map(str, silent))
        message += (
            f" (rank {names} left no message: perhaps killed, for want of memory; see train.log)"
        )
    return message


def another_rank(out_dir: Path, rank: int) -> int | None:
    """The rank whose expected error makes this one's failure a consequence, if there is one within a second."""
    deadline = time.monotonic() + _CONSEQUENCE_S
    while True:
        causes = [error.rank for error in _failures(out_dir, rank) if error.expected]
        if causes or time.monotonic() > deadline:
            return causes[0] if causes else None
        time.sleep(0.1)


def watch(out_dir: Path, rank: int) -> None:
    """Starts the thread that ends this process after another one's failure."""

    def look() -> None:
        while not (failures := _failures(out_dir, rank)):
            time.sleep(EVERY_S)
        time.sleep(GRACE_S)
        # So that this rank is not taken for one that was killed.
        leave_error(
            out_dir,
            rank,
            f"ended because rank {failures[0].rank} did",
            OutriderError.exit_code,
            expected=False,
        )
        os._exit(OutriderError.exit_code)

    threading.Thread(target=look, name="peers", daemon=True).start()


def _failures(out_dir: Path, rank: int) -> list[RankError]:
    """Of other ranks; to be asked to stop is none, as everyone stops by itself."""
    return [
        error
        for error in read_errors(out_dir)
        if error.rank != rank and error.exit_code != Preempted.exit_code
    ]
