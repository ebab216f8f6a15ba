"""Describes a file that no format recognizes, and the shortest way to one that is read.

    describe(sample, FORMATS)       # "rows with the keys conversations, system: ShareGPT's ..."

A description has names of keys and columns, and never a value.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from outrider.data.formats.rows import Sample
from outrider.data.formats.tables import csv_dialect, table_kind

SHOWN_KEYS = 8
"""Maximum number of keys in a description."""

AS_MESSAGES = (
    '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "reasoning_content":'
    ' "...", "content": "..."}]}'
)

MAGIC: tuple[tuple[bytes, str], ...] = (
    (
        b"SQLite format 3\0",
        "an SQLite database: export the table with `sqlite3 -json FILE 'SELECT * FROM TABLE' >"
        " log.json`",
    ),
    (b"\x04\x22\x4d\x18", "compressed by lz4: unpack it with `lz4 -d`"),
    (b"\xff\x06\x00\x00sNaPpY", "compressed by snappy: unpack it"),
    (b"LZIP", "compressed by lzip: unpack it with `lzip -d`"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it and give the folder"),
    (b"Rar!\x1a\x07", "a rar archive: unpack it and give the folder"),
    (b"Obj\x01", "an Avro file: export it as JSON lines or Parquet"),
    (b"ORC", "an ORC file: export it as JSON lines or Parquet"),
    (b"PGDMP", "a dump of PostgreSQL: export the table with `COPY (SELECT row_to_json(t) FROM TABLE t)`"),
    (b"\x89HDF", "an HDF5 file: export it as JSON lines or Parquet"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "an image"),
    (b"GGUF", "weights of a model"),
)
"""First bytes of other files, and what to do with them."""

RENAME = (
    "ShareGPT's conversations/from/value: rename them to messages/role/content, and human to user,"
    " gpt to assistant, as in `jq -c '{messages: [.conversations[] | {role: ({human: \"user\", gpt:"
    ' "assistant"}[.from] // .from), content: .value}]}\'`'
)
WRITE_MESSAGES = f"write each row as {AS_MESSAGES}"

SHAPES: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"conversations"}), "rename conversations to messages"),
    (frozenset({"chosen", "rejected"}), "preference data, which the target has not generated"),
    (frozenset({"instruction", "output"}), f"Alpaca's fields: {WRITE_MESSAGES}"),
    (frozenset({"question", "answer"}), WRITE_MESSAGES),
    (frozenset({"prompt", "completion"}), WRITE_MESSAGES),
    (frozenset({"prompt", "response"}), WRITE_MESSAGES),
    (frozenset({"contents", "candidates"}), "Gemini's API: log the endpoint's /v1/chat/completions"),
    (
        frozenset({"schemaType", "modelId", "input", "output"}),
        "Bedrock's invocation log: write openai_pairs, {request, response}, from inputBodyJson and"
        " outputBodyJson",
    ),
    (
        frozenset({"run_type", "inputs", "outputs"}),
        "LangSmith runs: write openai_pairs, {request, response}, from inputs and outputs",
    ),
    (
        frozenset({"traceId", "value"}),
        "Langfuse scores: export the observations",
    ),
    (
        frozenset({"trace_id", "value"}),
        "Langfuse scores: export the observations",
    ),
    (frozenset({"input", "output"}), f"rename them to request and response, or {WRITE_MESSAGES}"),
    (frozenset({"inputs", "outputs"}), f"rename them to request and response, or {WRITE_MESSAGES}"),
)
"""Keys of known rows that are not read, and the way to a format that is; the first match counts."""

RESPONSES = (
    "OpenAI's Responses API, whose items are not the engine's messages: log /v1/chat/completions"
)

NEEDED = {
    "openai_pairs": ("request", "response"),
    "openai_batch": ("custom_id", "body", "response"),
    "helicone": ("request_created_at", "request_body", "response_body"),
    "langfuse": ("type", "trace_id", "input", "output"),
    "litellm": ("call_type", "model_parameters", "startTime", "messages", "response", "metadata"),
    "messages": ("messages",),
    "openai_joined": ("id", "model", "messages", "choices"),
    "token_ids": ("token_ids", "prompt_token_ids", "completion_start"),
}
"""Keys by which formats are recognized, to name the nearest."""


def describe(sample: Sample, formats: Mapping[str, Any]) -> str:
    """Returns what a file is and what to do."""
    head = sample.stored
    if not head.strip():
        return "empty"
    if sample.rows:
        return _of_rows(sample.rows[0], formats)
    for magic, text in MAGIC:
        if head.startswith(magic):
            return text
    if sample.archive:
        return f"a {sample.archive} archive without files, or inside another: unpack it"
    if b"\0" in head:
        return f"binary data that begins with the bytes {head[:8].hex(' ')}"
    return _of_text(head)


def _of_text(head: bytes) -> str:
    first = head.lstrip()[:1]
    if csv_dialect(head):
        return "a CSV table without rows"
    if first in (b"{", b"["):
        return "JSON without a valid object: it was cut, or is not one object per line"
    if first == b"<":
        return "HTML or XML, possibly the page of an error: export JSON lines"
    if re.match(rb"data: ?[{\[]", head):
        return "an event stream without its request: log requests and responses"
    return "text without JSON and without the requests of vLLM or SGLang"


def _of_rows(row: dict[str, Any], formats: Mapping[str, Any]) -> str:
    names = [json.dumps(key, ensure_ascii=False)[1:-1][:40] for key in list(row)[:SHOWN_KEYS]]
    more = ", ..." if len(row) > SHOWN_KEYS else ""
    return f"rows with the keys {', '.join(names)}{more}: {_way(row, formats)}"


def _way(row: dict[str, Any], formats: Mapping[str, Any]) -> str:
    """Returns the shortest way from a row to a format."""
    inside = _inside(row, formats)
    if inside:
        return inside
    if row.get("object") == "response" or _is_responses(row.get("response")):
        return RESPONSES
    conversation = row.get("conversations")
    if isinstance(conversation, list) and conversation and "from" in conversation[0]:
        return RENAME
    for keys, text in SHAPES:
        if row.keys() >= keys:
            return text
    return _nearest(row)


def _is_responses(value: Any) -> bool:
    return isinstance(value, dict) and value.get("object") == "response"


def _inside(row: dict[str, Any], formats: Mapping[str, Any]) -> str | None:
    """Returns how to unwrap rows of a known format below one key."""
    for key, value in row.items():
        is_list = isinstance(value, list)
        inner = [entry for entry in (value if is_list else [value]) if isinstance(entry, dict)][:20]
        sample = Sample(b"", tuple(inner))
        for name, module in formats.items():
            if inner and module.recognizes(sample):
                path = json.dumps(key) + ("[]" if is_list else "")
                return f"what is below {key[:40]!r} is {name}: unwrap it with `jq -c '.{path}'`"
    return None


def _nearest(row: dict[str, Any]) -> str:
    """Names the format that shares most keys with a row."""
    shared = {name: len(row.keys() & set(keys)) / len(keys) for name, keys in NEEDED.items()}
    name = max(shared, key=lambda name: shared[name])
    if not shared[name]:
        return f"no format has one of them; {WRITE_MESSAGES}"
    missing = [key for key in NEEDED[name] if key not in row]
    if not missing:
        return f"as in {name}, with other values: compare them with docs/reference/log-formats.md"
    return f"the nearest format is {name}, which needs {', '.join(missing)}"
