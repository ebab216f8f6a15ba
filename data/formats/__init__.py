"""Registry of log formats; CONTRIBUTING.md describes how to add one.

A format is a module with
    recognizes(sample) -> bool                 whether a file's beginning matches the format
    parse(record) -> list[Exchange | Reject]   one outcome per choice; pure, runs in the workers,
                                               may raise `Reject`
and, if an exchange is not a single row,
    records(files, scratch) -> Iterator        `Record`s and `Reject`s that cover every row; cheap,
                                               runs in the main process in constant memory;
                                               `scratch` is a folder for temporary files
or, if rows are calls that lack what other rows have,
    call_records(files, scratch) -> Iterator   the same, with one row as each record's payload
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.plugins import plugins
from outrider.data.exchange import Exchange, Place, Record, Reject
from outrider.data.files.packing import document_of
from outrider.data.files.rows import FileSample, count_rows, parse_row, read_sample, row_records
from outrider.data.files.sources import LogFile, members_of, read_ahead
from outrider.data.formats.known_files import is_capture
from outrider.data.formats.readers import (
    azure_llm,
    chat_messages,
    helicone,
    langfuse,
    litellm,
    message_pairs,
    message_rows,
    openai_batch,
    openai_joined,
    openai_pairs,
    otel_genai,
    sglang,
    token_ids,
    vllm_log,
)
from outrider.data.formats.rows.change_events import check_not_deleted
from outrider.data.formats.rows.embedded import json_of
from outrider.data.formats.rows.named_fields import with_named
from outrider.data.formats.rows.nested_rows import outcomes_of
from outrider.data.formats.rows.unread_names import names_in
from outrider.data.formats.unknown import describe_unknown_file
from outrider.data.formats.wrappers import calls_of, unwrap_row

_BUILT_IN: dict[str, Any] = {
    "sglang": sglang,
    "vllm_log": vllm_log,
    "litellm": litellm,
    "openai_batch": openai_batch,
    "helicone": helicone,
    "langfuse": langfuse,
    "azure_llm": azure_llm,
    "otel_genai": otel_genai,
    "token_ids": token_ids,
    "openai_pairs": openai_pairs,
    "message_pairs": message_pairs,
    "messages": chat_messages,
    "message_rows": message_rows,
    "openai_joined": openai_joined,
}

_ADDED = plugins("outrider.formats", taken=("auto", "unknown", *_BUILT_IN))
"""Formats of other packages (common/plugins.py)."""

FORMATS: dict[str, Any] = {**_ADDED, **_BUILT_IN}
"""The first format that recognizes a file reads it, so specific formats come first."""

JOINING = frozenset(
    {
        *("azure_llm", "message_rows", "openai_batch", "openai_joined", "otel_genai", "vllm_log"),
        *(name for name, module in _ADDED.items() if hasattr(module, "records")),
    }
)
"""Formats whose exchanges span several rows."""

OWN_NAMES = frozenset(
    {"azure_llm", "helicone", "litellm", "openai_batch", "sglang", "token_ids", "vllm_log"}
)
"""Formats that read sessions, users and times by themselves, under their producer's names."""

WITH_OTHER_ROWS = frozenset({"langfuse", "message_pairs", "otel_genai", "sglang", "vllm_log"})
"""Formats whose logs are mostly rows that are no requests: spans and log lines."""

UNKNOWN = "unknown"
"""Name under which summaries count the rows of files that no format recognized."""


def files_by_format(
    files: Sequence[LogFile], name: str = "auto", not_read: list[str] | None = None
) -> dict[str, list[LogFile]]:
    """Groups files and members of archives by format, in order of first occurrence.

    Files that no format recognizes are under `UNKNOWN` if there are no others. Otherwise they are
    set aside, and `not_read` receives each with its description.
    """
    if name != "auto" and name not in FORMATS:
        raise OutriderError(
            f"traffic.format = {name!r}: unknown; choose auto or one of {', '.join(FORMATS)}"
        )
    files_of: dict[str, list[LogFile]] = {}
    for file, sample in _samples(files):
        file.names = names_in(sample.rows[0]) if sample.rows else ()
        format_name = _recognized(sample) if name == "auto" or sample.archive else name
        if format_name == UNKNOWN:
            file.unknown = tuple(describe_unknown_file(sample, FORMATS))
            file.is_binary = sample.is_binary
        files_of.setdefault(format_name, []).append(file)
    if len(files_of) > 1 and not_read is not None:
        aside = files_of.pop(UNKNOWN, [])
        not_read += [f"{file.name} ({file.unknown[0]})" for file in aside]
    return files_of


def _samples(files: Sequence[LogFile]) -> Iterator[tuple[LogFile, FileSample]]:
    """Yields the files with their samples; archives are replaced by their members."""
    for file in read_ahead(files):
        sample = read_sample(file)
        members = members_of(file, sample.archive) if sample.archive else []
        document = document_of(member.member.name for member in members if member.member)
        if document:
            yield file, replace(sample, archive=document)
            continue
        for member in members:
            yield member, read_sample(member)
        if not members:
            yield file, sample


def format_of(file: LogFile) -> str:
    """Returns the first format that recognizes a file's beginning, or `UNKNOWN`."""
    return _recognized(read_sample(file))


def without_others(files: Sequence[LogFile]) -> list[LogFile]:
    """Returns archives and the files that a format recognizes; all files if there are none."""
    samples = [read_sample(file) for file in files]
    logs = [
        file
        for file, sample in zip(files, samples, strict=True)
        if sample.archive or _recognized(sample) != UNKNOWN
    ]
    return logs or list(files)


def _recognized(sample: FileSample) -> str:
    if is_capture(sample):
        return UNKNOWN
    whole = replace(sample, rows=tuple(map(unwrap_row, sample.rows)))
    calls = tuple(unwrap_row(call) for row in sample.rows for call in calls_of(row))
    single = replace(sample, rows=calls)
    for name, module in FORMATS.items():
        if module.recognizes(whole if hasattr(module, "records") else single):
            return name
    return UNKNOWN


def read_records(name: str, files: Sequence[LogFile], scratch: Path) -> Iterator[Record | Reject]:
    """Yields the records of one format; for `UNKNOWN`, one reject per file."""
    if name != UNKNOWN:
        module = FORMATS[name]
        by_row = getattr(module, "call_records", row_records)
        yield from getattr(module, "records", by_row)(files, scratch)
        return
    for file in read_ahead(files):
        # A file that is not text has no rows and counts as one.
        count = sum(1 for _ in file.count_rows_read([file])) if file.is_binary else count_rows(file)
        if count:
            yield Reject("unknown_format", ": ".join(file.unknown), Place(file.name, 1), rows=count)


def parse_record(name: str, record: Record) -> list[Exchange | Reject]:
    """Parses a record and sets the place of every reject."""
    try:
        outcomes = _outcomes(name, record)
    except Reject as reject:
        outcomes = [reject]
    # The search for a row's kind, sides and fields reads a text up to 25 times, so it is decoded
    # once. Nothing is kept for the next row: a row may have 64 MB.
    json_of.cache_clear()
    for outcome in outcomes:
        if isinstance(outcome, Reject):
            outcome.place = outcome.place or record.place
    return outcomes


def _outcomes(name: str, record: Record) -> list[Exchange | Reject]:
    """Returns the outcomes of a record; a row may list several calls."""
    module = FORMATS[name]
    has_own_names = name in OWN_NAMES or name in _ADDED
    if hasattr(module, "records"):
        outcomes = module.parse(record)
        if not has_own_names:
            return list(outcomes)
        return with_named(outcomes, *_rows_of(record.payload), are_joined=True)
    row = parse_row(record.payload)
    check_not_deleted(row)
    calls = calls_of(row)

    def parse_call(call: dict[str, Any]) -> list[Exchange | Reject]:
        outcomes = module.parse(replace(record, payload=call))
        return with_named(outcomes, call, row) if has_own_names else list(outcomes)

    return parse_call(calls[0]) if len(calls) == 1 else outcomes_of(calls, parse_call, "call")


def _rows_of(payload: Any) -> Iterator[dict[str, Any]]:
    """Yields the rows of a record, in order."""
    if isinstance(payload, tuple):
        for member in payload:
            yield from _rows_of(member)
    elif isinstance(payload, bytes):
        yield parse_row(payload)
    elif isinstance(payload, dict):
        yield payload
