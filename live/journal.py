"""The journal of a live endpoint: records changes before they are made.

    journal = Journal(state_dir / "journal.jsonl", State())
    state = journal.append("swap", replica="b", release="4f1d0c2a9b77")  # once it is on disk
    state.serving, journal.read().serving

An append-only file of JSON lines. Its readers fold the entries into a state: live/state.py those of
deployments, adapt/state.py those of adaptation. A state never changes: `append` and `read` return
the state after the entries so far.

`append` locks the file, reads what other processes have appended, writes a line and syncs it. A
process that is killed leaves at most an incomplete last line: readers skip it, and the next writer
cuts it off.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

from outrider.common.errors import OutriderError
from outrider.common.files import says_disk_is_full, sync
from outrider.common.json_forms import Form, validate_form


@dataclass(frozen=True)
class Entry:
    """One line of the journal."""

    n: int
    """Line number, from 1."""
    at: float
    """Unix time in seconds."""
    event: str
    facts: Mapping[str, object]
    """Other facts about the event, without customer text; the reading states name their types."""


class FoldedState(Protocol):
    """An immutable state that is computed from the entries."""

    def add(self, entry: Entry) -> Self:
        """Returns the state after `entry`; ignores the events of other states."""
        ...


AnyState = TypeVar("AnyState", bound=FoldedState)


class Journal(AbstractContextManager["Journal[AnyState]"], Generic[AnyState]):
    """The journal, open for writing."""

    def __init__(
        self,
        path: Path,
        initial: AnyState,
        clock: Callable[[], float] = time.time,
        listener: Callable[[AnyState], None] = lambda state: None,
    ) -> None:
        """`initial`: the state before the first entry.

        `listener` is called with the first state and after each `append`. The folder is created
        with mode 700; raises an `OutriderError` if other users have access.
        """
        self.path = Path(path)
        self._clock = clock
        self._listener = listener
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.stat().st_mode & 0o077:
            raise OutriderError(
                f"{folder}: other users may read or write here, and so control the endpoint; run"
                f" chmod 700 {folder}"
            )
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        sync(folder)  # makes the new file's directory entry durable
        self.entries: list[Entry] = []
        """All entries read so far, oldest first."""
        self._state = initial
        self._end = 0
        listener(self.read())

    def read(self) -> AnyState:
        """Returns the state after all entries, including those of other processes."""
        # Without the lock: a line that is still being written is read by the next call.
        length = os.fstat(self._file).st_size - self._end
        content = os.pread(self._file, length, self._end)
        entries, parsed_length = _parse(content, len(self.entries), self.path)
        for entry in entries:
            self._state = state_after(self._state, entry, self.path)
        self.entries += entries
        self._end += parsed_length
        return self._state

    def append(self, event: str, **facts: object) -> AnyState:
        """Adds an entry; returns the state after it once it is on disk.

        On failure the journal is unchanged; raises an `OutriderError` if the disk is full.
        """
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            self.read()
            values = {"at": self._clock(), "event": event, **facts}
            line = json.dumps(values, ensure_ascii=False, allow_nan=False).encode() + b"\n"
            os.ftruncate(self._file, self._end)  # cuts off a killed process's incomplete line
            try:
                self._write(line)
            except OSError as error:
                os.ftruncate(self._file, self._end)  # a whole line that was not synced, too
                if not says_disk_is_full(error):
                    raise
                raise OutriderError(
                    f"{self.path}: no space left on the disk, so nothing can be changed; free some"
                    " and run `outrider deploy --endpoint NAME --recover`"
                ) from error
            state = self.read()
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._listener(state)
        return state

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def _write(self, line: bytes) -> None:
        # At an offset, not in append mode, which would continue a torn line. Writes may be partial.
        written = 0
        while written < len(line):
            written += os.pwrite(self._file, line[written:], self._end + written)
        os.fsync(self._file)


def facts_as(form: type[Form], entry: Entry) -> Form:
    """Returns an entry's facts as a `form`; raises a `ValueError` if they have another form."""
    return validate_form(form, entry.facts)


def state_after(state: AnyState, entry: Entry, path: Path) -> AnyState:
    """Returns the state after an entry; raises an `OutriderError` if the entry lacks facts."""
    try:
        return state.add(entry)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise OutriderError(
            f"{path}: line {entry.n}: the facts of {entry.event!r:.50} are not those that this"
            f" Outrider writes ({error!r:.100}); restore the file from a backup"
        ) from None


def read_journal(path: Path) -> list[Entry]:
    """Reads a journal that another process may be writing; empty if missing."""
    if not path.is_file():
        return []
    entries, _ = _parse(path.read_bytes(), 0, path)
    return entries


def _parse(content: bytes, known: int, path: Path) -> tuple[list[Entry], int]:
    """Parses `content`, preceded by `known` lines; also returns the entries' byte count."""
    entries: list[Entry] = []
    end = 0
    for number, line in enumerate(content.splitlines(keepends=True), known + 1):
        try:
            values = json.loads(line) if line.endswith(b"\n") else {}
            at = float(values.pop("at"))
            entries.append(Entry(number, at, str(values.pop("event")), values))
        # Not JSON, not an object, without a time, or nested too deeply.
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
            if end + len(line) < len(content):
                raise OutriderError(
                    f"{path}: line {number} is broken, and it is not the last one: restore the file"
                    " from a backup; or move it away, and the next deployment starts from what the"
                    " replicas serve"
                ) from None
            break
        end += len(line)
    return entries, end
