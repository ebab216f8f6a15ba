"""Converts messages with parts (OpenTelemetry's GenAI conventions) to OpenAI's messages.

    openai_messages([{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}], "input")
    # [{"role": "user", "content": "Hi"}]

Some instrumentations write OpenAI's messages, without `parts`; these are kept.
"""

import json
from typing import Any

from outrider.data.exchange import Reject
from outrider.data.formats.fields import first_value, take, take_text

ROLES = {"human": "user", "ai": "assistant"}
"""Names of roles in LangChain's instrumentation; templates silently omit unknown roles."""


def openai_messages(messages: list[Any], where: str) -> list[dict[str, Any]]:
    """Converts all messages; each tool result becomes a separate message."""
    converted: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        converted += openai_message(message, f"{where}[{index}]")
    return converted


def openai_message(message: Any, where: str) -> list[dict[str, Any]]:
    """Converts one message; any tool results come first."""
    if not isinstance(message, dict):
        raise Reject("wrong_type", f"{where} is not a message")
    parts = take(message, "parts", list, where)
    if parts is None:
        # A table has every key in every row; null means absent, except for the content.
        return [
            {key: value for key, value in message.items() if value is not None or key == "content"}
        ]
    texts, thoughts, calls, answers = _sorted_parts(parts, where)
    if answers and not texts:
        return answers
    role = take(message, "role", str, where) or ""
    # Text parts are joined as in vLLM.
    plain: dict[str, Any] = {"role": ROLES.get(role.lower(), role), "content": "\n".join(texts)}
    if thoughts:
        plain["reasoning_content"] = "\n".join(thoughts)
    if calls:
        plain["tool_calls"] = calls
        plain["content"] = plain["content"] or None
    return [*answers, plain]


def _sorted_parts(
    parts: list[Any], where: str
) -> tuple[list[str], list[str], list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns a message's texts, thoughts, tool calls and tool results."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    for number, part in enumerate(parts):
        part_key = f"{where}.parts[{number}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            texts.append(take(part, "content", str, part_key) or "")
        elif kind == "reasoning":
            thoughts.append(take(part, "content", str, part_key) or "")
        elif kind == "tool_call":
            calls.append(_tool_call(part, part_key))
        elif kind == "tool_call_response":
            answers.append(_tool_result(part, part_key))
        else:
            raise Reject("not_text", f"{part_key} is neither text, reasoning nor a tool call")
    return texts, thoughts, calls, answers


def _tool_call(part: dict[str, Any], where: str) -> dict[str, Any]:
    function = {
        "name": take_text(part, "name", where),
        "arguments": _as_text(part.get("arguments")),
    }
    return {"id": take_text(part, "id", where), "type": "function", "function": function}


def _tool_result(part: dict[str, Any], where: str) -> dict[str, Any]:
    # Conventions up to 1.37 call it `result`.
    content = _as_text(first_value(part.get("response"), part.get("result")))
    return {"role": "tool", "tool_call_id": take_text(part, "id", where), "content": content}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
