"""The journal of a live endpoint: every change is on the disk before it is acted on.

    journal = Journal(state_dir / "journal.jsonl")
    journal.append("swap", replica="b", release="4f1d0c2a9b77")    # returns once it is on the disk
    for entry in journal.entries: ...

A file of JSON lines that only grows. `append` writes a line and syncs it. What a process that was
killed leaves is at most a torn last line: readers leave it out, and the next writer cuts it off.
One process may write (control.py holds the lock); any number may read.

A full disk must not keep a bad release in service. So the journal holds a reserve of disk blocks
in a second file, and gives them up when a line does not fit; `low_on_space` is True from then on,
until a later start could take the reserve again.
"""

import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import says_disk_is_full

VERSION = 1
_RESERVE_BYTES = 256 * 1024
"""Room for the lines of a rollback many times over."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line of the journal."""

    n: int
    """Its number, from 1."""
    at: float
    """Unix time in seconds."""
    event: str
    facts: dict[str, Any]
    """What else is known about the event; never text of a customer."""

    def line(self) -> bytes:
        """The entry as it is in the file."""
        values = {"v": VERSION, "n": self.n, "at": self.at, "event": self.event, **self.facts}
        return json.dumps(values, ensure_ascii=False, allow_nan=False).encode() + b"\n"


class Journal:
    """The journal, open for writing."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.time,
        listener: Callable[[Entry], None] | None = None,
    ) -> None:
        """`listener` gets every entry after it is on the disk.

        The folder is created privately; an `OutriderError` where others may use an existing one.
        """
        self.path, self._clock, self._listener = Path(path), clock, listener
        self._reserve = self.path.with_suffix(".reserve")
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.stat().st_mode & 0o077:
            raise OutriderError(
                f"{folder}: other users may read or write here, and so control the endpoint; run"
                f" chmod 700 {folder}"
            )
        self.entries, whole = _read(self.path)
        """All entries, the oldest first."""
        is_new = not self.path.exists()
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, whole)
        self._end = whole
        self.low_on_space = not self._take_reserve()
        """True while the reserve could not be taken: nothing new should be begun."""
        if is_new:
            _sync_folder(folder)

    def append(self, event: str, **facts: Any) -> Entry:
        """Adds an entry and returns it when it is on the disk.

        An `OutriderError` where the disk is full and the reserve is used up; the journal is then
        as it was.
        """
        entry = Entry(len(self.entries) + 1, self._clock(), event, facts)
        line = entry.line()
        try:
            self._write(line)
        except OSError as error:
            self._undo()
            if not says_disk_is_full(error):
                raise
            self._give_up_reserve()
            try:
                self._write(line)
            except OSError as again:
                self._undo()
                raise OutriderError(
                    f"{self.path}: no space left on the disk, so nothing can be changed; free some"
                    " and run `deploy-speculator --recover`"
                ) from again
        self._end += len(line)
        self.entries.append(entry)
        if self._listener is not None:
            self._listener(entry)
        return entry

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        written = 0
        while written < len(line):
            written += os.pwrite(self._file, line[written:], self._end + written)
        os.fsync(self._file)

    def _undo(self) -> None:
        os.ftruncate(self._file, self._end)

    def _take_reserve(self) -> bool:
        """Whether the reserve's blocks are allocated."""
        descriptor = os.open(self._reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _RESERVE_BYTES)
        except OSError as error:
            os.ftruncate(descriptor, 0)
            if not says_disk_is_full(error):
                raise
            return False
        finally:
            os.close(descriptor)
        return True

    def _give_up_reserve(self) -> None:
        self._reserve.unlink(missing_ok=True)
        self.low_on_space = True


def read_journal(path: Path) -> list[Entry]:
    """The entries of a journal that another process may be writing; none where there is no file."""
    return _read(Path(path))[0]


def _read(path: Path) -> tuple[list[Entry], int]:
    """The entries, and how many bytes of the file they are."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    entries: list[Entry] = []
    end = 0
    for line in content.splitlines(keepends=True):
        entry = _parse(line) if line.endswith(b"\n") else None
        if entry is None:
            if end + len(line) < len(content):
                raise OutriderError(
                    f"{path}: line {len(entries) + 1} is broken, and it is not the last one:"
                    " restore the file from a backup; or move it away, and the next deployment"
                    " starts from what the replicas serve"
                )
            break
        _check(entry, len(entries) + 1, path, line)
        entries.append(entry)
        end += len(line)
    return entries, end


def _parse(line: bytes) -> Entry | None:
    """None for a line that was not written whole."""
    try:
        values = json.loads(line)
        number, at, event = int(values.pop("n")), float(values.pop("at")), values.pop("event")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return Entry(number, at, event, values)


def _check(entry: Entry, number: int, path: Path, line: bytes) -> None:
    version = entry.facts.pop("v", None)
    if version != VERSION:
        raise OutriderError(
            f"{path}: line {number} has version {version}, but this Outrider reads {VERSION};"
            " use the Outrider that wrote it"
        )
    if entry.n != number:
        raise OutriderError(
            f"{path}: line {number} has the number {entry.n}: lines are missing or were added;"
            " restore the file from a backup"
        )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
