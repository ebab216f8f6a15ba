"""Describes a file that no format recognizes, and the shortest way to one that is read.

    described = describe_unknown_file(sample, FORMATS)
    described.what      # rows with the keys system, conversations
    described.way       # ShareGPT's conversations/from/value: rename them to ...

A description has names of keys and columns, and never a value.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from outrider.data.exchange import Reject
from outrider.data.files.record_lines import lines_in
from outrider.data.files.rows import FileSample, parse_value
from outrider.data.formats.known_files import (
    TEXTS,
    Description,
    describe_bytes,
    describe_packet_capture,
    is_capture,
)
from outrider.data.formats.known_rows import (
    CHAT_EXPORT,
    GATEWAY,
    RENAME,
    SHAPES,
    WRITE_MESSAGES,
)
from outrider.data.formats.rows.embedded import object_of
from outrider.data.formats.rows.paths import normalize_key
from outrider.data.formats.rows.unread_names import names_in
from outrider.data.formats.sides import sides
from outrider.data.formats.wrappers import is_chat_export

SHOWN_KEYS = 8
"""Maximum number of keys in a description."""

LINES_OF_HALVES = (
    "requests and responses in lines of their own: write each line as a row, for Loki's answer with"
    " `jq -r '.data.result[].values[][1]' FILE > log.jsonl`"
)

REQUEST_ALONE = (
    "requests without their responses: write both sides of a call in one row, {request, response},"
    " or give their two rows the same request_id"
)

_COUNTS = re.compile("token|latency|duration|status|level|time|cost|price|currency")
_TEXT = re.compile(
    "(prompt|input|output|response|completion|content|text|question|answer|query|reply)s?"
)
"""Names of values in which rows have the texts of a request, however short."""
SHORTEST_TEXT = 200
"""Rows of requests without their texts have counts, and no text of this length."""

STORED = (
    "OpenAI's stored completions, without their requests: get the messages of each from"
    " /v1/chat/completions/ID/messages, and write openai_joined, {id, model, messages} and the"
    " completion"
)

RESPONSES = "half of a call of the Responses API: log {request, response} in one row"

OTHER_APIS = {
    r"\S*/v1/responses\b|event: response\.": RESPONSES,
    r"\S*/v1/messages\b|event: message_start\b": (
        "half of a call of Anthropic's API: log {request, response} in one row"
    ),
}
"""How a path or an event stream of another API begins, and the way to one that is read."""

FLATTENED = ("messages.role", "messages.content")
"""Ends of columns in which Kibana's CSV joins a list's values by commas."""

DOCUMENTS_ALONE = (
    "a list of messages is joined in one column, so that they cannot be separated: export the"
    " documents' _source as JSON lines (the search API, elasticdump)"
)

LEAST_SHARED = 0.5
"""Share of a format's keys that a row needs for the format to be named as the nearest."""

NEEDED = {
    "openai_pairs": ("request", "response"),
    "openai_batch": ("custom_id", "body", "response"),
    "helicone": ("request_created_at", "request_body", "response_body"),
    "langfuse": ("type", "trace_id", "input", "output"),
    "litellm": ("call_type", "model_parameters", "startTime", "messages", "response", "metadata"),
    "message_pairs": ("input", "output"),
    "messages": ("messages",),
    "openai_joined": ("id", "model", "messages", "choices"),
    "token_ids": ("token_ids", "prompt_token_ids", "completion_start"),
}
"""Keys by which formats are recognized, to name the nearest."""


OF_MESSAGES = (
    "or, if this is an application's table of the messages that it sends, name the conversation's"
    " id: traffic.fields.session=NAME"
)


def describe_unknown_file(sample: FileSample, formats: Mapping[str, Any]) -> Description:
    """Describes a file by its first row or bytes."""
    head = sample.stored
    if not head.strip():
        return Description("empty", "give a log with rows")
    if is_capture(sample):
        return describe_packet_capture(head)
    text = next((Description(*said) for pattern, *said in TEXTS if pattern.search(head)), None)
    if text is not None:
        return text
    if sample.rows:
        row = sample.rows[0]
        return Description(f"rows with the keys {_keys(row)}", _way(row, formats))
    return describe_bytes(sample)


def _keys(row: dict[str, Any]) -> str:
    names = [json.dumps(key, ensure_ascii=False)[1:-1][:40] for key in list(row)[:SHOWN_KEYS]]
    return ", ".join(names) + (", ..." if len(row) > SHOWN_KEYS else "")


def _way(row: dict[str, Any], formats: Mapping[str, Any]) -> str:
    """Returns the shortest way from a row to a format."""
    # A client's history, such as Cline's, has a message in each row.
    if is_chat_export(row):
        return CHAT_EXPORT
    if row.keys() >= {"role", "content"}:
        return f"{CHAT_EXPORT}; {OF_MESSAGES}" if len(names_in(row)) > 1 else CHAT_EXPORT
    if row.get("object") == "list" and "first_id" in row:
        return STORED
    inside = _inside(row, formats)
    if inside:
        return inside
    if row.get("object") == "response" or _is_responses(row.get("response")):
        return RESPONSES
    of_api = [way for name, way in OTHER_APIS.items() if _has_text(row, re.compile(name))]
    if of_api:
        return of_api[0]
    conversation = row.get("conversations")
    if isinstance(conversation, list) and conversation and isinstance(conversation[0], dict):
        return RENAME if "from" in conversation[0] else "rename conversations to messages"
    if any(normalize_key(key).endswith(FLATTENED) for key in row):
        return DOCUMENTS_ALONE
    members = [row, *_members(row)]
    # The two sides of a call may be apart.
    together = {key: value for member in reversed(members) for key, value in member.items()}
    names = [set(map(normalize_key, member)) for member in [*members, together]]
    ways = (way for keys, way in SHAPES if any(named >= keys for named in names))
    return next(ways, None) or _of_halves(row) or _nearest(row)


def _of_halves(row: dict[str, Any]) -> str | None:
    """Returns the way from a request without its response, or from lines that are such halves."""
    lines = (object_of(line.text) or {} for line in lines_in(row) if len(line.holders) > 1)
    if any(None in sides(line) and sides(line) != (None, None) for line in lines):
        return LINES_OF_HALVES
    asked, answered = sides(row)
    return REQUEST_ALONE if asked is not None and answered is None else None


def _members(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the objects in a row, and the first of each list: pages of an API."""
    values = [value[0] if isinstance(value, list) and value else value for value in row.values()]
    firsts = [inner for inner in map(object_of, values) if inner is not None]
    return firsts + [inner for member in firsts for inner in _members(member)]


def _longest_text(value: Any) -> int:
    """Returns the length of the longest text in a value."""
    if isinstance(value, str):
        return len(value)
    inner = value.values() if isinstance(value, dict) else value
    return max(map(_longest_text, inner), default=0) if isinstance(value, dict | list) else 0


def _has_named_text(row: dict[str, Any]) -> bool:
    """Whether a row, or an object in it, has a text under a name for texts."""
    return any(
        _TEXT.fullmatch(normalize_key(key)) and isinstance(value, str) and value.strip()
        for member in [row, *_members(row)]
        for key, value in member.items()
    )


def _has_text(row: dict[str, Any], beginning: re.Pattern[str]) -> bool:
    """Whether a text in a row, but not one inside its bodies, begins with a pattern."""
    texts = [value for value in row.values() if isinstance(value, str)]
    return any(map(beginning.match, texts))


def _is_responses(value: Any) -> bool:
    return isinstance(value, dict) and value.get("object") == "response"


def _inside(row: dict[str, Any], formats: Mapping[str, Any]) -> str | None:
    """Returns how to unwrap rows of a known format below one key."""
    for key, value in row.items():
        sample = _sample(value)
        name = next((name for name in formats if formats[name].recognizes(sample)), None)
        if name is None:
            continue
        path = json.dumps(key) + ("[]" if isinstance(value, list) else "")
        option = "-r" if isinstance(value, str) else "-c"
        return f"what is below {key[:40]!r} is {name}: unwrap it with `jq {option} '.{path}'`"
    return None


def _sample(value: Any) -> FileSample:
    """Returns a value of a row as if it were a file."""
    if isinstance(value, str):
        text = value.encode("utf-8", "replace")
        rows = [_object(text)]
    else:
        text = b""
        rows = value[:20] if isinstance(value, list) else [value]
    return FileSample(text, tuple(row for row in rows if isinstance(row, dict)))


def _object(text: bytes) -> Any:
    try:
        return parse_value(text)
    except Reject:
        return None


def _nearest(row: dict[str, Any]) -> str:
    """Names the format that shares most keys with a row."""
    names = [normalize_key(key) for member in [row, *_members(row)] for key in member]
    has_texts = _has_named_text(row) or _longest_text(row) >= SHORTEST_TEXT
    if any(map(_COUNTS.search, names)) and not has_texts:
        return f"rows about requests, without texts: {GATEWAY}"
    shared = {name: len(row.keys() & set(keys)) / len(keys) for name, keys in NEEDED.items()}
    name = max(shared, key=lambda name: shared[name])
    if shared[name] < LEAST_SHARED:
        return f"no format has them; log request and response as openai_pairs, or {WRITE_MESSAGES}"
    missing = [key for key in NEEDED[name] if key not in row]
    if not missing:
        return f"as in {name}, with other values: compare them with docs/reference/log-formats.md"
    return f"the nearest format is {name}, which needs {', '.join(missing)}"
