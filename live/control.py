"""One controller at a time, and how another command reaches it: files, no network service.

    with controlling(endpoint.state_dir): ...             # or an `OutriderError` with the holder
    ask(endpoint.state_dir, "roll_back", by="operator")   # read by the controller in its next look
    take_request(endpoint.state_dir)

Whoever may write to `state_dir` may control the endpoint; it is private to its user.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal, cast

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.common.process_tree import wait_until

_LOCK = "controller.lock"
_REQUEST = "request.json"


class InControl(OutriderError):
    """Another process controls the endpoint."""

    def __init__(self, state_dir: Path, pid: object) -> None:
        super().__init__(
            f"{state_dir}: process {pid} is deploying to this endpoint; wait for it, or end its"
            " deployment with --rollback or --promote"
        )
        self.pid = pid


@dataclasses.dataclass(frozen=True)
class Request:
    """What a person wants of the deployment in progress."""

    action: Literal["promote", "roll_back"]
    by: str


@contextlib.contextmanager
def controlling(state_dir: Path) -> Iterator[None]:
    """Holds the lock of the endpoint; the kernel releases it when this process ends."""
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (state_dir / _LOCK).open("a+", encoding="utf-8") as file:
        # More than once: `controller` holds the lock for a moment to see whether it is free.
        if not wait_until(lambda: _locks(file), 0.3):
            raise InControl(state_dir, _holder(state_dir) or "unknown")
        file.truncate(0)
        # The disk may be full: the lock holds without the name of its holder.
        with contextlib.suppress(OSError):
            file.write(json.dumps({"pid": os.getpid()}))
            file.flush()
        yield
        file.truncate(0)


def controller(state_dir: Path) -> int | None:
    """Process id of the controller; None where there is none."""
    try:
        with (state_dir / _LOCK).open("r", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        return _holder(state_dir) or 0
    return None


def ask(state_dir: Path, action: Literal["promote", "roll_back"], by: str) -> None:
    """Leaves a request for the controller."""
    write_json(state_dir / _REQUEST, {"action": action, "by": by}, private=True)


def take_request(state_dir: Path) -> Request | None:
    """The request that was left, if there is one; it stays until `clear_request`."""
    path = state_dir / _REQUEST
    if not path.is_file():
        return None
    values = read_json(path)
    if values.get("action") not in ("promote", "roll_back"):
        raise OutriderError(f"{path}: action: expected promote or roll_back; delete the file")
    return Request(cast(Literal["promote", "roll_back"], values["action"]), str(values.get("by")))


def clear_request(state_dir: Path) -> None:
    """Removes the request."""
    (state_dir / _REQUEST).unlink(missing_ok=True)


def _locks(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(state_dir: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((state_dir / _LOCK).read_text())["pid"])
    return None
