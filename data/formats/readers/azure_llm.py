"""Azure API Management's LLM log: rows of `ApiManagementGatewayLlmLog`, joined by correlation id.

    {"CorrelationId": "6b0f", "SequenceNumber": 0, "DeploymentName": "DeepSeek-R1",
     "RequestMessages": "[{\\"role\\": \\"user\\", ...}]", "ResponseMessages": ""}
    {"CorrelationId": "6b0f", "SequenceNumber": 1, "CompletionTokens": 51,
     "RequestMessages": "", "ResponseMessages": "[{\\"role\\": \\"assistant\\", ...}]"}

The table is exported from Log Analytics as CSV or JSON; a diagnostic setting writes the same fields
as `properties` of JSON lines. Request and response are rows of their own, and both are cut into
rows above 32 KB (learn.microsoft.com, api-management-howto-llm-logs): pieces of the JSON text, or
lists of messages of which the last one goes on in the next row. A response is one message, however
many rows it has. Rows are in any order; if a sequence number is missing, the exchange is rejected
as `truncated`.

To get texts, enable "Log LLM messages" with "Log prompts" and "Log completions" for the API, each
with a size of 2 MB. Sampling parameters, tool definitions, sessions, users and finish reasons are
not in this log, and a response counts as finished. Prefer whole bodies, for instance with
log-to-eventhub.
"""

import functools
import json
from collections.abc import Sequence
from typing import Any

from outrider.data.exchange import Exchange, Record, Reject
from outrider.data.files.rows import FileSample, Row, parse_value
from outrider.data.formats.calls.openai import exchanges
from outrider.data.formats.fields import parse_number, take_count, take_text
from outrider.data.formats.rows.join import joined_records
from outrider.data.formats.rows.paths import normalize_key
from outrider.data.formats.rows.row_fields import fields
from outrider.data.formats.wrappers import open_row

FULL_ROW = 32_000
"""Least size in bytes of a row whose messages go on in the next row."""

NAMES = frozenset({"correlation_id", "sequence_number"})
TEXTS = frozenset({"request_messages", "response_messages"})

LOG_MESSAGES = (
    "enable Log LLM messages in the API's Azure Monitor settings, with Log prompts and Log"
    " completions"
)
RAISE_SIZE = (
    "raise the sizes of Log prompts and Log completions in the API's Azure Monitor settings"
)


def recognizes(sample: FileSample) -> bool:
    return any(_is_entry(_named(row)) for row in sample.rows)


def _named(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row's values by name in snake case; a diagnostic record has `properties`."""
    properties = row.get("properties")
    inner = properties if isinstance(properties, dict) else {}
    return {normalize_key(key): value for key, value in {**row, **inner}.items()}


def _is_entry(named: dict[str, Any]) -> bool:
    return named.keys() >= NAMES and not named.keys().isdisjoint(TEXTS)


def _member_of(row: Row | None) -> tuple[str, str, str | None]:
    """Returns a row as a piece of its exchange; its side is known once all of them are joined."""
    named = _named(open_row(row))
    key = take_text(named, "correlation_id", "row")
    if not key:
        raise Reject("no_id", "no CorrelationId")
    return key, "chunk", None


records = functools.partial(joined_records, member_of=_member_of)


def parse(record: Record) -> list[Exchange | Reject]:
    _, payloads = record.payload
    rows = [open_row(payload) for payload in payloads]
    entries = _in_sequence([_named(row) for row in rows])
    asked = _messages(entries, "request_messages")
    answered = _messages(entries, "response_messages")
    if not asked and not answered:
        raise Reject("content_not_logged", LOG_MESSAGES)
    if not answered:
        raise Reject("unmatched_request", "no row with the response: it failed, or was not logged")
    if not asked:
        raise Reject("unmatched_response", f"no row with the request; {LOG_MESSAGES}")
    if len(answered) > 1:
        raise Reject("wrong_type", "ResponseMessages has several messages")
    counts = {
        name: max((take_count(entry, name) or 0 for entry in entries), default=0) or None
        for name in ("completion_tokens", "prompt_tokens")
    }
    times = [time for time in (fields(row)["time"] for row in rows) if time is not None]
    return exchanges(
        {"messages": asked, "model": _first_text(entries, "deployment_name")},
        {
            "model": _first_text(entries, "model_name"),
            "choices": [{"message": answered[0], "finish_reason": "stop"}],
            "usage": counts,
        },
        record.place,
        time=min(times, default=None),
        log_id=_first_text(entries, "correlation_id"),
    )


def _in_sequence(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows of an exchange in order, each once."""
    by_number: dict[float, dict[str, Any]] = {}
    for entry in entries:
        at = parse_number(entry, "sequence_number")
        if at is None:
            raise Reject("wrong_type", "row.SequenceNumber is not a number")
        former = by_number.setdefault(at, entry)
        if any(former.get(name) != entry.get(name) for name in TEXTS):
            raise Reject("ambiguous_id", "different rows under one SequenceNumber")
    numbers = sorted(by_number)
    # Row 0 may have the counts alone, and is not needed.
    if numbers[0] > 1 or numbers[-1] - numbers[0] != len(numbers) - 1:
        raise Reject("truncated", "a row of the exchange is missing: export all of its rows")
    return [by_number[at] for at in numbers]


def _messages(entries: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Returns the messages of a side, of one or several rows; empty without a text."""
    texts = [text for text in (_text(entry, name) for entry in entries) if text]
    lists = [_list_of(text) for text in texts]
    if None in lists:
        joined = _list_of("".join(texts))
        if joined is None:
            raise Reject("truncated", f"{name} is incomplete JSON: {RAISE_SIZE}")
        return joined
    messages: list[dict[str, Any]] = []
    goes_on = False
    for text, listed in zip(texts, lists, strict=True):
        rest = list(listed or ())
        if goes_on and messages and rest and messages[-1].get("role") == rest[0].get("role"):
            messages[-1] = _glued(messages[-1], rest.pop(0))
        messages += rest
        is_full = len(text.encode("utf-8", "replace")) >= FULL_ROW
        goes_on = is_full or name == "response_messages"
    return messages


def _glued(begin: dict[str, Any], end: dict[str, Any]) -> dict[str, Any]:
    """Returns the message of two pieces."""
    contents = (begin.get("content"), end.get("content"))
    if not all(isinstance(content, str) for content in contents):
        raise Reject("truncated", "a message without text is cut into rows: log whole bodies")
    return {**begin, "content": "".join(map(str, contents))}


def _text(entry: dict[str, Any], name: str) -> str | None:
    """Returns a side's text; a table's cell with JSON is decoded."""
    value = entry.get(name)
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return take_text(entry, name, "row")


def _list_of(text: str) -> list[dict[str, Any]] | None:
    """Returns the messages that a text is; None for a piece of JSON."""
    try:
        value = parse_value(text.encode("utf-8", "surrogatepass"))
    except Reject:
        return None
    messages = value if isinstance(value, list) else [value]
    return messages if all(isinstance(message, dict) for message in messages) else None


def _first_text(entries: Sequence[dict[str, Any]], name: str) -> str | None:
    return next(filter(None, (take_text(entry, name, "row") for entry in entries)), None)
