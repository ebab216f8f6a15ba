"""GenAI events of one message each, joined with the span of their call.

    {"eventName": "gen_ai.user.message", "traceId": "4b", "spanId": "07", "body": {"content": "Hi"}}
    {"eventName": "gen_ai.choice", "traceId": "4b", "spanId": "07", "body": {"index": 0, ...}}

opentelemetry-instrumentation-openai-v2 writes these by default (conventions 1.28 to 1.36; its
utils.py: `message_to_event`, `choice_to_event`), each as a log record. The messages of a call share
the ids of its trace and span, and may be in several batches. Model, sampling and errors are on the
span of the same ids, which a traces file has. A span without messages is not lost if an event has
them, as one event with all of them has from 1.37 on. All go through an SQLite file (join.py), and a
call becomes a span with events, as other instrumentations write it:

    for record in joined_calls(files, scratch): ...     # in otel_genai.py
"""

import contextlib
import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from outrider.data.exchange import Place, Record, Reject
from outrider.data.files.rows import Row, parse_row, read_rows
from outrider.data.files.sources import LONGEST_LINE, LogFile, read_ahead
from outrider.data.formats.fields import parse_number
from outrider.data.formats.rows.embedded import json_of, object_of
from outrider.data.formats.rows.join import database_in, sqlite_text
from outrider.data.formats.rows.paths import find_field
from outrider.data.formats.rows.row_fields import fields
from outrider.data.formats.rows.span_attributes import attributes_of, is_otlp, plain_value, spans_of

EVENT = re.compile(r"gen_ai\.(choice|(system|user|assistant|tool)\.message)")
"""Names of events with a message each."""

CONTENT = "gen_ai.event.content"
"""Attribute with an event's body in Azure's SDKs (azure-ai-inference 1.0). Application Insights
keeps such events as rows of `traces`, below the call's row of `dependencies`."""

CALL = "outrider.call"
"""Key of a joined call's number among the calls of its first line."""

JOINED = "outrider.joined"
"""Key of a batch's spans whose messages were joined."""

FIRST_CALL = 1_000_000
"""Numbers of joined calls begin here, so that no other call of a batch has the same."""

CAPTURE = (
    "events without texts: set OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true where the"
    " client runs"
)

_IN_ROW = re.compile(rb"gen_ai\.(?:choice|(?:system|user|assistant|tool)\.message)\b")
_SPAN = re.compile(rb"gen_ai\.(?:request|response|operation)\.")
_DETAILS = re.compile(rb"gen_ai\.client\.inference\.operation\.details")
"""Name of the event with all messages (conventions from 1.37)."""
_SPAN_ID = re.compile(rb'"span_?id":\s*"(\w{1,64})"', re.IGNORECASE)
_OF_SPANS = re.compile(rb'"resource_?[sS]pans"|"batches"')
_TEXTS = re.compile(
    rb"gen_ai\.(?:input\.messages|output\.messages|prompt|completion)\b|messages\.0"
)


def event_name(record: dict[str, Any]) -> str | None:
    """Returns the name of a log record that is one message; None for any other record."""
    where = find_field(record, "event_name")
    attributes = _attributes(record)
    if CONTENT in attributes:
        where = where or find_field(record, "message")  # Application Insights' table `traces`
    name = where.holder[where.key] if where else attributes.get("event.name")
    return name if isinstance(name, str) and EVENT.fullmatch(name) else None


def _attributes(record: dict[str, Any]) -> dict[str, Any]:
    """Returns a record's attributes, empty if they are damaged: the record's format rejects it."""
    try:
        return attributes_of(record)
    except Reject:
        return {}


def key_of(record: dict[str, Any]) -> str | None:
    """Returns the ids of the trace and span of a record; None without a span."""
    trace, span = (find_field(record, name) for name in ("trace_id", "span_id"))
    if trace is None and "operation_Id" in record:
        is_event = CONTENT in _attributes(record)
        trace = find_field(record, "operation_id")
        span = find_field(record, "operation_parent_id" if is_event else "id")
    span_id = sqlite_text(span.holder[span.key]) if span else None
    trace_id = sqlite_text(trace.holder[trace.key]) if trace else None
    return f"{trace_id or ''}/{span_id}" if span_id else None


def joined_calls(files: Sequence[LogFile], scratch: Path) -> Iterator[Record | Reject]:
    """Yields a record per row, and one, without a row, per call whose messages are events."""
    with contextlib.closing(database_in(scratch)) as database:
        database.execute("CREATE TABLE events (key TEXT, file INT, line INT, at INT, event TEXT)")
        database.execute("CREATE TABLE spans (key TEXT PRIMARY KEY, span TEXT)")
        database.execute("CREATE TABLE details (span TEXT PRIMARY KEY)")
        database.execute("CREATE TABLE waiting (file INT, line INT, row BLOB)")
        for index, file in enumerate(read_ahead(files)):
            for line, row in read_rows(file):
                content = row if isinstance(row, bytes) else json.dumps(row, default=str).encode()
                if _DETAILS.search(content):
                    ids = [(span.decode(),) for span in _SPAN_ID.findall(content)]
                    database.executemany("INSERT OR IGNORE INTO details VALUES (?)", ids)
                if _has_spans(content) and _store(database, row, index, line):
                    database.execute("INSERT INTO waiting VALUES (?, ?, ?)", (index, line, content))
                else:
                    yield Record(Place(file.name, line), row)
                json_of.cache_clear()  # nothing is kept for the next row, which may have 64 MB
        database.execute("CREATE INDEX by_key ON events (key)")
        for index, line, row in database.execute("SELECT file, line, row FROM waiting"):
            yield Record(Place(files[index].name, line), _with_joined(database, row))
        yield from _calls(database, files)


def _has_spans(content: bytes) -> bool:
    """Whether a row may have events, or spans without texts; others are not parsed here."""
    if _IN_ROW.search(content):
        return _OF_SPANS.search(content) is None  # events in a span have its attributes
    return _SPAN.search(content) is not None and _TEXTS.search(content) is None


def _store(database: sqlite3.Connection, row: Row | None, index: int, line: int) -> bool:
    """Stores a row's events and spans; returns whether it has spans, which wait for events."""
    try:
        parsed = parse_row(row)
        records = list(spans_of(parsed)) if is_otlp(parsed) else [parsed]
        named = [(record, event_name(record), key_of(record)) for record in records]
    except Reject:  # parsed again, and rejected, by a worker
        return False
    has_spans = False
    for at, (record, name, key) in enumerate(named):
        if key is None:
            continue
        if name is not None:
            event = {"name": name, "attributes": _body(record), "time": _time(record)}
            values = (key, index, line, at, json.dumps(event, default=str))
            database.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", values)
        elif _lacks_texts(_attributes(record)):
            has_spans = True
            values_of_span = (key, json.dumps(record, default=str))
            database.execute("INSERT OR REPLACE INTO spans VALUES (?, ?)", values_of_span)
    return has_spans


def _lacks_texts(attributes: dict[str, Any]) -> bool:
    """Whether attributes are those of a call, without its messages."""
    has_texts = any(_TEXTS.match(name.encode("utf-8", "replace")) for name in attributes)
    return "gen_ai.request.model" in attributes and not has_texts


def _body(record: dict[str, Any]) -> dict[str, Any]:
    content = object_of(_attributes(record).get(CONTENT))
    if content is not None:
        return content
    where = find_field(record, "body")
    return (object_of(plain_value(where.holder[where.key])) or {}) if where else {}


def _time(record: dict[str, Any]) -> float:
    named = (find_field(record, name) for name in ("time_unix_nano", "observed_time_unix_nano"))
    times = (parse_number(*where) for where in named if where)
    written = fields(record)["time"]  # a table's
    return next(filter(None, times), (written or 0.0) * 1e9)


def _with_joined(database: sqlite3.Connection, content: bytes) -> Row:
    """Returns a row with the ids of its spans whose messages are events."""
    parsed = parse_row(content)
    records = spans_of(parsed) if is_otlp(parsed) else [parsed]
    silent = (record for record in records if _lacks_texts(_attributes(record)))
    keys = [key for key in map(key_of, silent) if key is not None]
    query = "SELECT 1 FROM events WHERE key = ? UNION SELECT 1 FROM details WHERE span = ?"
    joined = [
        key
        for key in keys
        if database.execute(query, (key, key.partition("/")[2])).fetchone() is not None
    ]
    return {**parsed, JOINED: joined} if joined else content


def _calls(database: sqlite3.Connection, files: Sequence[LogFile]) -> Iterator[Record | Reject]:
    for key, first, size in database.execute(
        "SELECT key, MIN(rowid) AS first, SUM(LENGTH(event)) FROM events GROUP BY key"
        " ORDER BY first"
    ):
        query = "SELECT file, line, at FROM events WHERE rowid = ?"
        index, line, at = database.execute(query, (first,)).fetchone()
        place = Place(files[index].name, line)
        if size > LONGEST_LINE:
            yield Record(place, None, rows=0)  # rejected as too long
            continue
        query = "SELECT event FROM events WHERE key = ? ORDER BY rowid"
        events = [json.loads(event) for (event,) in database.execute(query, (key,))]
        # Batches of several exporters may be out of order; the sort keeps that of equal times.
        events.sort(key=lambda event: event["time"])
        stored = database.execute("SELECT span FROM spans WHERE key = ?", (key,)).fetchone()
        span = json.loads(stored[0]) if stored else _span_of(events, key)
        yield Record(place, {**span, "events": events, CALL: FIRST_CALL + at}, rows=0)


def _span_of(events: list[dict[str, Any]], key: str) -> dict[str, Any]:
    """Returns what is known of a call without its span."""
    trace_id, _, span_id = key.partition("/")
    times = [event["time"] for event in events]
    return {
        "traceId": trace_id,
        "spanId": span_id,
        "startTimeUnixNano": min(times) or None,
        "endTimeUnixNano": max(times) or None,
        "attributes": {"gen_ai.operation.name": "chat"},
    }


def check_captured(events: list[dict[str, Any]]) -> None:
    """Raises a `Reject` if a joined call's events lack texts, or its answer."""
    choices = [event for event in events if event["name"] == "gen_ai.choice"]
    messages = [event["attributes"] for event in events if event not in choices]
    answers = [object_of(choice["attributes"].get("message")) or {} for choice in choices]
    if any(not (holder.get("content") or holder.get("tool_calls")) for holder in messages):
        raise Reject("content_not_logged", CAPTURE)
    if not choices:
        raise Reject("unmatched_request", "no gen_ai.choice with the span's id")
    if not messages:
        raise Reject("unmatched_response", "no message with the span's id")
    if any(not (answer.get("content") or answer.get("tool_calls")) for answer in answers):
        raise Reject("content_not_logged", CAPTURE)
