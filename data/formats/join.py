"""Joins rows of one exchange that are apart in the log, by id, in constant memory.

    def records(files, scratch):
        return joined_records(files, scratch, member_of)    # member_of(row) -> its id and side
    def parse(record):
        request_row, response_rows = record.payload

The rows go through a file (sqlite), because the halves of an exchange may be at the two ends of a
log of any size.
"""

import hashlib
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, NamedTuple

from outrider.data.exchange import Place, Record, Reject
from outrider.data.formats.rows import parse_row
from outrider.data.ingest.framing import Row, rows
from outrider.data.ingest.sources import LONGEST_LINE, LogFile

CACHE_KIB = 64 * 1024
WAITING_BYTES = 4 * 2**20
"""Size of the rows that are written together."""

ROW_OVERHEAD = 200
"""Memory of a row in addition to its bytes."""

MemberOf = Callable[[dict[str, Any]], tuple[str, str]]


class Member(NamedTuple):
    """One row of a group."""

    side: str
    """`request`, `response`, `chunk` (of a streamed response), or `rest`: a row without content."""
    place: Place
    row: bytes


def joined_records(
    files: Sequence[LogFile], scratch: Path, member_of: MemberOf
) -> Iterator[Record | Reject]:
    """Yields a record for each response with its request.

    `member_of` returns the id and side of a row, or raises `Reject`.
    """
    with Join(scratch) as join:
        for file in files:
            for number, row in rows(file):
                place = Place(file.name, number)
                try:
                    key, side = member_of(parse_row(row))
                except Reject as reject:
                    reject.place = place
                    yield reject
                else:
                    join.put(key, Member(side, place, row_bytes(row)))
        yield from join.records()


def row_bytes(row: Row | None) -> bytes:
    """A row as JSON bytes, whatever its file type."""
    return row if isinstance(row, bytes) else json.dumps(row, default=str).encode()


class Join:
    """The rows of the files of one format, by id."""

    def __init__(self, scratch: Path):
        self._folder = tempfile.TemporaryDirectory(dir=scratch)
        self._database = sqlite3.connect(
            Path(self._folder.name) / "rows.sqlite", isolation_level=None
        )
        # The file is useless after a crash, so it need not survive one.
        for pragma in (
            "journal_mode=OFF",
            "synchronous=OFF",
            "locking_mode=EXCLUSIVE",
            f"cache_size=-{CACHE_KIB}",
        ):
            self._database.execute(f"PRAGMA {pragma}")
        self._database.execute(
            "CREATE TABLE rows (key BLOB, side TEXT, file INTEGER, line INTEGER, row BLOB)"
        )
        self._files: dict[str, int] = {}
        self._waiting: list[tuple[bytes, str, int, int, bytes]] = []
        self._waiting_bytes = 0

    def __enter__(self) -> "Join":
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()
        self._folder.cleanup()

    def put(self, key: str, member: Member) -> None:
        """Stores one row under its id."""
        # A digest, because a logged id may have any length.
        digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        file = self._files.setdefault(member.place.file, len(self._files))
        self._waiting.append((digest, member.side, file, member.place.line, member.row))
        self._waiting_bytes += len(member.row) + ROW_OVERHEAD
        if self._waiting_bytes > WAITING_BYTES:
            self._write()

    def records(self) -> Iterator[Record | Reject]:
        """Yields a record or reject for every row; ids in order of their first row."""
        self._write()
        names = list(self._files)
        query = self._database.execute
        query("CREATE INDEX by_key ON rows (key)")
        query(
            "CREATE TABLE keys AS SELECT key, MIN(rowid) AS first, COUNT(*) AS members,"
            " SUM(LENGTH(row)) AS size FROM rows GROUP BY key ORDER BY first"
        )
        for key, first, count, size in query(
            "SELECT key, first, members, size FROM keys ORDER BY rowid"
        ):
            if size + count * ROW_OVERHEAD > LONGEST_LINE:
                file, line = query(
                    "SELECT file, line FROM rows WHERE rowid = ?", (first,)
                ).fetchone()
                detail = f"more than {LONGEST_LINE >> 20} MB under one id"
                yield Reject("line_too_long", detail, Place(names[file], line), rows=count)
                continue
            found = query(
                "SELECT side, file, line, row FROM rows WHERE key = ? ORDER BY rowid", (key,)
            )
            yield from _records(
                [Member(side, Place(names[file], line), row) for side, file, line, row in found]
            )

    def _write(self) -> None:
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", self._waiting)
        self._database.execute("COMMIT")
        self._waiting.clear()
        self._waiting_bytes = 0


def _records(members: list[Member]) -> Iterator[Record | Reject]:
    """Yields the records of one id.

    Batches may number their requests from 1 again: where an id has several requests, each folder is
    joined separately.
    """
    if len({member.row for member in members if member.side == "request"}) <= 1:
        yield from _pairs(members)
        return
    folders: dict[str, list[Member]] = {}
    for member in members:
        folders.setdefault(str(PurePosixPath(member.place.file).parent), []).append(member)
    for together in folders.values():
        if len({member.row for member in together if member.side == "request"}) <= 1:
            yield from _pairs(together)
        else:
            # It is unknown which request a response answers.
            yield Reject(
                "ambiguous_id",
                "different requests under one id",
                together[0].place,
                rows=len(together),
            )


def _pairs(members: list[Member]) -> Iterator[Record | Reject]:
    """Yields every response with a request; equal requests were sent again and count once."""
    requests = [member for member in members if member.side == "request"]
    chunks = [member for member in members if member.side == "chunk"]
    responses = [[member] for member in members if member.side == "response"] or (
        [chunks] if chunks else []
    )
    for number, response in enumerate(responses):
        used = len(response) + (number < len(requests))
        if number == 0:  # with the rest: chunks of a whole response, ends of streams
            used = len(members) - max(len(responses) - 1, 0) - max(len(requests) - 1, 0)
        request = requests[0].row if requests else None
        yield Record(
            response[0].place, (request, tuple(member.row for member in response)), rows=used
        )
    for unmatched in requests[len(responses) :]:
        yield Reject("unmatched_request", "no response with its id", unmatched.place)
    rest = [member for member in members if member.side == "rest"]
    if rest and not responses:
        yield Reject(
            "unmatched_response",
            "the end of a stream without the stream",
            rest[0].place,
            rows=len(rest),
        )
