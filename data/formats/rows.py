"""Splits files into rows, parses them, and samples files for format detection.

Files are read line by line, so that a broken line affects no other row. A file that begins with an
array or a pretty-printed object is instead split at brackets and quotes, without decoding: the
workers decode the values, and a broken one does not stop the reader.

    for number, row in rows(file): ...      # JSON bytes, a table row's dict, or None if too long

    def parse(record): row = parse_row(record.payload); ...      # in a format
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from outrider.common.errors import OutriderError
from outrider.data.exchange import Place, Record, Reject
from outrider.data.formats.sources import CHUNK, LONGEST_LINE, LogFile

DEEPEST = 100
"""Maximum nesting depth; chat rows have about ten levels, and tool schemas a few dozen."""

SAMPLE_ROWS, SAMPLE_TRIES = 20, 200
"""Maximum number of parsed rows in a file's sample, and of rows read for it."""

TABLES = (".parquet", ".arrow")

TABLE_ROWS = 64
"""Rows decoded at a time."""

LARGEST_VALUES = 2**30
"""Maximum size in bytes of a file whose values span lines; such files are read into memory."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[{}\[\]]', re.DOTALL)
"""A bracket, or a string up to its end or the end of the file."""

Row = bytes | dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """The beginning of a file, passed to each format's `recognizes`."""

    head: bytes
    """Its first 64 KiB, decompressed."""
    rows: tuple[dict[str, Any], ...]
    """Its first JSON objects or table rows, at most `SAMPLE_ROWS`."""


def sample_of(file: LogFile) -> Sample:
    """Reads a file's sample, without counting its rows as read."""
    parsed = []
    for _, row in itertools.islice(rows(replace(file, rows=0)), SAMPLE_TRIES):
        try:
            parsed.append(parse_row(row))
        except Reject:
            continue  # the format's reader will reject this row and give its place
        if len(parsed) == SAMPLE_ROWS:
            break
    return Sample(file.head(), tuple(parsed))


def row_records(files: Sequence[LogFile], scratch: Path) -> Iterator[Record | Reject]:
    """Yields one record per row; `parse_row` rejects a row that is None."""
    for file in files:
        for number, row in rows(file):
            yield Record(Place(file.name, number), row)


def parse_row(row: Row | None) -> dict[str, Any]:
    """Parses the object in a row.

    Raises:
        Reject: If the row is None (too long), invalid, or not an object.
    """
    if row is None:
        raise Reject("line_too_long", f"more than {LONGEST_LINE >> 20} MB")
    value = row if isinstance(row, dict) else decode(row)
    if not isinstance(value, dict):
        raise Reject("not_an_object", f"the row is {kind_of(value)}")
    if isinstance(row, dict):
        _check_depth(value)
    return value


def kind_of(value: Any) -> str:
    """Describes the type of a JSON value."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")


def decode(text: bytes) -> Any:
    """Parses a JSON value.

    Raises:
        Reject: If the value is invalid, nested too deeply, or has a duplicate key.
    """
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise Reject("not_utf8", f"byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise Reject("not_json", f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise Reject("nested_too_deeply") from None
    except ValueError:  # an integer with thousands of digits
        raise Reject("not_json", "a number is too long") from None
    if text.count(b"[") + text.count(b"{") > DEEPEST:
        _check_depth(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
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


def rows(file: LogFile) -> Iterator[tuple[int, Row | None]]:
    """Yields numbered rows; None replaces a row longer than `LONGEST_LINE`.

    Numbers begin at 1; in a file of lines, they are line numbers.
    """
    if file.path.endswith(TABLES):
        numbered: Iterable[tuple[int, Row | None]] = enumerate(_table(file), start=1)
    elif is_lines(file.head()):
        yield from file.lines()
        return
    else:
        with file.open() as content:
            held = content.read(LARGEST_VALUES + 1)
        if len(held) > LARGEST_VALUES:
            raise OutriderError(
                f"{file.name}: JSON values span lines in a file above {LARGEST_VALUES >> 20} MB;"
                " write one object per line, for example with `jq -c '.[]'` for an array"
            )
        numbered = enumerate(_values(held), start=1)
    for number, row in numbered:
        if file.is_read_enough():
            return
        file.rows += 1
        yield number, row


def is_lines(head: bytes) -> bool:
    """Whether a file that begins with `head` has one row per line."""
    head = head.removeprefix(b"\xef\xbb\xbf")
    lines = [line for line in head.split(b"\n")[:-1] if line.strip()]
    if re.match(rb"\s*\[\s*[{\[\]]", head):  # an array, or lines of arrays
        return len(lines) > 1 and _continues(lines[0]) is None
    # A pretty-printed object continues on the next line, which is indented. A truncated line is
    # followed by another object.
    opened = len(lines) > 1 and lines[0].lstrip().startswith(b"{") and _continues(lines[0])
    return not (opened and (lines[0].strip() == b"{" or lines[1][:1].isspace()))


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
    top = 0  # depth at which values begin: 1 inside a top-level array
    for token in _TOKEN.finditer(content):
        mark = token[0][:1]
        if mark in (b"{", b"["):
            if depth == top:
                yield from _row(content[begin : token.start()], between=True)
                begin = token.start()
                if depth == 0 and mark == b"[":
                    top = 1
                    begin = token.end()
            depth += 1
        elif mark in (b"}", b"]") and depth == top:  # the end of the array, or an extra bracket
            yield from _row(content[begin : token.start()], between=True)
            depth = top = 0
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


def _table(file: LogFile) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet

    with file.stored() as stored:
        try:
            if file.path.endswith(".parquet"):
                # By default a whole row group is read, often the whole file: 635 MB of memory for a
                # 446 MB file, versus 230 MB with these arguments.
                parquet = pyarrow.parquet.ParquetFile(stored, pre_buffer=False, buffer_size=CHUNK)
                batches = parquet.iter_batches(TABLE_ROWS)
            else:
                batches = _arrow(stored)
            for batch in batches:
                # Arrow trusts the offsets in a file; wrong ones make it read out of bounds.
                batch.validate(full=True)
                for start in range(0, len(batch), TABLE_ROWS):
                    yield from batch.slice(start, TABLE_ROWS).to_pylist()
        # Damaged column names or lengths raise the last two exceptions.
        except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
            kind = "Parquet" if file.path.endswith(".parquet") else "Arrow"
            raise OutriderError(f"{file.name}: damaged {kind} ({error}); copy it again") from None


def _arrow(stored: IO[bytes]) -> Iterator[Any]:
    """Returns the batches of an Arrow stream (from `datasets`) or file."""
    import pyarrow as pa

    begins = stored.read(6)
    stored.seek(0)
    if begins != b"ARROW1":
        return iter(pa.ipc.open_stream(stored))
    table = pa.ipc.open_file(stored)
    return (table.get_batch(number) for number in range(table.num_record_batches))
