"""Fail fast across ranks: the failure of one rank ends all, with its message.

    watch(out_dir, rank)                                     # in every worker, at its start
    write_error(out_dir, rank, error_record("disk full", 1, expected=True))     # in the failing one
    errors = read_errors(out_dir)                            # in the launcher: root cause first

A failing rank writes `error.rankR.json` into the run directory, in the format of torchelastic's
error records (torch.distributed.elastic.multiprocessing.errors). Two things are ours. torchelastic
collects the records only under torchrun and only on one machine; deepspeed and srun collect none,
so the records are in the directory that all machines share. Its root cause is the earliest record
in whole seconds; a rank often fails within the same second because another one did, so the records
here also contain the exact time and whether the message is advice for the user.

The other ranks may wait in a collective that never ends (NCCL) or may have handled the launcher's
SIGTERM as the request to write a checkpoint and stop. A thread of each rank looks for records and
ends its process a few seconds after one appears.
"""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.training.distributed.spec import Preempted

EVERY_S = 0.5
"""Time between two looks for records, in seconds."""

GRACE_S = 5.0
"""Time for a rank to fail by itself, with its own message, after another one failed, in seconds."""

_CONSEQUENCE_S = 1.0
"""When one rank fails, the others fail because it is gone, often first. They wait this many seconds
for the record of the root cause."""


@dataclass(frozen=True)
class RankError:
    """How a rank failed. An `expected` message is advice; others may be mere consequences."""

    rank: int
    message: str
    exit_code: int
    expected: bool
    at: float
    """Seconds since the epoch."""


def error_record(
    message: str, exit_code: int, expected: bool, traceback: str | None = None
) -> dict[str, Any]:
    """torchelastic's record of a failure now, with the exact time and `expected` added."""
    now = time.time()
    extra = {"timestamp": str(int(now))}
    if traceback is not None:
        extra["py_callstack"] = traceback
    return {
        "message": {"message": message, "errorCode": exit_code, "extraInfo": extra},
        "expected": expected,
        "time": now,
    }


def write_error(out_dir: Path, rank: int, record: dict[str, Any]) -> None:
    """Publishes a rank's record for the launcher and the other ranks."""
    write_json(out_dir / f"error.rank{rank}.json", record)


def error_files(out_dir: Path) -> list[Path]:
    """The records in `out_dir`, by name."""
    return sorted(out_dir.glob("error.rank*.json"))


def read_errors(out_dir: Path) -> list[RankError]:
    """The root cause first: errors with advice, then the others, each by time."""
    errors = []
    for path in error_files(out_dir):
        record = read_json(path)
        message = record["message"]
        rank = int(path.name.removeprefix("error.rank").removesuffix(".json"))
        errors.append(
            RankError(
                rank, message["message"], message["errorCode"], record["expected"], record["time"]
            )
        )
    return sorted(errors, key=lambda error: (not error.expected, error.at))


def describe(errors: list[RankError], processes: int) -> str:
    """The first error with its rank, and the ranks without a record if they may be the cause."""
    first = errors[0]
    if processes == 1:
        return first.message
    message = f"rank {first.rank}: {first.message}"
    silent = sorted(set(range(processes)) - {error.rank for error in errors})
    if silent and not first.expected:
        names = ", ".join(map(str, silent))
        message += f" (rank {names} left no message: perhaps killed, out of memory)"
    return message


def root_cause(out_dir: Path, rank: int) -> int | None:
    """The rank whose expected error caused this rank's failure, if there is one in a second."""
    deadline = time.monotonic() + _CONSEQUENCE_S
    while True:
        causes = [error.rank for error in _other_failures(out_dir, rank) if error.expected]
        if causes or time.monotonic() > deadline:
            return causes[0] if causes else None
        time.sleep(0.1)


def watch(out_dir: Path, rank: int) -> None:
    """Starts the thread that ends this process after another rank's failure."""

    def look() -> None:
        while not (failures := _other_failures(out_dir, rank)):
            time.sleep(EVERY_S)
        time.sleep(GRACE_S)
        # Without a record this rank would count as killed.
        message = f"ended because rank {failures[0].rank} failed"
        code = OutriderError.exit_code
        write_error(out_dir, rank, error_record(message, code, expected=False))
        os._exit(code)

    threading.Thread(target=look, name="fail-fast", daemon=True).start()


def _other_failures(out_dir: Path, rank: int) -> list[RankError]:
    """Failures of other ranks. A request to stop is none: every rank gets it and stops itself."""
    return [
        error
        for error in read_errors(out_dir)
        if error.rank != rank and error.exit_code != Preempted.exit_code
    ]
