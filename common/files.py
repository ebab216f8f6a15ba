"""Atomic publication of files and folders, and locks between processes.

with publish(path) as temporary: temporary.write_bytes(...)     # readers see all of it, or nothing
with lock(folder / ".lock", "uses this run"): ...               # one process at a time
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from outrider.common.errors import OutriderError

SCRATCH = ".scratch-"
"""Prefix of temporary files and folders that are not published."""


@contextlib.contextmanager
def publish(path: Path) -> Iterator[Path]:
    """Yields a temporary path; renames it to `path` on success.

    The file or directory is synced to disk before it replaces an existing one. On failure, the
    temporary path is removed and `path` is unchanged. Raises an `OutriderError` if the disk is
    full. Publishing a directory also removes temporary paths left by killed processes on this
    machine.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    process = f"{socket.gethostname()}.{os.getpid()}"
    temporary = path.with_name(f".{path.name}.{process}.tmp")
    remove(temporary)
    try:
        yield temporary
        _sync_tree(temporary)
        if temporary.is_dir():
            _remove_leftovers(path.parent)
        retired = path.with_name(f".{path.name}.{process}.old")
        remove(retired)
        if path.is_dir():  # a rename cannot replace it
            path.rename(retired)
        temporary.rename(path)
        remove(retired)
        sync(path.parent)
    except Exception as error:
        if says_disk_is_full(error):
            raise OutriderError(
                f"{path}: no space left on the disk; free some and run the same command again"
            ) from error
        raise
    finally:
        remove(temporary)


def says_disk_is_full(error: Exception) -> bool:
    """Whether the error means a full disk, which safetensors reports as text."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "errno", None) in full or any(
        f"os error {code})" in str(error) for code in full
    )


def write_json(path: Path, value: Any, private: bool = False) -> None:
    """Publishes indented JSON; only the owner can read a `private` file."""
    with publish(path) as temporary:
        temporary.touch(mode=0o600 if private else 0o666)
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
        temporary.write_text(f"{text}\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Reads a JSON file; raises an `OutriderError` if missing or invalid."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of 5,000 digits, deep nesting
        raise OutriderError(f"{path}: not valid JSON ({error})") from None


def read_text(path: Path) -> str:
    """Reads a file of UTF-8; raises an `OutriderError` if missing or invalid."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise OutriderError(
            f"{path}: no such file; correct the path, or rerun the command that writes it"
        ) from None
    except UnicodeDecodeError as error:
        raise OutriderError(f"{path}: not valid UTF-8 ({error})") from None


class Locked(OutriderError):
    """Another process holds a lock."""


@contextlib.contextmanager
def lock(path: Path, doing: str) -> Iterator[None]:
    """Holds a lock file; the kernel releases it when this process ends.

    Raises `Locked` if another process holds it; the message ends with the holder's id and `doing`.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("a+", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # None: another process was just asking for the holder.
                if (process := lock_holder(path)) is not None:
                    raise Locked(f"{path.parent}: process {process} {doing}") from None
        file.truncate(0)
        # The lock is valid even without the holder's id, which cannot be written to a full disk.
        with contextlib.suppress(OSError):
            os.write(file.fileno(), b"%d" % os.getpid())  # unbuffered, or close() would retry
        yield


def lock_holder(path: Path) -> int | None:
    """Process id of a lock's holder: 0 if unknown, None if unlocked."""
    try:
        with path.open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        return int(path.read_text() or 0)
    return None


def link_or_copy(source: str | Path, destination: str | Path) -> None:
    """Creates a hard link (saves terabytes for R1), or else a copy."""
    try:
        os.link(source, destination)
    except OSError:
        shutil.copy2(source, destination)


def sync(path: Path) -> None:
    """Flushes a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(root: Path) -> None:
    """Removes all temporary paths below a locked folder, where no other process writes."""
    for pattern in (f"{SCRATCH}*", ".*.tmp", ".*.old"):
        for left in list(root.rglob(pattern)):
            remove(left)


def _remove_leftovers(folder: Path) -> None:
    """Removes temporary paths whose processes on this machine have ended."""
    for left in folder.glob(f".*.{socket.gethostname()}.*"):
        _, pid, ending = left.name.rsplit(".", 2)
        if ending in ("tmp", "old") and pid.isdigit() and not psutil.pid_exists(int(pid)):
            with contextlib.suppress(OSError):  # read-only releases cannot be removed
                remove(left)


def remove(path: Path) -> None:
    """Removes a file, link, or folder with its contents, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync_tree(path: Path) -> None:
    if path.is_dir():
        for child in path.iterdir():
            _sync_tree(child)
    sync(path)
