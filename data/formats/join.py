"""Joins rows of one exchange that are apart in the log, by id, in constant memory.

    def records(files, scratch):
        return joined_records(files, scratch, member_of)    # member_of(row, ...) -> id, side, bytes
    def parse(record):
        request_row, response_rows = record.payload

The rows go through a file (sqlite), because the halves of an exchange may be at the two ends of a
log of any size.
"""

import contextlib
import hashlib
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from outrider.data.exchange import Place, Record, Reject
from outrider.data.formats.framing import Row, rows
from outrider.data.formats.sources import LONGEST_LINE, LogFile

SETTINGS = (
    # The file is useless after a crash, so it need not survive one.
    *("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE"),
    f"cache_size=-{64 * 1024}",  # KiB
)

ROW_OVERHEAD = 200
"""Memory of a row in addition to its bytes."""

MemberOf = Callable[[Row | None, str | None], tuple[str, str, bytes]]
"""The id, side and bytes of a row; its second argument is the id of the file's row before it."""


class Member(NamedTuple):
    """One row of a group."""

    side: str
    """`request`, `response`, `chunk` (of a streamed response), or `rest`: a row without content."""
    place: Place
    row: bytes


def joined_records(
    files: Sequence[LogFile], scratch: Path, member_of: MemberOf
) -> Iterator[Record | Reject]:
    """Yields a record for each response with its request, ids in order of their first row.

    `member_of` may raise `Reject`, which is then the outcome of that row.
    """
    with (
        tempfile.TemporaryDirectory(dir=scratch) as folder,
        contextlib.closing(sqlite3.connect(Path(folder) / "rows.sqlite")) as database,
    ):
        for setting in SETTINGS:
            database.execute(f"PRAGMA {setting}")
        database.execute("CREATE TABLE rows (key BLOB, side TEXT, file INT, line INT, row BLOB)")
        for index, file in enumerate(files):
            key = None
            for number, row in rows(file):
                try:
                    key, side, content = member_of(row, key)
                except Reject as reject:
                    reject.place = Place(file.name, number)
                    yield reject
                    continue
                # A digest, because a logged id may have any length.
                digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16)
                values = (digest.digest(), side, index, number, content)
                database.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", values)
        database.commit()
        for members in _groups(database, [file.name for file in files]):
            yield from members if isinstance(members, tuple) else _records(members)


def row_bytes(row: Row | None) -> bytes:
    """A row as JSON bytes, whatever its file type."""
    return row if isinstance(row, bytes) else json.dumps(row, default=str).encode()


def _groups(
    database: sqlite3.Connection, names: list[str]
) -> Iterator[list[Member] | tuple[Reject]]:
    """The members of each id, or a reject where they are more than one exchange can hold."""
    database.execute("CREATE INDEX by_key ON rows (key)")
    database.execute(
        "CREATE TABLE keys AS SELECT key, MIN(rowid) AS first, COUNT(*) AS members,"
        " SUM(LENGTH(row)) AS size FROM rows GROUP BY key ORDER BY first"
    )
    keys = database.execute("SELECT key, first, members, size FROM keys ORDER BY rowid")
    for key, first, count, size in keys:
        if size + count * ROW_OVERHEAD > LONGEST_LINE:
            found = database.execute("SELECT file, line FROM rows WHERE rowid = ?", (first,))
            ((file, line),) = found
            detail = f"more than {LONGEST_LINE >> 20} MB under one id"
            yield (Reject("line_too_long", detail, Place(names[file], line), rows=count),)
            continue
        found = database.execute(
            "SELECT side, file, line, row FROM rows WHERE key = ? ORDER BY rowid", (key,)
        )
        yield [Member(side, Place(names[file], line), row) for side, file, line, row in found]


def _records(members: list[Member]) -> Iterator[Record | Reject]:
    """Yields the records of one id.

    Batches may number their requests from 1 again: where an id has several requests, each folder is
    joined separately.
    """
    if not _is_ambiguous(members):
        yield from _pairs(members)
        return
    folders: dict[str, list[Member]] = {}
    for member in members:
        folders.setdefault(str(PurePosixPath(member.place.file).parent), []).append(member)
    for together in folders.values():
        if _is_ambiguous(together):  # it is unknown which request a response answers
            place, count = together[0].place, len(together)
            yield Reject("ambiguous_id", "different requests under one id", place, rows=count)
        else:
            yield from _pairs(together)


def _is_ambiguous(members: Iterable[Member]) -> bool:
    return len({member.row for member in members if member.side == "request"}) > 1


def _pairs(members: list[Member]) -> Iterator[Record | Reject]:
    """Yields every response with a request; equal requests were sent again and count once."""
    requests = [member for member in members if member.side == "request"]
    chunks = [member for member in members if member.side == "chunk"]
    responses = [[member] for member in members if member.side == "response"]
    if chunks and not responses:
        responses = [chunks]
    for number, response in enumerate(responses):
        used = len(response) + (number < len(requests))
        if number == 0:  # with the rest: chunks of a whole response, ends of streams
            used = len(members) - max(len(responses) - 1, 0) - max(len(requests) - 1, 0)
        request = requests[0].row if requests else None
        payload = (request, tuple(member.row for member in response))
        yield Record(response[0].place, payload, rows=used)
    for unmatched in requests[len(responses) :]:
        yield Reject("unmatched_request", "no response with its id", unmatched.place)
    rest = [member for member in members if member.side == "rest"]
    if rest and not responses:
        detail = "the end of a stream without the stream"
        yield Reject("unmatched_response", detail, rest[0].place, rows=len(rest))
