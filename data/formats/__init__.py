"""Registry of log formats; CONTRIBUTING.md describes how to add one.

A format is a module with
    recognizes(sample) -> bool                 whether a file's beginning matches the format
    parse(record) -> list[Exchange | Reject]   one outcome per choice; pure, runs in the workers,
                                               may raise `Reject`
and, if an exchange is not a single row,
    records(files, scratch) -> Iterator        `Record`s and `Reject`s that cover every row; cheap,
                                               runs in the main process in constant memory;
                                               `scratch` is a folder for temporary files
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.data.exchange import Exchange, Place, Record, Reject
from outrider.data.formats import (
    chat_messages,
    helicone,
    langfuse,
    litellm,
    openai_batch,
    openai_joined,
    openai_pairs,
    otel_genai,
    sglang,
    token_ids,
    vllm_log,
)
from outrider.data.formats.rows import row_records, sample_of
from outrider.data.formats.sources import LogFile
from outrider.data.formats.wrappers import unwrapped

FORMATS: dict[str, Any] = {
    "sglang": sglang,
    "vllm_log": vllm_log,
    "litellm": litellm,
    "openai_batch": openai_batch,
    "helicone": helicone,
    "langfuse": langfuse,
    "otel_genai": otel_genai,
    "token_ids": token_ids,
    "openai_pairs": openai_pairs,
    "messages": chat_messages,
    "openai_joined": openai_joined,
}
"""The first format that recognizes a file reads it, so specific formats come first."""

JOINING = frozenset({"openai_batch", "openai_joined", "vllm_log"})
"""Formats whose exchanges span several rows."""

WITH_OTHER_ROWS = frozenset({"langfuse", "otel_genai", "sglang", "vllm_log"})
"""Formats whose logs are mostly rows that are no requests: spans and log lines."""

UNKNOWN = "unknown"
"""Name under which summaries count the rows of files that no format recognized."""


def files_by_format(files: Sequence[LogFile], name: str = "auto") -> dict[str, list[LogFile]]:
    """Groups files by format, in order of first occurrence; may include `UNKNOWN`."""
    if name != "auto" and name not in FORMATS:
        raise OutriderError(
            f"traffic.format = {name!r}: unknown; choose auto or one of {', '.join(FORMATS)}"
        )
    files_of: dict[str, list[LogFile]] = {}
    for file in files:
        files_of.setdefault(format_of(file) if name == "auto" else name, []).append(file)
    return files_of


def format_of(file: LogFile) -> str:
    """Returns the first format that recognizes a file's beginning, or `UNKNOWN`."""
    sample = sample_of(file)
    sample = replace(sample, rows=tuple(map(unwrapped, sample.rows)))
    return next((name for name, module in FORMATS.items() if module.recognizes(sample)), UNKNOWN)


def read_records(name: str, files: Sequence[LogFile], scratch: Path) -> Iterator[Record | Reject]:
    """Yields the records of one format; for `UNKNOWN`, one reject per file."""
    if name != UNKNOWN:
        yield from getattr(FORMATS[name], "records", row_records)(files, scratch)
        return
    for file in files:
        count = sum(1 for _ in file.lines())
        if count:
            detail = "the beginning of the file has no known format"
            yield Reject("unknown_format", detail, Place(file.name, 1), rows=count)


def parse_record(name: str, record: Record) -> list[Exchange | Reject]:
    """Parses a record and sets the place of every reject."""
    try:
        outcomes = FORMATS[name].parse(record)
    except Reject as reject:
        outcomes = [reject]
    for outcome in outcomes:
        if isinstance(outcome, Reject):
            outcome.place = outcome.place or record.place
    return outcomes
