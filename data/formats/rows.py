"""From a file to rows, and from a row's bytes to a dict; the sample by which formats are found.

records = row_records                       # in a format with one exchange per row
def parse(record): row = parse_row(record.payload); ...
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from outrider.data.exchange import Place, Record, Reject
from outrider.data.formats.framing import Row, rows
from outrider.data.formats.sources import LONGEST_LINE, LogFile, Meter

DEEPEST = 100
"""Maximum nesting; a row of a chat API has about ten levels, a tool's JSON schema some tens."""

SAMPLE_ROWS, ROWS_LOOKED_AT = 20, 200
"""Rows of a sample, and rows that are tried to get them."""


@dataclass(frozen=True)
class Sample:
    """The beginning of a file: argument of a format's `recognizes`."""

    head: bytes
    """Its first 64 KiB, decompressed."""
    rows: tuple[dict[str, Any], ...]
    """Its first rows that are JSON objects or rows of a table, at most 20."""


def sample_of(file: LogFile) -> Sample:
    """Reads the sample of a file, without counting it as read."""
    parsed = []
    for _, row in itertools.islice(rows(replace(file, meter=Meter())), ROWS_LOOKED_AT):
        try:
            parsed.append(parse_row(row))
        except Reject:
            continue  # the format's reader rejects it, with its place
        if len(parsed) == SAMPLE_ROWS:
            break
    return Sample(file.head(), tuple(parsed))


def row_records(files: Sequence[LogFile], scratch: Path) -> Iterator[Record | Reject]:
    """Yields one record for every row of every file."""
    for file in files:
        for number, row in rows(file):
            yield row_record(Place(file.name, number), row)


def row_record(place: Place, row: Row | None) -> Record | Reject:
    """The record of one row of `framing.rows`."""
    if row is None:
        return Reject("line_too_long", f"more than {LONGEST_LINE >> 20} MB", place)
    return Record(place, row)


def parse_row(row: Row | None) -> dict[str, Any]:
    """Parses the object in a row.

    Raises:
        Reject: it is not an object, or it is ambiguous.
    """
    if row is None:
        raise Reject("line_too_long")
    value = row if isinstance(row, dict) else decode(row)
    if not isinstance(value, dict):
        raise Reject("not_an_object", f"the row is {kind_of(value)}")
    if isinstance(row, dict):
        _check_depth(value)
    return value


def kind_of(value: Any) -> str:
    """Describes the type of a JSON value."""
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "a truth value",
        type(None): "null",
    }
    return names.get(type(value), "a number")


def decode(text: bytes) -> Any:
    """Parses a JSON value.

    Raises:
        Reject: it is invalid or ambiguous.
    """
    try:
        value = json.loads(
            text.decode("utf-8"), object_pairs_hook=_object, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError as error:
        raise Reject("not_utf8", f"byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise Reject("not_json", f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise Reject("nested_too_deeply") from None
    except ValueError:  # an integer of thousands of digits
        raise Reject("not_json", "a number is too long") from None
    if text.count(b"[") + text.count(b"{") > DEEPEST:
        _check_depth(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    holder = dict(pairs)
    if len(holder) != len(pairs):
        raise Reject("duplicate_key", "two values under one key of an object")
    return holder


def _refuse_constant(name: str) -> NoReturn:
    raise Reject("not_json", f"{name} is not a JSON number")


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


def with_other_lines(
    items: Iterable[Record | Reject | Place | None],
) -> Iterator[Record | Reject]:
    """Replaces runs of a text log's lines without a request, given as places, by one reject each.

    None ends a run: a line with a request that gives nothing yet.
    """
    for _, run in itertools.groupby(items, lambda item: isinstance(item, Place)):
        for item in run:
            if isinstance(item, Place):
                rows = 1 + sum(1 for _ in run)
                yield Reject("not_a_generation", "lines that log no request", item, rows=rows)
            elif item is not None:
                yield item
