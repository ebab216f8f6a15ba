"""Rows of TensorZero's inferences as rows with messages.

    {"function_name": "triage", "variant_name": "r1", "episode_id": "01a0...",
     "input": {"system": "...", "messages": [...]}, "output": [{"type": "thought", "text": "..."}]}

Its table ChatInference (2026.1, tensorzero-core's clickhouse migrations) has the blocks of each
message, and no counts of tokens. A variant is one model with its settings.
"""

from typing import Any

from outrider.data.formats.rows.embedded import json_of, object_of

KEYS = frozenset({"function_name", "variant_name", "episode_id", "input", "output"})

TEMPLATE = {"type": "template"}
"""A block in place of a system message whose text is not in the table."""


def translate_tensorzero(row: dict[str, Any]) -> dict[str, Any] | None:
    """Returns an inference with OpenAI's messages; None for any other row.

    A message with blocks that are no texts keeps them, and is rejected as such.
    """
    asked = object_of(row["input"]) if row.keys() >= KEYS else None
    blocks = None if asked is None else _list_in(row["output"])
    logged = None if asked is None else _list_in(asked.get("messages"))
    if asked is None or blocks is None or logged is None:
        return None
    messages: list[Any] = []
    system = asked.get("system")
    if system is not None:
        # An object has the arguments of a template, which is not in the table.
        is_text = isinstance(system, str)
        messages.append({"role": "system", "content": system if is_text else [TEMPLATE]})
    for message in logged:
        is_object = isinstance(message, dict)
        content = _text(message.get("content")) if is_object else None
        messages.append({"role": message.get("role"), "content": content} if is_object else message)
    answer = {"role": "assistant", "content": _text(blocks), "reasoning_content": _thought(blocks)}
    rest = {key: value for key, value in row.items() if key not in ("input", "output")}
    return {**rest, "model": row["variant_name"], "input": messages, "output": answer}


def _list_in(value: Any) -> list[Any] | None:
    """Returns a list, or the one that a text has as JSON."""
    value = json_of(value) if isinstance(value, str) else value
    return value if isinstance(value, list) else None


def _text(content: Any) -> Any:
    """Returns the text of a message's blocks; what has other blocks as it is."""
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        return content
    if not {block.get("type") for block in content} <= {"text", "thought"}:
        return content
    blocks = _blocks(content, "text")
    texts = [text for block in blocks if isinstance(text := _text_of(block), str)]
    return "\n".join(texts) if len(texts) == len(blocks) else content


def _text_of(block: dict[str, Any]) -> Any:
    return block.get("text", block.get("value"))


def _thought(blocks: list[Any]) -> str | None:
    texts = (block.get("text") for block in _blocks(blocks, "thought"))
    return "\n".join(text for text in texts if isinstance(text, str)) or None


def _blocks(content: list[Any], kind: str) -> list[dict[str, Any]]:
    return [block for block in content if isinstance(block, dict) and block.get("type") == kind]
