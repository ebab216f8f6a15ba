"""Sample of a file: its beginning, by which formats recognize it.

sample = sample_of(file)
sample.rows[0].keys(), sample.head[:20]
"""

import itertools
from dataclasses import dataclass, replace
from typing import Any

from outrider.data.exchange import Reject
from outrider.data.formats.rows import parse_row
from outrider.data.ingest.framing import rows
from outrider.data.ingest.sources import LogFile, Meter

ROWS = 20
ROWS_LOOKED_AT = 200
"""Rows that are tried to get `ROWS` that parse."""


@dataclass(frozen=True)
class Sample:
    """Argument of a format's `recognizes`."""

    name: str
    """Name of the file in errors."""
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
        if len(parsed) == ROWS:
            break
    return Sample(file.name, file.head(), tuple(parsed))
