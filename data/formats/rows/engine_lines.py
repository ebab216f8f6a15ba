"""Lines of an engine's log, also if a collector stored them in records.

    for number, line in engine_lines(file): ...     # b"2026-07-01T12:00:00.123456Z INFO 07-01 ..."

The record's time is before its line, as `docker logs -t` writes it. Loki, Grafana, Kibana and
CloudWatch export the newest record first, so a file whose times fall is read from its end.
"""

import array
import itertools
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from outrider.data.files.container_lines import STAMPED, join_container_lines
from outrider.data.files.packing import HEAD
from outrider.data.files.record_lines import Line, lines_in
from outrider.data.files.rows import framing, rows_in
from outrider.data.files.sources import LONGEST_LINE, LogFile, lines_of
from outrider.data.formats.rows.row_fields import fields

NOTHING = b"-"
"""Replaces a record without a line, so that it is counted."""

LEFT_OUT = b"- MESSAGE"
"""Replaces a record whose line journalctl left out (`LINES_LEFT_OUT`)."""

JOURNALD = "MESSAGE"
"""Key of journald's line: null if it was left out, a list of bytes if it has unprintable ones."""

LINES_LEFT_OUT = (
    "journalctl leaves out fields above 4,096 bytes: export with `journalctl -a -o json`"
)

TRIED = 200
"""Lines whose times show the order of a file."""

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
        yield from join_container_lines(_oldest_first(_lines(stored)), LONGEST_LINE)


def _lines(stored: Iterable[tuple[int, Any]]) -> Numbered:
    shift = 0
    for number, row in stored:
        record = _record(row)
        lines = _in_order([_stamped(line) for line in lines_in(record)])
        for index, line in enumerate(lines):
            shift += index > 0
            yield number + shift, line
        if not lines:
            is_left_out = isinstance(record, dict) and record.get(JOURNALD, record) is None
            nothing = NOTHING if isinstance(row, dict) else row
            yield number + shift, LEFT_OUT if is_left_out else nothing


def _in_order(lines: list[bytes]) -> list[bytes]:
    """Sorts a document's lines by time; Loki's streams follow each other, each in its order."""
    stamps = [_stamp(line) for line in lines]
    if not stamps or not all(stamps):
        return lines
    return sorted(reversed(lines) if stamps[0] > stamps[-1] else lines, key=_stamp)


def _oldest_first(numbered: Numbered) -> Numbered:
    """Yields lines in their order, or from the last to the first if the times of the first fall."""
    first = list(itertools.islice(numbered, TRIED))
    stamps = [stamp for stamp in (_stamp(line or b"") for _, line in first) if stamp]
    rest = itertools.chain(first, numbered)
    if stamps and stamps[0] > stamps[-1] and stamps == sorted(stamps, reverse=True):
        yield from _backwards(rest)
    else:
        yield from rest


def _backwards(numbered: Numbered) -> Numbered:
    with tempfile.TemporaryFile() as spool:
        sizes = array.array("q")
        for number, line in numbered:
            sizes.extend((number, -1 if line is None else spool.write(line)))
        end = spool.tell()
        for at in range(len(sizes) - 2, -1, -2):
            number, size = sizes[at : at + 2]
            end -= max(size, 0)
            spool.seek(end)
            yield number, None if size < 0 else spool.read(size)


def _stamp(line: bytes) -> bytes:
    """Returns the time before a line, in a form that sorts; empty if there is none."""
    stamp = STAMPED.match(line)
    return stamp[0].rstrip(b"Z ") if stamp else b""  # log drivers leave out zeros at the end


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
