"""Splits files into rows, parses them, and samples files for format detection.

Files are read line by line, so that a broken line affects no other row. A file that begins with an
array or a pretty-printed object is instead split at brackets and quotes, without decoding: the
workers decode the values, and a broken one does not stop the reader.

    for number, row in read_rows(file): ...      # JSON bytes, a table row's dict, or None if too
    long

    def parse(record): row = parse_row(record.payload); ...      # in a format
"""

import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.data.exchange import Place, Record, Reject
from outrider.data.files.access_log import ESCAPED_BYTE, row_of_access_line
from outrider.data.files.cloud_events import join_printed_events
from outrider.data.files.container_lines import STAMPED
from outrider.data.files.packing import CUT_MARK, HEAD, archive_of
from outrider.data.files.python_text import python_value
from outrider.data.files.record_lines import lines_in
from outrider.data.files.sources import BLANK, LONGEST_LINE, LogFile, lines_of, read_ahead
from outrider.data.files.tables import csv_dialect, csv_rows, table_kind, table_rows

DEEPEST = 100
"""Maximum nesting depth; chat rows have about ten levels, and tool schemas a few dozen."""

SAMPLE_ROWS, SAMPLE_TRIES = 20, 200
"""Maximum number of parsed rows in a file's sample, and of rows read for it."""

LARGEST_VALUES = 2**30
"""Maximum size in bytes of a file whose values span lines; such files are read into memory."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[{}\[\]]', re.DOTALL)
"""A bracket, or a string up to its end or the end of the file."""

_SINGLE_BACKSLASH = re.compile(rb"(?<!\\)(?:\\\\)*\\(?!\\)")

_JSON_OBJECT = re.compile(rb"\s*\{\s*\"")
"""How an object with keys in double quotes begins; Python's texts have single ones."""

_PYTHON_TEXT = re.compile(rb":\s*\"(?:\[?\{'|[A-Z]\w*\([a-z_]+=)")
"""Python's text of an object, in which JSON doubles each backslash."""

EXTENDED_NUMBERS: dict[str, Callable[[Any], float]] = {
    "$numberInt": int,
    "$numberLong": int,
    "$numberDouble": float,
    "$numberDecimal": float,
}
"""Keys of numbers in `mongoexport --jsonFormat=canonical` (MongoDB Extended JSON v2)."""

FILE_CUT = (
    "the gzip file ends here without its end: it was still being written, or copied too early; copy"
    " it again"
)
"""Detail of the reject `file_cut`."""

Row = bytes | dict[str, Any]


@dataclass(frozen=True)
class FileSample:
    """The beginning of a file, passed to each format's `recognizes`."""

    head: bytes
    """Its first lines, about a megabyte, without a log driver's wrapping."""
    rows: tuple[dict[str, Any], ...]
    """Its first JSON objects or table rows, at most `SAMPLE_ROWS`."""
    stored: bytes = b""
    """Its first bytes, decompressed."""
    archive: str | None = None
    """`tar`, `zip`, a kind of database, or which document, if it is one; then it has no rows."""

    @property
    def is_binary(self) -> bool:
        """Whether it has no rows, since it is not text."""
        return bool(self.archive) or (b"\0" in self.stored.strip(BLANK) and not self.rows)


def read_sample(file: LogFile) -> FileSample:
    """Reads a file's sample, without counting its rows as read."""
    with file.open() as content:
        stored_head = content.peek(HEAD)[:HEAD]
        archive = archive_of(stored_head)
        if archive:
            return FileSample(b"", (), stored_head, archive)
        parsed: list[dict[str, Any]] = []
        lines: list[bytes] = []
        if framing(stored_head) == "values":  # the whole file would be read to split it
            lines, parsed = _parsed(enumerate(_values(stored_head)))
        if not parsed:
            lines, parsed = _parsed(rows_in(content, file.name))
    return FileSample(b"\n".join(lines), tuple(parsed), stored_head, archive)


def _parsed(
    numbered: Iterable[tuple[int, Row | None]],
) -> tuple[list[bytes], list[dict[str, Any]]]:
    """Returns the first rows as they are, and those that are objects."""
    lines: list[bytes] = []
    parsed: list[dict[str, Any]] = []
    size = 0
    is_full = False
    for number, (_, row) in enumerate(numbered):
        # A server may log a lot before its first request.
        if is_full or (number >= SAMPLE_TRIES and size >= HEAD):
            break
        if isinstance(row, bytes):
            lines.append(row[: HEAD - size])
            size += len(lines[-1])
        try:
            value = parse_row(row)
        except Reject:
            continue  # the format's reader will reject this row and give its place
        inside = [line.text.encode("utf-8", "replace") for line in lines_in(value)]
        lines += [line[: HEAD - size] for line in inside]
        size += sum(map(len, inside))
        if len(parsed) < SAMPLE_ROWS:
            parsed.append(value)
        is_full = len(parsed) == SAMPLE_ROWS and not inside
    return lines, parsed


def row_records(files: Sequence[LogFile], scratch: Path) -> Iterator[Record | Reject]:
    """Yields one record per row; `parse_row` rejects a row that is None."""
    for file in read_ahead(files):
        for number, row in read_rows(file):
            yield Record(Place(file.name, number), row)


def parse_row(row: Row | None) -> dict[str, Any]:
    """Parses the object in a row.

    Raises:
        Reject: If the row is None (too long), invalid, or not an object.
    """
    if row is None:
        raise Reject("line_too_long", f"more than {LONGEST_LINE >> 20} MB")
    if isinstance(row, bytes) and row.endswith(CUT_MARK):
        raise Reject("file_cut", FILE_CUT)
    value = row if isinstance(row, dict) else _decoded_row(row)
    if value == []:
        raise Reject("not_a_generation", "a batch without rows")
    if not isinstance(value, dict):
        raise Reject("not_an_object", f"the row is {json_type_name(value)}")
    if isinstance(row, dict):
        _check_depth(value)
    return value


def _decoded_row(row: bytes) -> Any:
    """Parses a row; undoes the doubling of backslashes by PostgreSQL's COPY in text format.

    JSON of texts has single backslashes (`\\n`, or `\\"` in JSON text), unless it was doubled.
    """
    if b"\\\\" not in row or _SINGLE_BACKSLASH.search(row) or _PYTHON_TEXT.search(row):
        return parse_value(row)
    undoubled = row.replace(b"\\\\", b"\\")
    if row.count(b"\\\\n") > 1:
        return parse_value(undoubled)
    try:
        return parse_value(row)
    except Reject:
        return parse_value(undoubled)


_PLAIN_LINE = re.compile(rb"[^{}]*")
"""A line of a text log. A piece of a damaged object has a bracket, mostly."""


def json_type_name(value: Any) -> str:
    """Describes the type of a JSON value."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")


def parse_value(text: bytes) -> Any:
    """Parses a JSON value, or an object as Python writes it.

    Raises:
        Reject: If the value is invalid, nested too deeply, or has a duplicate key.
    """
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        detail = (
            f"byte {error.start}; a limit on the length of logged bodies may have cut a character"
        )
        raise Reject("not_utf8", detail) from None
    except json.JSONDecodeError as error:
        value = _in_another_form(text, error)
    except RecursionError:
        raise Reject("nested_too_deeply") from None
    except ValueError:  # an integer with thousands of digits
        raise Reject("not_json", "a number is too long") from None
    if text.count(b"[") + text.count(b"{") > DEEPEST:
        _check_depth(value)
    return value


def _in_another_form(text: bytes, error: json.JSONDecodeError) -> Any:
    """Returns what a line that is no JSON has, as other producers write it."""
    if STAMPED.match(text):
        raise Reject("not_a_generation", "another line of a container's output")
    if _JSON_OBJECT.match(text) and ESCAPED_BYTE.search(text):
        return parse_value(ESCAPED_BYTE.sub(_json_escape, text))
    of_access_log = row_of_access_line(text)
    if of_access_log is not None:
        return of_access_log
    try:
        return python_value(text.decode("utf-8"))
    except ValueError:
        if _PLAIN_LINE.fullmatch(text):
            raise Reject("not_a_generation", "a line without an object") from None
        raise Reject("not_json", f"{error.msg} at character {error.pos}") from None


def _json_escape(match: re.Match[bytes]) -> bytes:
    """Returns a byte that nginx has escaped as JSON has it."""
    byte = bytes.fromhex(match[1].decode())
    return b"\\u00" + match[1] if byte < b" " or byte in b'"\\' else byte


def _object(pairs: list[tuple[str, Any]]) -> Any:
    """Returns an object; a number of MongoDB's canonical Extended JSON as a number."""
    if len(pairs) == 1 and pairs[0][0] in EXTENDED_NUMBERS:
        ((key, text),) = pairs
        try:
            return EXTENDED_NUMBERS[key](text)
        except (TypeError, ValueError):
            return dict(pairs)
    holder = dict(pairs)
    if len(holder) != len(pairs):
        raise Reject("duplicate_key", "an object has the same key twice")
    return holder


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for holder in level:
            inner += holder.values() if isinstance(holder, dict) else holder
        level = [value for value in inner if isinstance(value, dict | list)]
        if not level:
            return
    raise Reject("nested_too_deeply", f"more than {DEEPEST} levels")


def with_other_lines(items: Iterable[Record | Reject | Place | None]) -> Iterator[Record | Reject]:
    """Merges consecutive places (lines without a request) into one reject.

    None stands for a line that belongs to a request but completes no item; it ends a run of places.
    """
    for _, run in itertools.groupby(items, lambda item: isinstance(item, Place)):
        for item in run:
            if isinstance(item, Place):
                rows = 1 + sum(1 for _ in run)
                yield Reject("not_a_generation", "lines without a request", item, rows=rows)
            elif item is not None:
                yield item


def read_rows(file: LogFile) -> Iterator[tuple[int, Row | None]]:
    """Yields numbered rows; None replaces a row longer than `LONGEST_LINE`.

    Numbers begin at 1. In a file of lines, they are line numbers, up to a line with several rows.
    """
    with file.open() as content:
        yield from file.count_rows_read(rows_in(content, file.name))


def count_rows(file: LogFile) -> int:
    """Reads a file to its end; returns the number of its rows."""
    return sum(1 for _ in read_rows(file))


def rows_in(content: io.BufferedReader, name: str) -> Iterator[tuple[int, Row | None]]:
    """Yields the rows of a file in any framing."""
    kind = framing(content.peek(HEAD))
    if kind == "lines":
        yield from _json_lines(content, name)
        return
    values: Iterable[Row | None]
    if kind == "values":
        values = _values(_held(content, name))
    elif kind == "csv":
        values = csv_rows(content, name)
    else:
        values = table_rows(content, kind, name)
    yield from enumerate(values, start=1)


def _held(content: io.BufferedReader, name: str) -> bytes:
    held = content.read(LARGEST_VALUES + 1)
    if len(held) > LARGEST_VALUES:
        raise OutriderError(
            f"{name}: JSON values span lines in a file above {LARGEST_VALUES >> 20} MB;"
            " write one object per line, for example with `jq -c '.[]'` for an array"
        )
    return held


_ARRAY_OF_OBJECTS = re.compile(rb"\s*\[\s*\{")
"""A line with a batch of rows: what Zipkin's and Datadog's clients send."""


def _json_lines(content: io.BufferedReader, name: str) -> Iterator[tuple[int, bytes | None]]:
    """Yields the rows of lines; a line has several if a writer left out a newline."""
    shift = 0
    for number, line in _joined(join_printed_events(lines_of(content, name), LONGEST_LINE)):
        is_array = line is not None and _ARRAY_OF_OBJECTS.match(line)
        if line is not None and is_array and (pair := _pair_in(line)) is not None:
            yield number + shift, pair
            continue
        if line is None or not (is_array or _SEVERAL.search(line)):
            yield number + shift, line
            continue
        for index, row in enumerate(_values(line)):
            shift += index > 0
            yield number + shift, row


def _joined(
    lines: Iterable[tuple[int, bytes | None]],
) -> Iterator[tuple[int, bytes | None]]:
    """Yields lines; an object that is printed over several, between others, as one.

    It begins with a line of `{`, its inner lines are indented, and it ends with a line of `}`, as
    LiteLLM prints its logging payloads. Lines without such an end remain single.
    """
    pending: list[tuple[int, bytes | None]] = []
    size = 0
    for number, line in lines:
        begins = line is not None and line.rstrip() == b"{"
        if pending and line is not None and line.rstrip() == b"}":
            printed = b"\n".join(inner or b"" for _, inner in pending)
            yield pending[0][0], printed + b"\n}"
            pending = []
            continue
        is_inner = line is not None and line[:1] in (b" ", b"\t")
        size = 0 if begins else size + len(line or b"")
        if pending and (not is_inner or size > LONGEST_LINE):
            yield from pending
            pending = []
        if begins or pending:
            pending.append((number, line))
        else:
            yield number, line
    yield from pending


def _pair_in(line: bytes) -> bytes | None:
    """Returns a row of a line that lists a request, its response and maybe other values.

    OpenAI's cookbook writes such lines (api_request_parallel_processor.py). After failures, the
    list has the errors in place of the response.
    """
    try:
        listed = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(listed, list) or len(listed) not in (2, 3):
        return None
    request, response = listed[:2]
    is_request = isinstance(request, dict) and not request.keys().isdisjoint(("messages", "prompt"))
    is_response = isinstance(response, list) or (
        isinstance(response, dict) and not response.keys().isdisjoint(("choices", "error"))
    )
    if not is_request or not is_response:
        return None
    answered = {"error": response} if isinstance(response, list) else response
    row = {"request": request, "response": answered}
    return json.dumps(row | ({"metadata": listed[2]} if len(listed) == 3 else {})).encode()


def framing(head: bytes) -> str:
    """Returns how a file that begins with `head` is split: lines, values, csv, parquet or arrow."""
    table = table_kind(head)
    if table:
        return table
    if not is_lines(head):
        return "values"
    return "csv" if csv_dialect(head) else "lines"


def is_lines(head: bytes) -> bool:
    """Whether text that begins with `head` has one row per line."""
    head = head.removeprefix(b"\xef\xbb\xbf")
    lines = [line for line in head.split(b"\n") if line.strip()]
    if re.match(rb"\s*\[\s*[{\[\]]", head):  # an array, or lines of arrays
        return len(lines) > 1 and _continues(lines[0]) is None
    if len(lines) < 2:  # Firehose writes objects without anything between them
        return _SEVERAL.search(head) is None or not _has_several(head)
    # A pretty-printed object continues on the next line, which is indented. A truncated line is
    # followed by another object.
    opened = lines[0].lstrip().startswith(b"{") and _continues(lines[0])
    return not (opened and (lines[0].strip() == b"{" or lines[1][:1].isspace()))


_OBJECT = re.compile(rb"\s*\{")
_SEVERAL = re.compile(rb"\}[ \t\r]*\{")
"""What is between objects without a newline, unless it is in a string."""


def _has_several(text: bytes) -> bool:
    values = itertools.islice(_values(text), 2)
    return text.lstrip().startswith(b"{") and len(list(values)) > 1


def _continues(line: bytes) -> bool | None:
    """Whether the JSON continues on the next line; None if complete."""
    text = line.decode("utf-8", "replace").rstrip()
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text)
    except (ValueError, RecursionError):
        return False
    return None


def _values(content: bytes) -> Iterator[bytes | None]:
    """Yields the values of a file or top-level array, and any text between them."""
    depth = begin = 0
    top = 0  # depth at which values begin: that of the arrays around them
    for token in _TOKEN.finditer(content):
        mark = token[0][:1]
        if mark in (b"{", b"["):
            if depth == top:
                yield from _row(content[begin : token.start()], between=True)
                begin = token.start()
                # Zipkin's API has a list of traces, which are lists of spans.
                if mark == b"[" and (depth == 0 or _OBJECT.match(content, token.end())):
                    top += 1
                    begin = token.end()
            depth += 1
        elif mark in (b"}", b"]") and depth == top:  # the end of the array, or an extra bracket
            yield from _row(content[begin : token.start()], between=True)
            top = max(top - 1, 0)
            depth = top
            begin = token.end()
        elif mark in (b"}", b"]"):
            depth -= 1
            if depth == top:
                yield from _row(content[begin : token.end()])
                begin = token.end()
    yield from _row(content[begin:], between=depth == top)


def _row(piece: bytes, between: bool = False) -> Iterator[bytes | None]:
    if piece.strip(b" \t\r\n,\xef\xbb\xbf" if between else None):
        yield piece if len(piece) <= LONGEST_LINE else None
