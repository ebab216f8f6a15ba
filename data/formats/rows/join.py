"""Joins the separate rows of an exchange by id, in constant memory.

    def records(files, scratch):
        return joined_records(files, scratch, member_of)    # member_of(row) -> id, side, model
    def parse(record):
        request_row, response_rows = record.payload

The rows go through an SQLite file, because the halves of an exchange may be at opposite ends of a
log of any size. The file has no name, so no raw row stays on the disk if the process is killed.
"""

import contextlib
import json
import sqlite3
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from outrider.common.files import SCRATCH
from outrider.data.exchange import DUPLICATE, Place, Record, Reject
from outrider.data.files.rows import Row, read_rows
from outrider.data.files.sources import LONGEST_LINE, LogFile, read_ahead
from outrider.data.formats.rows.embedded import json_of

ROW_OVERHEAD = 200
"""Memory that a row takes in addition to its content, in bytes."""


class JoinRow(NamedTuple):
    """One of several rows that share an id."""

    side: str
    """`request`, `response`, or `chunk` of a streamed response; `message` of a conversation."""
    place: Place
    row: bytes
    model: str | None
    """Name of the model that the row asks or that answered, if it was logged."""


MemberOf = Callable[[Row | None], tuple[str, str, str | None]]
"""Returns the id, side and model of a row, or raises a `Reject` for that row."""


ContentOf = Callable[[bytes], Hashable]
"""Returns what two rows have in common that are copies of one request."""


def joined_records(
    files: Sequence[LogFile],
    scratch: Path,
    member_of: MemberOf,
    content_of: ContentOf = bytes,
) -> Iterator[Record | Reject]:
    """Yields responses with their requests, ordered by each id's first row.

    A request that was logged or shipped twice is used once. By default its copies are equal rows.
    """
    with contextlib.closing(database_in(scratch)) as database:
        yield from _stored(database, files, member_of)
        asked = database.execute("SELECT DISTINCT model FROM rows WHERE side = 'request'")
        asked_models = {model for (model,) in asked}
        for members in _groups(database, files):
            if isinstance(members, Reject):
                yield members
            else:
                yield from _records(members, asked_models, content_of)


def grouped_records(
    files: Sequence[LogFile], scratch: Path, member_of: MemberOf
) -> Iterator[Record | Reject]:
    """Yields a record for each id, with its rows in the log's order as the payload."""
    with contextlib.closing(database_in(scratch)) as database:
        yield from _stored(database, files, member_of)
        for members in _groups(database, files):
            if isinstance(members, Reject):
                yield members
            else:
                payload = tuple(member.row for member in members)
                yield Record(members[0].place, payload, rows=len(members))


def _groups(
    database: sqlite3.Connection, files: Sequence[LogFile]
) -> Iterator[list[JoinRow] | Reject]:
    """Yields the rows of each id, ordered by its first row; a reject for those of too many MB."""
    database.execute("CREATE INDEX by_key ON rows (key)")
    for key, first, count, size in database.execute(
        "SELECT key, MIN(rowid) AS first, COUNT(*), SUM(LENGTH(row)) FROM rows GROUP BY key"
        " ORDER BY first"
    ):
        is_large = size + ROW_OVERHEAD * count > LONGEST_LINE
        joined_rows = database.execute(
            "SELECT side, file, line, row, model FROM rows WHERE "
            + ("rowid = ?" if is_large else "key = ? ORDER BY rowid"),
            (first if is_large else key,),
        )
        members = [
            JoinRow(side, Place(files[at].name, line), row, model)
            for side, at, line, row, model in joined_rows
        ]
        if is_large:
            detail = f"more than {LONGEST_LINE >> 20} MB under one id"
            yield Reject("line_too_long", detail, members[0].place, rows=count)
        else:
            yield members


def model_of(body: dict[str, Any]) -> str | None:
    """Returns the model that a request or a response names."""
    return sqlite_text(body.get("model"))


def sqlite_text(value: Any) -> str | None:
    """Returns a text as SQLite stores it, without lone surrogates; None if empty or no text."""
    return value.encode("utf-8", "replace").decode() or None if isinstance(value, str) else None


def _stored(
    database: sqlite3.Connection, files: Sequence[LogFile], member_of: MemberOf
) -> Iterator[Reject]:
    """Writes all rows to the table `rows`; yields the rejects of rows that no id joins."""
    database.execute(
        "CREATE TABLE rows (key TEXT, side TEXT, file INT, line INT, row BLOB, model TEXT)"
    )
    for index, file in enumerate(read_ahead(files)):
        for number, row in read_rows(file):
            try:
                key, side, model = member_of(row)
            except Reject as reject:
                reject.place = Place(file.name, number)
                yield reject
                continue
            finally:
                json_of.cache_clear()  # nothing is kept for the next row, which may have 64 MB
            # Table rows are converted to JSON; `member_of` has rejected rows that are None.
            content = row if isinstance(row, bytes) else json.dumps(row, default=str).encode()
            values = (key, side, index, number, content, model)
            database.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)", values)


def database_in(folder: Path) -> sqlite3.Connection:
    """Opens an empty database in a file whose name in `folder` is removed."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=SCRATCH) as file:  # mode 0600
        database = sqlite3.connect(file.name)
    # The file is useless after a crash, so it needs no journal, which would have a name.
    database.execute("PRAGMA journal_mode=OFF")
    return database


def _records(
    members: list[JoinRow], asked_models: set[str | None], content_of: ContentOf
) -> Iterator[Record | Reject]:
    """Yields the records of one id.

    Runs may each number their requests from 1. So each model's rows are joined separately and, if
    requests of one model differ, those of each folder.
    """
    for of_model in _by_model(members, asked_models):
        groups: dict[str, list[JoinRow]] = {"": of_model}
        if _is_ambiguous(of_model, content_of):
            groups = {}
            for member in of_model:
                folder = str(PurePosixPath(member.place.file).parent)
                groups.setdefault(folder, []).append(member)
        for together in groups.values():
            if _is_ambiguous(
                together, content_of
            ):  # it is unknown which request a response answers
                place = together[0].place
                count = len(together)
                yield Reject("ambiguous_id", "different requests under one id", place, rows=count)
            else:
                yield from _pairs(together)


def _by_model(members: list[JoinRow], asked_models: set[str | None]) -> list[list[JoinRow]]:
    """Groups the rows of one id by the model that was asked.

    A response has the request's name for the model, unless that is an alias or has no date
    (`gpt-4o-2024-08-06`): then no request of the log has the response's name. Failed requests have
    none (vLLM's run-batch). Such rows belong to those whose other half has no name, either.
    """
    named: dict[str, list[JoinRow]] = {}
    for member in members:
        if member.model is not None and member.model in asked_models:
            named.setdefault(member.model, []).append(member)
    unnamed = [member for member in members if member.model not in named]
    sides_unnamed = set(map(_is_request, unnamed))
    for model, group in list(named.items()):
        sides_missing = {True, False} - set(map(_is_request, group))
        if sides_missing & sides_unnamed:
            named.pop(model)
    rest = [member for member in members if member.model not in named]
    return [*named.values(), *([rest] if rest else [])]


def _is_request(member: JoinRow) -> bool:
    return member.side == "request"


def _is_ambiguous(members: Iterable[JoinRow], content_of: ContentOf) -> bool:
    rows = {member.row for member in members if _is_request(member)}
    return len(rows) > 1 and len(set(map(content_of, rows))) > 1


def _pairs(members: list[JoinRow]) -> Iterator[Record | Reject]:
    """Yields each response with its request; further requests are copies of it, or retries."""
    requests, whole, chunks = (
        [member for member in members if member.side == side]
        for side in ("request", "response", "chunk")
    )
    responses = [[member] for member in whole] or ([chunks] if chunks else [])
    asked = _asked(members, requests, responses)
    for number, (request, response) in enumerate(zip(asked, responses, strict=True)):
        used = len(response) + (number < len(requests))
        if number == 0:  # includes the chunks of a response that was also logged whole
            used = len(members) - max(len(responses) - 1, 0) - max(len(requests) - 1, 0)
        payload = (request.row if request else None, tuple(member.row for member in response))
        yield Record(response[0].place, payload, rows=used)
    if not responses:
        yield Reject("unmatched_request", "no response with this id", requests.pop(0).place)
    places = {request.place for request in asked if request}
    unused = [request for request in requests if request.place not in places]
    for extra in unused[: max(len(requests) - len(responses), 0)]:
        yield Reject(DUPLICATE, "a copy of another row's request, or a retry of it", extra.place)


def _asked(
    members: list[JoinRow], requests: list[JoinRow], responses: list[list[JoinRow]]
) -> list[JoinRow | None]:
    """Returns the request of each response: of a retried one, the last request before it."""
    if len(requests) == len(responses):
        return list(requests)
    before: dict[Place, JoinRow | None] = {}
    last = next(iter(requests), None)
    for member in members:
        last = member if _is_request(member) else last
        before.setdefault(member.place, last)
    return [before[response[0].place] for response in responses]
