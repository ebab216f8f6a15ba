"""The beginning of a file, from which formats tell whether it is theirs.

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
"""Rows that are tried for `ROWS` that parse."""


@dataclass(frozen=True)
class Sample:
    """What a format's `recognises` is given."""

    name: str
    """The file's, as errors name it."""
    head: bytes
    """Its first 64 KiB, unpacked."""
    rows: tuple[dict[str, Any], ...]
    """Its first rows that parsed to a JSON object (or stood in a Parquet file), at most 20."""


def sample_of(file: LogFile) -> Sample:
    """The sample of a file; what is read for it does not count as read."""
    parsed = []
    for _, row in itertools.islice(rows(replace(file, meter=Meter())), ROWS_LOOKED_AT):
        try:
            parsed.append(parse_row(row))
        except Reject:
            continue  # its reader rejects it, with its place
        if len(parsed) == ROWS:
            break
    return Sample(file.name, file.head(), tuple(parsed))
