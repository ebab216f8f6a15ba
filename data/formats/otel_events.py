"""Messages of OpenTelemetry's GenAI conventions before 1.37, which logged them as events.

    gen_ai.user.message  {"content": "Hi"}
    gen_ai.choice  {"index": 0, "finish_reason": "stop", "message": {"content": "Hello"}}

    gen_ai.content.prompt  gen_ai.prompt = '[{"role": "user", "content": "Hi"}]'
    gen_ai.content.completion  gen_ai.completion = '[...]'

The former (1.28 to 1.36) are log records of one trace and span, or events within the span. The
latter (until 1.27) are events within it, and some instrumentations write their attributes on the
span itself. Both are converted to the attributes of 1.37.

    older_messages(span, attributes)
    # {"gen_ai.input.messages": [...], "gen_ai.output.messages": [...]}, or {}

Attributes are lists of typed values in OTLP, or plain objects:

    attributes({"attributes": [{"key": "gen_ai.system", "value": {"stringValue": "vllm"}}]})
    # {"gen_ai.system": "vllm"}
"""

from collections.abc import Iterator
from typing import Any

from outrider.data.exchange import Reject
from outrider.data.formats.fields import first, mapping, take, unpacked, unpacked_or_text

ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
CHOICE = "gen_ai.choice"
PROMPT, COMPLETION = "gen_ai.prompt", "gen_ai.completion"
"""Attributes with all messages, on the span or on the events `gen_ai.content.prompt` and
`gen_ai.content.completion`."""

CONTENT = "gen_ai.event.content"
"""Attribute with the body of an event within a span, as JSON."""

ATTRIBUTES = ("attributes", "SpanAttributes", "LogAttributes")
"""The latter two are columns of the collector's ClickHouse tables."""


def is_message(record: dict[str, Any]) -> bool:
    """Whether a log record is one message or one choice of a call."""
    name = _name(record)
    return name in ROLES or name == CHOICE


def calls_of(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Spans and log records in order; the messages of one call become a span with events."""
    calls: dict[tuple[Any, Any], dict[str, Any]] = {}
    for record in records:
        key = record.get("traceId"), record.get("spanId")
        try:
            joins = is_message(record) and all(isinstance(part, str) and part for part in key)
        except Reject:  # it alone is rejected when it is read
            joins = False
        if not joins:
            yield record
        elif key in calls:
            calls[key]["events"].append(record)
        else:
            calls[key] = {
                **record,
                "name": "",
                "eventName": "",
                "attributes": _without_name(record),
                "events": [record],
            }
    yield from calls.values()


def older_messages(span: dict[str, Any], logged: dict[str, Any]) -> dict[str, Any]:
    """Converts the older events and attributes of a span to those of 1.37.

    `logged` are the attributes of the span.
    """
    asked: list[Any] = []
    choices: list[tuple[int, dict[str, Any]]] = []
    whole = dict(logged)
    for event in take(span, "events", list, "span") or ():
        if not isinstance(event, dict):
            continue
        name = _name(event)
        if name in ROLES:
            asked.append(_message(_body(event), ROLES[name]))
        elif name == CHOICE:
            choices.append(_choice(_body(event), len(choices)))
        elif name in ("gen_ai.content.prompt", "gen_ai.content.completion"):
            whole = {**attributes(event), **whole}
    found = {}
    prompt, completion = (
        unpacked(whole, PROMPT, "attributes"),
        unpacked_or_text(whole, COMPLETION, "attributes"),
    )
    if isinstance(prompt, str):
        raise Reject(
            "prompt_not_messages",
            "gen_ai.prompt is a text: it is not logged whether a chat template was applied",
        )
    if asked or prompt is not None:
        found["gen_ai.input.messages"] = asked or (prompt if isinstance(prompt, list) else [prompt])
    if choices:
        found["gen_ai.output.messages"] = [
            choice for _, choice in sorted(choices, key=lambda item: item[0])
        ]
    elif completion is not None:
        answers = completion if isinstance(completion, list) else [completion]
        found["gen_ai.output.messages"] = [
            {"role": "assistant", "content": answer} if isinstance(answer, str) else answer
            for answer in answers
        ]
    return found


def _name(event: dict[str, Any]) -> str | None:
    named = first(
        *(event.get(key) or None for key in ("name", "eventName", "event_name", "EventName"))
    )
    named = named if isinstance(named, str) else attributes(event).get("event.name")
    return named if isinstance(named, str) else None


def _without_name(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in attributes(record).items() if key != "event.name"}


def _body(event: dict[str, Any]) -> dict[str, Any]:
    """Body of a log record, or of an event within a span."""
    for key in ("body", "Body"):
        body = event.get(key)
        if isinstance(body, dict) and set(body) & {"kvlistValue", "stringValue"}:
            body = plain(body)
        body = unpacked({key: body}, key, "event")
        if isinstance(body, dict):
            return body
    logged = attributes(event)
    body = unpacked(logged, CONTENT, "event")
    return body if isinstance(body, dict) else logged


def _message(body: dict[str, Any], role: str) -> dict[str, Any]:
    """A message in OpenAI's shape; its role is the event's unless the body has another."""
    message = {"role": take(body, "role", str, "event") or role, "content": body.get("content")}
    if (calls := _calls(body)) is not None:
        message["tool_calls"] = calls
    if role == "tool" and body.get("id") is not None:
        message["tool_call_id"] = body["id"]
    return message


def _choice(body: dict[str, Any], position: int) -> tuple[int, dict[str, Any]]:
    """Index and message of a choice."""
    message = unpacked(body, "message", "event")
    message = message if isinstance(message, dict) else body
    calls = first(_calls(message), _calls(body))
    reasoning = first(message.get("reasoning"), message.get("reasoning_content"))
    answer = {
        "role": "assistant",
        "content": message.get("content"),
        "finish_reason": body.get("finish_reason"),
    }
    if reasoning is not None:
        answer["reasoning"] = reasoning
    if calls is not None:
        answer["tool_calls"] = calls
    index = body.get("index")
    return index if type(index) is int else position, answer


def _calls(body: dict[str, Any]) -> list[Any] | None:
    calls = unpacked(body, "tool_calls", "event")
    return calls if isinstance(calls, list) and calls else None


def attributes(holder: dict[str, Any]) -> dict[str, Any]:
    """Attributes of a span, log record or event, in any notation; empty without any."""
    for key in ATTRIBUTES:
        value = holder.get(key)
        if isinstance(value, list) and not all(isinstance(item, tuple) for item in value):
            return _of_pairs(value)
        if value is not None:
            return mapping(holder, key, "span")
    return {}


def _of_pairs(pairs: list[Any]) -> dict[str, Any]:
    """OTLP's `[{"key": ..., "value": {"stringValue": ...}}]` as a dict."""
    if not all(isinstance(pair, dict) and isinstance(pair.get("key"), str) for pair in pairs):
        raise Reject("wrong_type", "span.attributes holds something other than keys with values")
    return {pair["key"]: plain(pair.get("value")) for pair in pairs}


def plain(value: Any) -> Any:
    """Plain value of an OTLP value."""
    if not isinstance(value, dict) or not value:
        return None
    (kind, held), *_ = value.items()
    if kind in ("arrayValue", "kvlistValue"):
        values = take(take(value, kind, dict, "value") or {}, "values", list, kind) or []
        return _of_pairs(values) if kind == "kvlistValue" else [plain(item) for item in values]
    if kind == "intValue":
        return (
            int(held)
            if isinstance(held, str) and held.lstrip("-").isdecimal() and len(held) < 20
            else held
        )
    return held
