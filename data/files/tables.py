"""Rows of tables: Parquet, Arrow, and CSV with a header.

for row in table_rows(content, "parquet", "log.parquet"): ...       # dicts, also for maps
for row in csv_rows(content, "log.csv"): ...                        # dicts; bytes if damaged
"""

import csv
import io
import itertools
import json
import re
from collections.abc import Iterator
from typing import IO, Any

from outrider.common.errors import OutriderError
from outrider.data.files.packing import CUT_MARK, DENSEST, HEAD, check_ratio, spool_file
from outrider.data.files.sources import CHUNK, LONGEST_LINE, without_blanks

TABLE_ROWS = 64
"""Rows decoded at a time."""

INDEX = "index"
"""The name of a table's first column that has none."""

_COLUMN = re.compile(r"[A-Za-z_@$][\w .\-/:@()]{0,100}(?: \[UTC\])?")
"""A column's name. A line of a text log has other characters, or parts without a letter."""

_ESCAPED = re.compile(rb'(?:^|[,;|\t\n])"(?:\[\s*)?[\[{]\s*\\"')
"""Quotes escaped as MySQL, Spark and Redshift's UNLOAD write them, instead of doubled."""


_UNQUOTED = re.compile(rb"(?<=[\t\n])[\[{][^\t\n]+")
_SINGLE = re.compile(rb"(?<!\\)(?:\\\\)*\\(?![\\tn0'])")
"""Cells with JSON outside quotes, and a backslash before anything but what databases escape;
ClickHouse escapes apostrophes, too."""

_ESCAPE = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "N": ""}
"""Escapes of `mysql --batch`, PostgreSQL's COPY and ClickHouse's TabSeparatedWithNames."""


NO_VALUE = frozenset({"\\N", "-"})
"""Cells without a value: null of Snowflake, MySQL, PostgreSQL and ClickHouse; Kibana's reports."""

_TYPE = re.compile(
    r"(?:(?:Nullable|LowCardinality|Array|Map|Tuple|DateTime64|FixedString|Decimal|Enum\d+)\(.*\)"
    r"|String|JSON|UUID|Bool|Date|DateTime|U?Int\d+|Float\d+)"
)
"""A column's type in the second line of ClickHouse's formats with names and types."""


def table_kind(head: bytes) -> str | None:
    """Returns `parquet` or `arrow` if a file that begins with `head` is such a table."""
    if head.startswith(b"PAR1"):
        return "parquet"
    # An Arrow file, or a stream, whose first message is marked (Arrow 0.15 and later).
    is_stream = head.startswith(b"\xff\xff\xff\xff") and head[4:8] != b"\xff\xff\xff\xff"
    return "arrow" if head.startswith(b"ARROW1") or is_stream else None


def table_rows(content: io.BufferedReader, kind: str, name: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of a Parquet or Arrow table."""
    import pyarrow as pa
    import pyarrow.parquet

    characters = 0
    try:
        source = _seekable(content, name)
        stored = _size(source)
        if kind == "parquet":
            # By default a whole row group is read, often the whole file: 635 MB of memory for a
            # 446 MB file, versus 230 MB with these arguments.
            parquet = pyarrow.parquet.ParquetFile(source, pre_buffer=False, buffer_size=CHUNK)
            batches = _parquet(parquet, stored, name)
        else:
            batches = _arrow(source)
        for batch in batches:
            # Arrow trusts the offsets in a file; wrong ones make it read out of bounds.
            batch.validate(full=True)
            # An Arrow dictionary's value can be in every row.
            rows = TABLE_ROWS if TABLE_ROWS * batch.nbytes <= BATCH_BYTES else 1
            for start in range(0, len(batch), rows):
                decoded = batch.slice(start, rows).to_pylist(maps_as_pydicts="lossy")
                characters += _characters(decoded)
                check_ratio(name, stored=stored, size=characters, most=DENSEST["table"])
                yield from decoded
    # Damaged column names or lengths raise the last two exceptions.
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
        kind_name = kind.capitalize()
        raise OutriderError(f"{name}: damaged {kind_name} ({error}); copy it again") from None


def _characters(value: Any) -> int:
    """The length of all texts in a value."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_characters, value.values()))
    return sum(map(_characters, value)) if isinstance(value, list) else 0


def _parquet(parquet: Any, stored: int, name: str) -> Iterator[Any]:
    """Yields batches of as many rows as fit in memory, even if all rows have the largest value.

    The metadata of single columns is not read: where it is damaged, pyarrow ends the process
    (26.0.1, _parquet.pxd:117, a C++ exception that is not declared). `stored` is the file's size.
    """
    for number in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(number)
        size = group.total_byte_size
        average = size // max(group.num_rows, 1)
        if average > LONGEST_LINE or size > max(BATCH_BYTES, GROWTH * stored):
            raise OutriderError(
                f"{name}: row group {number + 1}: {group.num_rows:,} rows of {size >> 20:,} MB"
                f" in a file of {stored >> 10:,} kB; values of more than {LONGEST_LINE >> 20} MB"
                " are not read, remove such rows"
            )
        rows = min(max(BATCH_BYTES // max(size, 1), 1), TABLE_ROWS)
        yield from parquet.iter_batches(rows, row_groups=[number])


BATCH_BYTES, GROWTH = 2**28, 200
"""Maximum memory of a batch in which all rows have the largest value, as a dictionary of 2 kB can
have it; and how many times the file's size a larger row group may have. Logs have up to 50."""


def _size(stored: IO[bytes]) -> int:
    place = stored.tell()
    size = stored.seek(0, io.SEEK_END)
    stored.seek(place)
    return size


def _seekable(content: io.BufferedReader, name: str) -> IO[bytes]:
    """Returns the content, unpacked to a temporary file if it is compressed."""
    if content.seekable():
        return content
    return spool_file(content, name)


def _arrow(stored: IO[bytes]) -> Iterator[Any]:
    """Returns the batches of an Arrow stream (from `datasets`) or file."""
    import pyarrow as pa

    begins = stored.read(6)
    stored.seek(0)
    if begins != b"ARROW1":
        return iter(pa.ipc.open_stream(stored))
    table = pa.ipc.open_file(stored)
    return (table.get_batch(number) for number in range(table.num_record_batches))


def csv_dialect(head: bytes) -> dict[str, Any] | None:
    """Returns the `csv` module's settings for a table that begins with `head`; None for other text.

    The first line must have at least two distinct names, and the next rows as many cells.
    """
    first = head.removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0][:LONGEST_HEADER]
    if first[:1] in (b"{", b"[") or b"\0" in first:
        return None
    text = head.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    for delimiter in ",\t;|":
        dialect: dict[str, Any] = {"delimiter": delimiter}
        if delimiter == "\t" and _is_escaped(head):
            dialect |= {"quoting": csv.QUOTE_NONE}
        elif _ESCAPED.search(head):
            dialect |= {"escapechar": "\\", "doublequote": False}
        if delimiter in first.decode("utf-8", "replace") and _is_table(text, dialect):
            return dialect
    return None


def _is_escaped(head: bytes) -> bool:
    """Whether tabs, newlines and backslashes are escaped, as databases write them.

    Then a backslash of JSON is doubled, and no cell with JSON is in quotes.
    """
    cells = _UNQUOTED.findall(head)
    return b"\\\\" in b"".join(cells) and not any(map(_SINGLE.search, cells))


LONGEST_HEADER = 10_000
"""Maximum length of a CSV's first line."""


def _is_table(text: str, dialect: dict[str, Any]) -> bool:
    csv.field_size_limit(HEAD)
    lines = csv.reader(io.StringIO(text, newline=""), **dialect)
    try:
        header, *rows = itertools.islice(filter(None, lines), 4)
    except (csv.Error, ValueError):
        return False
    names = _column_names(header)
    is_header = len(names) > 1 and len(set(names)) == len(names)
    is_header = is_header and all(_COLUMN.fullmatch(name) for name in names)
    if len(text) >= HEAD:  # the last row may be longer than the head
        rows = rows[:-1]
    return is_header and all(len(row) == len(names) for row in rows)


def _column_names(header: list[str]) -> list[str]:
    """Returns the names of columns; pandas' index, which is the first, has an empty one."""
    names = [name.strip() for name in header]
    return [INDEX, *names[1:]] if names and not names[0] else names


def csv_rows(content: io.BufferedReader, name: str) -> Iterator[dict[str, Any] | bytes]:
    """Yields the rows of a CSV or TSV table, without empty cells.

    A row with too many cells, in which a delimiter was not quoted, is yielded as text, and so is
    the last row of a file that was cut.
    """
    dialect = csv_dialect(content.peek(HEAD))
    csv.field_size_limit(LONGEST_LINE)
    text = io.TextIOWrapper(content, "utf-8-sig", "surrogateescape", newline="")
    bounded = _BoundedRows(text)
    try:
        lines = csv.reader(bounded, **dialect or {})
        header = _column_names(next(lines))
        rows = bounded.rows(lines)
        for _, cells in without_blanks(enumerate(rows, start=1), any, name):
            cells = ["" if cell in NO_VALUE else cell for cell in cells]
            if dialect and dialect.get("quoting") == csv.QUOTE_NONE:
                cells = [_ESCAPE.sub(_unescaped, cell) for cell in cells]
            if lines.line_num == 2 and all(map(_TYPE.fullmatch, cells)):
                continue
            if len(cells) > len(header) or cells[-1].encode("utf-8", "replace").endswith(CUT_MARK):
                yield ",".join(cells).encode("utf-8", "surrogateescape")
            else:
                # Texts of R1 begin and end with line feeds.
                filled = zip(header, (cell.strip(" \t\r") for cell in cells), strict=False)
                yield {column: _value(cell) for column, cell in filled if cell}
    except csv.Error as error:
        raise OutriderError(
            f"{name}: damaged CSV at line {bounded.line} ({error}); export it again, or as JSON"
            " lines"
        ) from None
    finally:
        text.detach()


class _BoundedRows:
    """The lines of a CSV; ends in a `csv.Error` in a row longer than `LONGEST_LINE` characters.

    The `csv` module limits a cell, but not a line, and not the number of cells: 2 MB of gzip can
    hold a line that takes 850 MB.
    """

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self._left = LONGEST_LINE
        self.line = 0
        """Number of the line that was read last."""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(self._left + 1)
        if not line:
            raise StopIteration
        self.line += 1
        self._left -= len(line)
        if self._left < 0:
            raise csv.Error(f"a row of more than {LONGEST_LINE >> 20} MB")
        return line

    def rows(self, lines: Iterator[list[str]]) -> Iterator[list[str]]:
        """Yields the rows of a reader of these lines, each of which has the whole limit."""
        self._left = LONGEST_LINE
        for cells in lines:
            yield cells
            self._left = LONGEST_LINE


def _unescaped(match: re.Match[str]) -> str:
    return _UNESCAPED.get(match[1], match[1])


def _value(cell: str) -> Any:
    """Returns the object or list that a cell holds, otherwise its text."""
    if cell[0] + cell[-1] not in ("{}", "[]"):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell
