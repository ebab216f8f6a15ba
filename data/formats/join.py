"""Joins the separate rows of an exchange by id, in constant memory.

    def records(files, scratch):
        return joined_records(files, scratch, member_of)    # member_of(row) -> id, side
    def parse(record):
        request_row, response_rows = record.payload

The rows go through an SQLite file, because the halves of an exchange may be at opposite ends of a
log of any size. The file has no name, so no raw row stays on the disk if the process is killed.
"""

import contextlib
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from outrider.common.files import SCRATCH
from outrider.data.exchange import DUPLICATE, Place, Record, Reject
from outrider.data.files.rows import Row, rows
from outrider.data.files.sources import LONGEST_LINE, LogFile, read_ahead

ROW_OVERHEAD = 200
"""Memory that a row takes in addition to its content, in bytes."""


class Member(NamedTuple):
    """One of several rows that share an id."""

    side: str
    """`request`, `response`, or `chunk` of a streamed response."""
    place: Place
    row: bytes


def joined_records(
    files: Sequence[LogFile], scratch: Path, member_of: Callable[[Row | None], tuple[str, str]]
) -> Iterator[Record | Reject]:
    """Yields responses with their requests, ordered by each id's first row.

    `member_of` returns the id and side of a row, or raises a `Reject` for that row.
    """
    with contextlib.closing(_database(scratch)) as database:
        database.execute("CREATE TABLE rows (key TEXT, side TEXT, file INT, line INT, row BLOB)")
        for index, file in enumerate(read_ahead(files)):
            for number, row in rows(file):
                try:
                    key, side = member_of(row)
                except Reject as reject:
                    reject.place = Place(file.name, number)
                    yield reject
                    continue
                # Table rows are converted to JSON; `member_of` has rejected rows that are None.
                content = row if isinstance(row, bytes) else json.dumps(row, default=str).encode()
                values = (key, side, index, number, content)
                database.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", values)
        database.execute("CREATE INDEX by_key ON rows (key)")
        for key, first, count, size in database.execute(
            "SELECT key, MIN(rowid) AS first, COUNT(*), SUM(LENGTH(row)) FROM rows GROUP BY key"
            " ORDER BY first"
        ):
            is_large = size + ROW_OVERHEAD * count > LONGEST_LINE
            joined_rows = database.execute(
                "SELECT side, file, line, row FROM rows WHERE "
                + ("rowid = ?" if is_large else "key = ? ORDER BY rowid"),
                (first if is_large else key,),
            )
            members = [
                Member(side, Place(files[at].name, line), row)
                for side, at, line, row in joined_rows
            ]
            if is_large:
                detail = f"more than {LONGEST_LINE >> 20} MB under one id"
                yield Reject("line_too_long", detail, members[0].place, rows=count)
            else:
                yield from _records(members)


def _database(folder: Path) -> sqlite3.Connection:
    """Opens an empty database in a file whose name in `folder` is removed."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=SCRATCH) as file:  # mode 0600
        database = sqlite3.connect(file.name)
    # The file is useless after a crash, so it needs no journal, which would have a name.
    database.execute("PRAGMA journal_mode=OFF")
    return database


def _records(members: list[Member]) -> Iterator[Record | Reject]:
    """Yields the records of one id.

    If an id has different requests, each folder is joined separately, since batches may each number
    their requests from 1.
    """
    folders: dict[str, list[Member]] = {"": members}
    if _is_ambiguous(members):
        folders = {}
        for member in members:
            folders.setdefault(str(PurePosixPath(member.place.file).parent), []).append(member)
    for together in folders.values():
        if _is_ambiguous(together):  # it is unknown which request a response answers
            place = together[0].place
            count = len(together)
            yield Reject("ambiguous_id", "different requests under one id", place, rows=count)
        else:
            yield from _pairs(together)


def _is_ambiguous(members: Iterable[Member]) -> bool:
    return len({member.row for member in members if member.side == "request"}) > 1


def _pairs(members: list[Member]) -> Iterator[Record | Reject]:
    """Yields each response with its request; further requests are copies of it."""
    requests, whole, chunks = (
        [member for member in members if member.side == side]
        for side in ("request", "response", "chunk")
    )
    responses = [[member] for member in whole] or ([chunks] if chunks else [])
    for number, response in enumerate(responses):
        used = len(response) + (number < len(requests))
        if number == 0:  # includes the chunks of a response that was also logged whole
            used = len(members) - max(len(responses) - 1, 0) - max(len(requests) - 1, 0)
        payload = (requests[0].row if requests else None, tuple(member.row for member in response))
        yield Record(response[0].place, payload, rows=used)
    for number, extra in enumerate(requests[len(responses) :], start=len(responses)):
        if number:
            yield Reject(DUPLICATE, "a copy of another row's request", extra.place)
        else:
            yield Reject("unmatched_request", "no response with this id", extra.place)
