"""Tails a log: cuts new rows into slices, from a stored position.

    unread = find_unread("logs/", position)                 # position: {} reads from the beginning
    if unread_rows(unread) >= 500:
        position |= cut_window(unread, 500, Path("windows/000003/log"))

A slice is a folder of files that the ingest reads like any log. Line-based files are cut between
lines; an incomplete last line is left for later. The position of such a file is a number of bytes,
keyed by a digest of the file's first line. So a file keeps its position if log rotation renames or
compresses it, and counts as new if it was truncated. If several files have the same first line,
such as a file and its compressed copy, the one with the most unread rows is read.

Some exchanges have their halves in different slices; the ingest leaves them out and counts them as
`beyond_first`.

Compressed files are read after `SETTLED_S` without a change. So are Parquet and Arrow files
and JSON arrays, which are read whole, so a slice may have more rows than requested.
"""

import hashlib
import itertools
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from outrider.common.files import publish
from outrider.common.fingerprint import value_digest
from outrider.data.files.packing import HEAD, archive_of
from outrider.data.files.rows import count_rows, framing
from outrider.data.files.sources import CHUNK, LogFile, log_files
from outrider.data.formats import files_by_format, without_others

SETTLED_S = 60.0
"""Seconds without a change after which a file counts as complete."""

Position = dict[str, int]
"""By file key: uncompressed bytes read (line-based files) or rows read (all other files)."""


@dataclass(frozen=True)
class UnreadRows:
    """The unread rows of one file."""

    file: LogFile
    key: str
    start: int
    """Number of bytes already read; 0 for a file that is read whole."""
    rows: int
    whole: bool = False


def find_unread(path: str | list[str], position: Mapping[str, int]) -> list[UnreadRows]:
    """Returns the files of `traffic.path` with rows after `position`."""
    by_key: dict[str, UnreadRows] = {}
    for file in without_others(log_files(path)):
        unread_file = _unread_of(file, position)
        # A rotated copy has the same first line; the longer one has all rows of both.
        if unread_file is not None and (
            unread_file.key not in by_key or by_key[unread_file.key].rows < unread_file.rows
        ):
            by_key[unread_file.key] = unread_file
    return list(by_key.values())


def unread_rows(unread: Sequence[UnreadRows]) -> int:
    """Returns the number of unread rows in all files."""
    return sum(unread_file.rows for unread_file in unread)


def cut_window(
    unread: Sequence[UnreadRows], row_limit: int, out_dir: Path, skipped: int = 0
) -> Position:
    """Publishes the next `row_limit` rows in `out_dir`; returns the position after them.

    Each file contributes in proportion to its unread rows. The first `skipped` rows, divided among
    the files in the same way, are left out. Only the owner can read the files of the slice.
    """
    total = unread_rows(unread)
    after: Position = {}
    with publish(out_dir) as folder:
        # Closed to others from the start: the files get their own mode only when they are whole.
        folder.mkdir(mode=0o700)
        passed = taken = 0
        before = 0
        for number, unread_file in enumerate(unread):
            before += unread_file.rows
            # Differences of rounded running sums, so that the shares add up.
            skip = min(round(skipped * before / total) - passed, unread_file.rows)
            take = min(
                round(min(row_limit, total - skipped) * before / total) - taken, unread_file.rows
            )
            passed = passed + skip
            taken = taken + take
            path = folder / f"slice-{number:03d}.log"
            if unread_file.whole:
                with unread_file.file.stored() as content, path.open("wb") as out:
                    shutil.copyfileobj(content, out, CHUNK)
                after[unread_file.key] = unread_file.rows
            elif skip or take:
                with (
                    _content(unread_file.file, unread_file.start) as content,
                    path.open("wb") as out,
                ):
                    skip_bytes = sum(map(len, itertools.islice(content, skip)))
                    out.writelines(itertools.islice(content, min(take, unread_file.rows - skip)))
                    after[unread_file.key] = unread_file.start + skip_bytes + out.tell()
        for path in folder.iterdir():
            path.chmod(0o600)
    return after


def end_of(unread: Sequence[UnreadRows]) -> Position:
    """Returns the position after all unread rows, for tailing only later ones."""
    position: Position = {}
    for unread_file in unread:
        with _content(unread_file.file, unread_file.start) as content:
            read = (
                0
                if unread_file.whole
                else sum(map(len, itertools.islice(content, unread_file.rows)))
            )
        position[unread_file.key] = (
            unread_file.rows if unread_file.whole else unread_file.start + read
        )
    return position


def _unread_of(file: LogFile, position: Mapping[str, int]) -> UnreadRows | None:
    with file.open() as content:
        head = content.peek(HEAD)
        is_packed = not content.seekable()
        in_lines = framing(head) == "lines" and not archive_of(head)
    if not in_lines:
        if not _settled(file):
            return None
        key = f"whole {value_digest(file.identity())}"
        count = 0 if key in position else _rows_of(file)
        return UnreadRows(file, key, 0, count, whole=True) if count else None
    if is_packed and not _settled(file):
        return None
    first, end, _ = head.partition(b"\n")
    # The writer may be in the middle of the first line, which identifies the file: rotation changes
    # names, and a new file may get the name and inode of an old one.
    if not end and len(head) < HEAD:
        return None
    key = f"lines {hashlib.sha256(first + end).hexdigest()}"
    start = position.get(key, 0)
    with _content(file, start) as content:
        count = 0
        while chunk := content.read(CHUNK):
            # Only complete lines: the writer may be in the middle of the last one.
            count += chunk.count(b"\n")
    return UnreadRows(file, key, start, count) if count else None


def _rows_of(file: LogFile) -> int:
    """Counts the rows of a file that is read whole, or of an archive's files."""
    files_of = files_by_format([file], not_read=[])
    return sum(count_rows(part) for of_format in files_of.values() for part in of_format)


def _settled(file: LogFile) -> bool:
    """Whether a file is complete; only local files may still grow."""
    # Objects of a store appear when they are whole; S3's writes are atomic.
    path = Path(file.path)
    return not path.is_file() or time.time() - path.stat().st_mtime >= SETTLED_S


@contextmanager
def _content(file: LogFile, start: int) -> Iterator[IO[bytes]]:
    """Opens the decompressed content at byte `start`."""
    with file.open() as content:
        if content.seekable():
            content.seek(start)
        while not content.seekable() and start and (skipped := content.read(min(start, CHUNK))):
            start -= len(skipped)
        yield content
