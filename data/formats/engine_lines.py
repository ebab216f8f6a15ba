"""Lines of an engine's log, also if a collector stored them in records.

    for number, line in engine_lines(file): ...     # b"2026-07-01T12:00:00.123456Z INFO 07-01 ..."

The record's time is before its line, as `docker logs -t` writes it.
"""

import json
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from outrider.data.files.container_lines import STAMPED, unwrapped
from outrider.data.files.packing import HEAD
from outrider.data.files.record_lines import Line, lines_in
from outrider.data.files.rows import framing, rows_in
from outrider.data.files.sources import LONGEST_LINE, LogFile, lines_of
from outrider.data.formats.row_fields import fields

NOTHING = b"-"
"""Replaces a record without a line, so that it is counted."""

SGLANG = re.compile(rb'\s*\{[^{}]{0,300}"event":\s*"request\.')
"""SGLang's own records, which need no search."""

Numbered = Iterator[tuple[int, bytes | None]]


def engine_lines(file: LogFile) -> Numbered:
    """Yields numbered lines; None replaces lines longer than `LONGEST_LINE`."""
    with file.open() as content:
        head = content.peek(HEAD)
        is_text = framing(head) == "lines"
        if is_text and head.lstrip()[:1] != b"{":
            yield from lines_of(content, file.name)
            return
        stored = lines_of(content, file.name) if is_text else rows_in(content, file.name)
        yield from unwrapped(_lines(stored), LONGEST_LINE)


def _lines(stored: Iterable[tuple[int, Any]]) -> Numbered:
    shift = 0
    for number, row in stored:
        lines = list(lines_in(_record(row)))
        for index, line in enumerate(lines):
            shift += index > 0
            yield number + shift, _stamped(line)
        if not lines:
            yield number + shift, NOTHING if isinstance(row, dict) else row


def _record(row: Any) -> Any:
    if not isinstance(row, bytes):
        return row
    if row.lstrip()[:1] not in (b"{", b"[") or SGLANG.match(row):
        return None
    try:
        return json.loads(row)
    except (ValueError, RecursionError):
        return None


def _stamped(line: Line) -> bytes:
    stored = line.text.rstrip("\r\n").encode("utf-8", "surrogatepass")
    if not stored.strip():
        return NOTHING
    if STAMPED.match(stored) or stored.lstrip()[:1] == b"{":
        return stored
    times = (fields(holder)["time"] for holder in reversed(line.holders))
    time = next((time for time in times if time is not None), None)
    if time is None:
        return stored
    stamp = datetime.fromtimestamp(time, UTC).isoformat(timespec="microseconds")
    return stamp.encode() + b" " + stored
