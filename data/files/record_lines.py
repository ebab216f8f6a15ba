"""Lines of text inside the JSON records of log collectors.

    lines_in({"MESSAGE": "INFO 07-01 ...", "__REALTIME_TIMESTAMP": "1782907200123456"})
    # one Line: the text, and the objects around it, outermost first

A record has one line under a name in `NAMES`: journald (`MESSAGE`), Vector, Filebeat, stern and
Datadog (`message`), Google Cloud (`textPayload`), logcli and Grafana (`line`), FireLens (`log`),
Splunk (`_raw`), Azure (`LogMessage`, `LogEntry`), OTLP (`body.stringValue`). Loki's API has pairs
of a time and a line. Lists and objects around records are searched, bodies of requests are not.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

NAMES = (
    *("message", "MESSAGE", "Message", "log", "line", "Line", "textPayload", "_raw"),
    *("LogMessage", "LogEntry", "msg", "_msg", "body", "Body", "event", "content", "_line"),
    "@message",  # CloudWatch Logs Insights
    *("Log", "Log_s"),  # Azure Container Apps
)
"""Names of a record's line, in order of preference."""

BODIES = frozenset(
    {
        *("messages", "choices", "conversations", "prompt", "request", "response"),
        *("input", "output", "inputs", "outputs", "tools"),
    }
)
"""Keys of requests and responses, whose texts are a customer's."""

DEEPEST = 16
"""Levels of objects and lists that are searched; those of an array of OTLP documents have 8."""

EVENT = "request."
"""How the value of `event` in SGLang's own records begins."""


class Line(NamedTuple):
    """A line, and the objects around it, outermost first."""

    text: str
    holders: tuple[dict[str, Any], ...]


def lines_in(value: Any) -> Iterator[Line]:
    """Yields the lines of a record, or of a document with several."""
    yield from _lines(value, (), DEEPEST)


def _lines(value: Any, holders: tuple[dict[str, Any], ...], levels: int) -> Iterator[Line]:
    """Yields the lines in the next `levels` levels."""
    if not levels:
        return
    if isinstance(value, list):
        yield from _in_list(value, holders, levels)
        return
    if not isinstance(value, dict):
        return
    if str(value.get("event")).startswith(EVENT):
        # A collector that parses JSON (Google's `jsonPayload`) has the record itself.
        if holders:
            yield Line(json.dumps(value, ensure_ascii=False), holders)
        return
    around = (*holders, value)
    text = next(filter(None, (_text(value.get(name)) for name in NAMES)), None)
    if text:
        inner = list(_lines(_object(text), around, levels - 1))
        yield from inner or [Line(text, around)]
        return
    for key, inside in value.items():
        if key not in BODIES and isinstance(inside, dict | list):
            yield from _lines(inside, around, levels - 1)


def _in_list(items: list[Any], holders: tuple[dict[str, Any], ...], levels: int) -> Iterator[Line]:
    record = _record_of_fields(items)
    if record:
        yield from _lines(record, holders, levels)
        return
    for item in items:
        if _is_pair(item):
            yield Line(item[1], (*holders, {"time": item[0]}))
        elif isinstance(item, dict | list):
            yield from _lines(item, holders, levels - 1)


def _record_of_fields(items: list[Any]) -> dict[str, Any] | None:
    """Returns a record that is a list of fields and values: CloudWatch's query results."""
    if not all(isinstance(item, dict) and "value" in item for item in items):
        return None
    names = [item.get("field") for item in items]
    if not names or not all(isinstance(name, str) for name in names):
        return None
    return {str(name): item["value"] for name, item in zip(names, items, strict=True)}


def _is_pair(item: Any) -> bool:
    """Whether an item is a time in nanoseconds and a line, as in Loki's API."""
    if not isinstance(item, list) or len(item) not in (2, 3):
        return False
    return isinstance(item[1], str) and isinstance(item[0], str) and item[0].isdecimal()


def _text(value: Any) -> str | None:
    """Returns text; OTLP's has a type around it, and journald's is bytes if it has colors.

    Cloudflare's Workers have a list of the texts that were printed together.
    """
    if isinstance(value, dict):
        value = value.get("stringValue", value.get("string_value"))
    if isinstance(value, list) and value and all(type(byte) is int for byte in value):
        try:
            return bytes(value).decode("utf-8", "replace")
        except ValueError:
            return None
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return next((part for part in value if part.startswith("{")), " ".join(value))
    return value if isinstance(value, str) else None


def _object(text: str) -> Any:
    """Returns the object that a line is; None for other text."""
    if text[:1] != "{":
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
