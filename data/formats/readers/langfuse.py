"""Langfuse observations: blob-storage export (snake case) and UI or API JSON (camel case).

    {"type": "GENERATION", "trace_id": "t1", "start_time": "2026-07-01 10:00:00.000000",
     "input": "[{\\"role\\": \\"user\\", ...}]", "output": "{\\"role\\": \\"assistant\\", ...}",
     "model_parameters": "{\\"temperature\\": 0.6}", "usage_details": {"output": 93}}

The export is JSON lines or Parquet. Input, output and parameters are JSON strings; an empty string
means unset. Observations have no finish reason, so an observation that used all of its
`max_tokens` counts as truncated, and any other as finished.

To get them, use the blob-storage integration (name the folder `observations_v2/`) or a JSON export,
with the input, output, model and usage field groups. Only observations of type `GENERATION` are
read, also those inside a downloaded trace (`observations`). Langfuse's OpenAI wrapper drops the
reasoning (`reasoning_missing`) and writes temperature 1 if a request had none.

The legacy export, and the tables of ClickHouse, have session and user in `traces/` alone; they are
joined by `trace_id` if `traffic.path` is the folder around both
(langfuse.com/docs, blob-storage-export-fields). Traces, scores and manifests are no calls.
"""

import contextlib
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from outrider.data.exchange import Exchange, Place, Record, Reject
from outrider.data.files.rows import FileSample, Row, parse_row, read_rows
from outrider.data.files.sources import LogFile, read_ahead
from outrider.data.formats.calls.cache_hits import check_generated
from outrider.data.formats.calls.cut_texts import check_whole
from outrider.data.formats.calls.finish_reasons import end_by_limit
from outrider.data.formats.calls.message_parts import openai_message, openai_messages
from outrider.data.formats.calls.openai import exchanges
from outrider.data.formats.calls.sampling import CONSTRAINTS, NUMBERS
from outrider.data.formats.calls.served_apis import message_of_items
from outrider.data.formats.fields import (
    first_value,
    parse_number,
    take,
    take_count,
    take_json,
    take_json_or_text,
    take_mapping,
    take_text,
    take_time,
)
from outrider.data.formats.rows.join import database_in, sqlite_text
from outrider.data.formats.rows.named_fields import with_named
from outrider.data.formats.rows.nested_rows import outcomes_of
from outrider.data.formats.rows.row_fields import seconds_of
from outrider.data.formats.wrappers import OBSERVATIONS, TRACE, is_observation, open_row

OWNERS = ("session", "user")

CAMEL = {
    "trace_id": "traceId",
    "model_parameters": "modelParameters",
    "usage_details": "usageDetails",
    "completion_tokens": "completionTokens",  # Langfuse 2
    "tool_definitions": "toolDefinitions",
    "start_time": "startTime",
    "session_id": "sessionId",
    "user_id": "userId",
    "prompt_name": "promptName",
    "provided_model_name": "model",
}

_OF_LITELLM = re.compile(r"time-\d\d-\d\d-\d\d-\d{1,6}_(\S+)")
"""An observation's id by LiteLLM: when the call began, and the response's id (litellm/utils.py,
`get_logging_id`)."""

MESSAGE = {
    *("role", "content", "tool_calls", "function_call"),
    *("reasoning", "reasoning_content", "refusal", "audio"),
}
"""Keys of an assistant's message. An output with other keys is text that happens to be JSON."""


SCORE = frozenset({"trace_id", "observation_id", "data_type", "string_value"})

TRACES = re.compile(r"(?:^|[/:])traces(?![a-z])[^/]*(?:/(?!observations)[^/]*)?\Z")
"""The path of a file whose name, or whose folder's name, is that of traces."""


def recognizes(sample: FileSample) -> bool:
    tests = (is_observation, _is_trace, _is_trace_alone)
    is_read = any(test(row) for row in sample.rows for test in tests)
    return is_read or any(_other_kind(row) is not None for row in sample.rows)


def _other_kind(row: dict[str, Any]) -> str | None:
    """Returns what a row of an export is that is no observation; None for any other row."""
    if row.keys() >= SCORE:
        return "a score"
    if row.keys() >= TRACE and "trace_id" not in row:
        return "a trace: the calls are its observations, which take its session and user"
    files = row.get("files")
    if isinstance(files, list) and any("observations" in str(file) for file in files):
        return "a manifest"
    return None


def call_records(files: Sequence[LogFile], scratch: Path) -> Iterator[Record | Reject]:
    """Yields a record per row; observations have the session and user of their trace.

    Files of traces are read first, into a table on the disk.
    """
    of_traces = [file for file in files if TRACES.search(file.name)]
    others = [file for file in files if not TRACES.search(file.name)]
    with contextlib.closing(database_in(scratch)) as database:
        database.execute("CREATE TABLE traces (id TEXT PRIMARY KEY, session TEXT, user TEXT)")
        for file in read_ahead(of_traces):
            for number, row in read_rows(file):
                _store(database, row)
                yield Record(Place(file.name, number), row)
        is_joined = bool(of_traces)
        for file in read_ahead(others):
            for number, row in read_rows(file):
                payload = _of_trace(database, row) if is_joined else row
                yield Record(Place(file.name, number), payload)


def _store(database: sqlite3.Connection, row: Row | None) -> None:
    """Adds a row to the table of traces if it is one; a later row replaces a former one."""
    try:
        trace = parse_row(row)
    except Reject:  # parsed again, and rejected, by a worker
        return
    if _other_kind(trace) is not None:
        values = [sqlite_text(trace.get(key)) for key in ("id", "session_id", "user_id")]
        database.execute("INSERT OR REPLACE INTO traces VALUES (?, ?, ?)", values)


def _of_trace(database: sqlite3.Connection, row: Row | None) -> Row | None:
    """Returns an observation with the session and user of its trace."""
    try:
        observation = parse_row(row)
    except Reject:
        return row
    key = sqlite_text(first_value(observation.get("trace_id"), observation.get("traceId")))
    query = "SELECT session, user FROM traces WHERE id = ?"
    session, user = database.execute(query, (key,)).fetchone() or (None, None)
    given = {"session_id": session, "user_id": user}
    lacking = {name: value for name, value in given.items() if value and not observation.get(name)}
    return {**observation, **lacking} if lacking else row


def _is_trace(row: dict[str, Any]) -> bool:
    observations = row.get("observations")
    return isinstance(observations, list) and any(map(is_observation, observations))


def _is_trace_alone(row: dict[str, Any]) -> bool:
    """Whether a row is a trace whose observations are ids, as the list of traces has it."""
    observations = row.get("observations")
    if not isinstance(observations, list) or "htmlPath" not in row:
        return False
    return all(isinstance(observation, str) for observation in observations)


def parse(record: Record) -> list[Exchange | Reject]:
    row = open_row(record.payload)
    if _is_trace_alone(row):
        raise Reject(
            "content_not_logged",
            "a trace without its observations, whose input and output are not the call's: export"
            " the observations (GET /api/public/observations)",
        )
    kind = _other_kind(row)
    if kind is not None and not is_observation(row) and not _is_trace(row):
        raise Reject("not_a_generation", kind)
    if not _is_trace(row):
        return with_named(_outcomes(row, record.place), row)
    # The API's observations lack the session and user of their trace.
    trace = row.get("trace")  # the trace that the interface downloads
    about = trace if isinstance(trace, dict) else row
    of_trace = {key: about.get(key) for key in ("sessionId", "userId", "session_id", "user_id")}
    observations = filter(is_observation, row["observations"])
    # A null of an observation would hide the trace's value.
    return outcomes_of(
        ({**of_trace, **_without_nulls(observation)} for observation in observations),
        lambda observation: with_named(_outcomes(observation, record.place), observation, row),
        "observation",
    )


def _without_nulls(holder: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in holder.items() if value is not None}


def _outcomes(logged: dict[str, Any], place: Place) -> list[Exchange | Reject]:
    row = {**logged, **{snake: logged[camel] for snake, camel in CAMEL.items() if camel in logged}}
    if str(row.get("type")) not in OBSERVATIONS:
        raise Reject("wrong_type", "row.type is not an observation type")
    if row["type"] != "GENERATION":
        raise Reject("not_a_generation", row["type"])
    if row.get("level") == "ERROR":
        raise Reject("error_response", "level ERROR")
    check_generated(row)
    for key in ("input", "output"):  # messages are checked one by one
        if isinstance(row.get(key), str):
            check_whole(row[key], f"row.{key}")
    parameters = take_mapping(row, "model_parameters", "row")
    metadata = take_mapping(row, "metadata", "row")
    usage = take_mapping(row, "usage_details", "row")
    # From `output`, Langfuse subtracts kinds of tokens that it counts separately
    # (`output_reasoning_tokens`).
    counts = [parse_number(usage, key) for key in usage if "output" in key]
    logged_counts = [count for count in counts if count is not None]
    # Langfuse 2 writes 0 for an unknown count. Tables from its interface have `outputUsage`.
    counted = take_count(row, "completion_tokens") or take_count(row, "outputUsage") or None
    used = int(sum(logged_counts)) if logged_counts else counted
    model = take_text(row, "provided_model_name", "row") or None
    request = {
        **{key: take_json_or_text(parameters, key, "model_parameters") for key in CONSTRAINTS},
        **_asked(row),
        "model": model,
        **{name: parse_number(parameters, name) for name in NUMBERS},
    }
    row_id = take_text(row, "id", "row")
    of_litellm = _OF_LITELLM.fullmatch(row_id or "")
    response = {
        "id": of_litellm[1] if of_litellm else None,
        "choices": [],
        "usage": None if used is None else {"completion_tokens": used},
        **_answered(row, _finish_reason(parameters, used)),
    }
    began = take_time(row, "start_time")
    return exchanges(
        request,
        response,
        place,
        **{name: _text(row, f"{name}_id") or _of_langchain(metadata, name) for name in OWNERS},
        tenant=_text(metadata, "tenant"),
        route=_text(metadata, "route") or take_text(row, "prompt_name", "row") or None,
        time=began,
        seconds=seconds_of(row, began),
        log_id=row_id,
    )


def _asked(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the messages, tools and sampling constraints of the request."""
    asked = take_json(row, "input", "row")
    if asked is None:
        raise Reject("content_not_logged", "row.input is empty")
    request = asked if isinstance(asked, dict) and "messages" in asked else {"messages": asked}
    messages = request["messages"]
    if isinstance(messages, dict) and "role" in messages:
        messages = [messages]
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise Reject("prompt_not_messages", "row.input is not a list of messages")
    definitions = take_mapping(
        row, "tool_definitions", "row"
    )  # Langfuse extracts them from the request
    tools = [
        {
            "type": "function",
            "function": {"name": name, **take_mapping(definitions, name, "tool_definitions")},
        }
        for name in definitions
    ] or None
    return {
        **{key: request[key] for key in CONSTRAINTS if request.get(key) is not None},
        "messages": openai_messages(messages, "row.input"),
        "tools": first_value(take(request, "tools", list, "row.input"), tools),
    }


def _answered(row: dict[str, Any], finish_reason: Any) -> dict[str, Any]:
    """Returns the response's choices, or the whole response if it was logged."""
    answer = take_json_or_text(row, "output", "row")
    if answer is None:
        raise Reject("content_not_logged", "row.output is empty")
    if isinstance(answer, dict) and isinstance(answer.get("choices"), list):
        return {key: value for key, value in answer.items() if value is not None}
    answer = message_of_items(answer) or answer
    answers = (
        answer
        if isinstance(answer, list) and answer and all(map(_is_message, answer))
        else [answer]
    )
    messages = [
        _with_reasoning(openai_message(one, "row.output")[-1])
        if _is_message(one)
        else {"content": take(row, "output", str, "row")}
        for one in answers
    ]
    return {
        "choices": [{"message": message, "finish_reason": finish_reason} for message in messages]
    }


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Returns an answer with the reasoning that LangChain's messages have apart."""
    extra = message.get("additional_kwargs")
    reasoning = extra.get("reasoning_content") if isinstance(extra, dict) else None
    if not isinstance(reasoning, str) or message.get("reasoning_content"):
        return message
    return {**message, "reasoning_content": reasoning}


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return value.get("role") == "assistant" or ("content" in value and value.keys() <= MESSAGE)


def _finish_reason(parameters: dict[str, Any], used: int | None) -> str | dict[str, Any]:
    limit = first_value(
        *(
            parse_number(parameters, key)
            for key in ("max_completion_tokens", "max_tokens", "maxTokens")
        )
    )
    return end_by_limit(limit, used)


def _of_langchain(metadata: dict[str, Any], name: str) -> str | None:
    """Returns what LangChain's callback handler has in an observation's metadata."""
    keys = (f"langfuse_{name}_id", "thread_id") if name == "session" else (f"langfuse_{name}_id",)
    return next(filter(None, (_text(metadata, key) for key in keys)), None)


def _text(metadata: dict[str, Any], key: str) -> str | None:
    """Returns a metadata string, stripped of any JSON quotes, or None."""
    value = metadata.get(key)
    return value.strip('"') or None if isinstance(value, str) else None
