"""Framing: cuts a file into rows (JSON lines, multi-line JSON values, Parquet, Arrow).

A file is read as lines, so that a broken line damages only itself, unless it begins with a value
that spans lines: an array or a pretty-printed object. Such values are cut by their brackets and
quotes, without decoding. Memory stays constant, the workers decode, and one broken element does not
end the file.

    for number, row in rows(file): ...      # JSON bytes, a table's dict, or None: over LONGEST_LINE
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import IO, Any

from outrider.common.errors import OutriderError
from outrider.data.formats.sources import CHUNK, LONGEST_LINE, LogFile

LINES_LOOKED_AT = 20
"""First lines that are examined to distinguish JSON lines from multi-line values."""

TABLES = (".parquet", ".arrow")

TABLE_ROWS = 64
"""Rows decoded at a time."""

_STRUCTURE = re.compile(rb'["{}\[\]]')
_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+("?)', re.DOTALL)
"""The rest of a string: up to its closing quote, or to the end of the chunk (without a trailing
backslash)."""

_ARRAY = re.compile(rb"\s*\[\s*[{\[\]]")

Row = bytes | dict[str, Any]


def rows(file: LogFile) -> Iterator[tuple[int, Row | None]]:
    """Yields every row with its number from 1; None for one above `LONGEST_LINE`.

    The number is the line number where rows are lines.
    """
    if file.path.endswith(TABLES):
        numbered: Iterable[tuple[int, Row | None]] = enumerate(_table(file), start=1)
    elif is_lines(file.head()):
        yield from file.lines()
        return
    else:
        numbered = enumerate(_values(file), start=1)
    for number, row in numbered:
        if file.is_read_enough():
            return
        file.meter.rows += 1
        yield number, row


def is_lines(head: bytes) -> bool:
    """Whether a file that begins so has a row in every line."""
    head = head.removeprefix(b"\xef\xbb\xbf")
    lines = [line for line in head.split(b"\n")[:-1] if line.strip()][:LINES_LOOKED_AT]
    if _ARRAY.match(head):  # or lines that are arrays, though no format has such rows
        return len(lines) > 1 and _continues(lines[0]) is None
    # Pretty-printed: an object that continues on the next line, which is indented. A line that was
    # cut off is followed by another object.
    opened = len(lines) > 1 and lines[0].lstrip().startswith(b"{") and _continues(lines[0])
    return not (opened and (lines[0].strip() == b"{" or lines[1][:1].isspace()))


def _continues(line: bytes) -> bool | None:
    """Whether a line of JSON continues on the next line; None where it is whole."""
    text = line.decode("utf-8", "replace").rstrip()
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text)
    except (ValueError, RecursionError):
        return False
    return None


def _values(file: LogFile) -> Iterator[bytes | None]:
    """The JSON values of a file, or of its top-level array, and any text between them."""
    cutter = _Cutter()
    with file.open() as content:
        while chunk := content.read(CHUNK):
            yield from cutter.cut(chunk)
    yield from cutter.end()


class _Cutter:
    """Cuts a stream into values; holds at most one of them."""

    def __init__(self) -> None:
        self.depth = 0
        self.top = 0
        """Depth at which values begin: 1 inside a top-level array, else 0."""
        self.in_string = False
        self.escaped = False
        self.pieces: list[bytes] = []
        self.size = 0

    def cut(self, chunk: bytes) -> Iterator[bytes | None]:
        """Yields the values, and the text between them, that end in this chunk."""
        begin = at = 0
        if self.escaped:
            self.escaped, at = False, 1
        while at < len(chunk):
            if self.in_string:
                string = _STRING.match(chunk, at)
                assert string is not None  # it matches an empty string
                at = string.end()
                self.in_string = not string[1]
                if self.in_string:  # the chunk has ended, perhaps with half an escape
                    self.escaped = at < len(chunk)
                    break
                continue
            match = _STRUCTURE.search(chunk, at)
            if match is None:
                break
            mark, at = match[0], match.end()
            if mark == b'"':
                self.in_string = True
            elif mark in b"{[":
                if self.depth == self.top:
                    self._hold(chunk[begin : at - 1])
                    yield from self._take(between=True)
                    begin = at - 1
                    if self.depth == 0 and mark == b"[":
                        self.top, begin = 1, at
                self.depth += 1
            elif self.depth == self.top:  # the end of the top-level array, or an extra bracket
                self._hold(chunk[begin : at - 1])
                yield from self._take(between=True)
                self.depth = self.top = 0
                begin = at
            else:
                self.depth -= 1
                if self.depth == self.top:
                    self._hold(chunk[begin:at])
                    yield from self._take()
                    begin = at
        self._hold(chunk[begin:])

    def end(self) -> Iterator[bytes | None]:
        """Yields the rest at the end of the stream: nothing, or a truncated value."""
        yield from self._take(between=self.depth == self.top)

    def _hold(self, piece: bytes) -> None:
        self.size += len(piece)
        self.pieces.append(piece)
        if self.size > LONGEST_LINE:
            self.pieces.clear()

    def _take(self, between: bool = False) -> Iterator[bytes | None]:
        held = b"".join(self.pieces) if self.size <= LONGEST_LINE else None
        self.pieces.clear()
        self.size = 0
        if held is None or held.strip(b" \t\r\n,\xef\xbb\xbf" if between else None):
            yield held


def _table(file: LogFile) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    with file.stored() as stored:
        try:
            for batch in _parquet(stored) if file.path.endswith(".parquet") else _arrow(stored):
                file.meter.bytes = min(stored.tell(), file.size())
                # Arrow trusts the offsets in a file and reads beyond its memory where they are
                # wrong.
                batch.validate(full=True)
                for start in range(0, len(batch), TABLE_ROWS):
                    yield from batch.slice(start, TABLE_ROWS).to_pylist()
        except (
            pa.ArrowException,
            OSError,
            UnicodeDecodeError,
            MemoryError,
        ) as error:  # a column name, a length
            kind = "Parquet" if file.path.endswith(".parquet") else "Arrow"
            raise OutriderError(f"{file.name}: damaged {kind} ({error}); copy it again") from None


def _parquet(stored: IO[bytes]) -> Iterator[Any]:
    import pyarrow.parquet

    # Otherwise a row group is read whole, and a file may be a single one (446 MB: 635 MB resident;
    # 230 MB with this).
    parquet = pyarrow.parquet.ParquetFile(stored, pre_buffer=False, buffer_size=CHUNK)
    return parquet.iter_batches(TABLE_ROWS)


def _arrow(stored: IO[bytes]) -> Iterator[Any]:
    """Batches of an Arrow stream, as `datasets` writes it, or of an Arrow file."""
    import pyarrow as pa

    begins = stored.read(6)
    stored.seek(0)
    if begins != b"ARROW1":
        return iter(pa.ipc.open_stream(stored))
    table = pa.ipc.open_file(stored)
    return (table.get_batch(number) for number in range(table.num_record_batches))
