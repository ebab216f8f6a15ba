"""Fail fast across ranks: one rank's failure ends all ranks.

    watch(errors_dir, rank)                                  # in every worker, at its start
    write_error(errors_dir, RankError(rank, "disk full", 1, expected=True))    # in a failing rank
    errors = read_errors(errors_dir)                         # in the launcher: root cause first

torchelastic collects error records only under torchrun and only on one machine; deepspeed and srun
collect none. So a failing rank writes `error.rankR.json` into the run directory, which all machines
share. The other ranks may hang in an NCCL collective, so a thread in each rank polls for records
and ends its process a few seconds after one appears.
"""

import os
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.common.json_forms import read_form
from outrider.training.distributed.spec import Preempted

EVERY_S = 0.5
"""Interval between checks for records, in seconds."""

GRACE_S = 5.0
"""Seconds during which other ranks may still report their own failures."""


@dataclass(frozen=True)
class RankError:
    """A rank's failure.

    The message of an `expected` failure includes the fix. An unexpected failure may be just a
    consequence of another one.
    """

    rank: int
    message: str
    exit_code: int
    expected: bool
    at: float = field(default_factory=time.time)
    """Unix time of the failure, in seconds."""


def write_error(errors_dir: Path, error: RankError) -> None:
    """Publishes a rank's record for the launcher and the other ranks."""
    write_json(errors_dir / f"error.rank{error.rank}.json", asdict(error))


def error_files(errors_dir: Path) -> list[Path]:
    """Returns the records in a directory, sorted by name."""
    return sorted(errors_dir.glob("error.rank*.json"))


def read_errors(errors_dir: Path) -> list[RankError]:
    """Returns errors, root cause first: expected, then unexpected, each sorted by time."""
    errors = [read_form(RankError, path, "rerun the command") for path in error_files(errors_dir)]
    return sorted(errors, key=lambda error: (not error.expected, error.at))


def describe_rank_errors(errors: list[RankError], processes: int) -> str:
    """Describes the first error; names silent ranks that may be its cause."""
    first = errors[0]
    if processes == 1:
        return first.message
    message = f"rank {first.rank}: {first.message}"
    silent = sorted(set(range(processes)) - {error.rank for error in errors})
    if silent and not first.expected:
        names = ", ".join(map(str, silent))
        message += f" (rank {names} left no message: perhaps killed, out of memory)"
    return message


def watch(errors_dir: Path, rank: int) -> None:
    """Starts the thread that ends this process after another rank's failure.

    A request to stop is not a failure: every rank receives it and stops by itself.
    """

    def failed() -> list[int]:
        return [
            error.rank
            for error in read_errors(errors_dir)
            if error.rank != rank and error.exit_code != Preempted.exit_code
        ]

    def look() -> None:
        ranks = failed()
        while not ranks:
            time.sleep(EVERY_S)
            ranks = failed()
        time.sleep(GRACE_S)
        # Without a record, this rank would be counted as killed.
        message = f"ended because rank {ranks[0]} failed"
        write_error(errors_dir, RankError(rank, message, OutriderError.exit_code, expected=False))
        os._exit(OutriderError.exit_code)

    threading.Thread(target=look, name="fail-fast", daemon=True).start()
