"""Rows of a file, each as it was stored: JSON lines, JSON values over several lines, Parquet or Arrow.

A file is read as lines (a broken one damages nothing but itself), unless its beginning says that its values go over several
lines: an array, or objects that are pretty-printed. Values are cut out of
the stream by their brackets and quotes alone, without decoding them, so that memory stays constant, decoding is left to the
workers, and one broken element does not end the file.

    for number, row in rows(file): ...      # bytes of JSON, a dict of a table, or None: longer than LONGEST_LINE
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import IO, Any

from outrider.common.errors import OutriderError
from outrider.data.ingest.sources import CHUNK, LONGEST_LINE, LogFile

LINES_LOOKED_AT = 20
"""First lines that tell JSON lines from values over several lines."""

TABLES = (".parquet", ".arrow")

TABLE_ROWS = 64
"""Rows decoded at a time."""

_STRUCTURE = re.compile(rb'["{}\[\]]')
_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+("?)', re.DOTALL)
"""The rest of a string: up to its closing quote, or to the end of what was read (less a backslash that stands last)."""

_ARRAY = re.compile(rb"\s*\[\s*[{\[\]]")

Row = bytes | dict[str, Any]


def rows(file: LogFile) -> Iterator[tuple[int, Row | None]]:
    """Every row with its number from 1, a line's number where rows are lines; None for one above `LONGEST_LINE`."""
    if file.path.endswith(TABLES):
        numbered: Iterable[tuple[int, Row | None]] = enumerate(_table(file), start=1)
    elif _is_lines(file.head()):
        yield from file.lines()
        return
    else:
        numbered = enumerate(_values(file), start=1)
    for number, row in numbered:
        if file.is_read_enough():
            return
        file.meter.rows += 1
        yield number, row


def _is_lines(head: bytes) -> bool:
    head = head.removeprefix(b"\xef\xbb\xbf")
    lines = [line for line in head.split(b"\n")[:-1] if line.strip()][:LINES_LOOKED_AT]
    if _ARRAY.match(head):  # or lines that are arrays, though no format has such rows
        return len(lines) > 1 and _is_whole(lines[0])
    # Pretty-printed: an object that goes on in the next line, which is indented; a line that was cut off is followed by another.
    opened = len(lines) > 1 and lines[0].lstrip().startswith(b"{") and _goes_on(lines[0])
    return not (opened and (lines[0].strip() == b"{" or lines[1][:1].isspace()))


def _is_whole(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _goes_on(line: bytes) -> bool:
    """Whether a line is the beginning of a JSON value: nothing is wrong with it but that it ends."""
    text = line.decode("utf-8", "replace").rstrip()
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text)
    except (ValueError, RecursionError):
        return False
    return False


def _values(file: LogFile) -> Iterator[bytes | None]:
    """The JSON values of a file, those of a top-level array one by one, and whatever stands between them but white space."""
    cutter = _Cutter()
    with file.open() as content:
        while chunk := content.read(CHUNK):
            yield from cutter.cut(chunk)
    yield from cutter.end()


class _Cutter:
    """Cuts a stream into values; holds no more than one of them."""

    def __init__(self) -> None:
        self.depth = 0
        self.top = 0
        """The depth at which a value begins: 1 inside a top-level array, else 0."""
        self.in_string = False
        self.escaped = False
        self.pieces: list[bytes] = []
        self.size = 0

    def cut(self, chunk: bytes) -> Iterator[bytes | None]:
        """The values, and the oddments between them, that end in this chunk."""
        begin = at = 0
        if self.escaped:
            self.escaped, at = False, 1
        while at < len(chunk):
            if self.in_string:
                match = _STRING.match(chunk, at)
                at = match.end()
                self.in_string = not match[1]
                if (
                    self.in_string
                ):  # the chunk has ended, but for a backslash whose other half comes with the next
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
            elif self.depth == self.top:  # the end of the top-level array, or a bracket too many
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
        """What is left when the stream has ended: nothing, or a value that was cut off."""
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
                # Arrow trusts the offsets that a file gives, and reads beyond its memory where they are wrong.
                batch.validate(full=True)
                for start in range(0, len(batch), TABLE_ROWS):
                    yield from batch.slice(start, TABLE_ROWS).to_pylist()
        except (
            pa.ArrowException,
            OSError,
            UnicodeDecodeError,
            MemoryError,
        ) as error:  # a column's name, a length
            kind = "Parquet" if file.path.endswith(".parquet") else "Arrow"
            raise OutriderError(f"{file.name}: damaged {kind} ({error}); copy it again") from None


def _parquet(stored: IO[bytes]) -> Iterator[Any]:
    import pyarrow.parquet

    # Otherwise a row group is read whole, and a file may be one (446 MB: 635 MB resident, 230 MB so).
    parquet = pyarrow.parquet.ParquetFile(stored, pre_buffer=False, buffer_size=CHUNK)
    return parquet.iter_batches(TABLE_ROWS)


def _arrow(stored: IO[bytes]) -> Iterator[Any]:
    """The batches of an Arrow stream, which `datasets` writes, or of an Arrow file, which begins with its own mark."""
    import pyarrow as pa

    begins = stored.read(6)
    stored.seek(0)
    if begins != b"ARROW1":
        return iter(pa.ipc.open_stream(stored))
    table = pa.ipc.open_file(stored)
    return (table.get_batch(number) for number in range(table.num_record_batches))
