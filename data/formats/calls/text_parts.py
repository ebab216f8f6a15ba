"""Joins a message's text parts as the engine does for templates of text, such as R1's.

    text_messages([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])

vLLM 0.32 (renderers/chat_utils.py:1644, 1815, 1883) joins strings and parts of the types in `TEXTS`
with a line break. SGLang 0.5 (parser/jinja_template_utils.py, content format `string`) joins parts
of type `text` with a space and drops all others.
"""

from typing import Any

from outrider.data.exchange import Reject
from outrider.data.formats.fields import take

REASONING_CONTENT = "reasoningContent"
"""Key of a part of Bedrock's Converse API, whose parts have a key instead of a type."""

TEXTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Types of text parts, with the key of their text."""

THOUGHTS = frozenset({"thinking", "reasoning", "reasoning_text", "summary_text"})
"""Types of parts of a response that are its reasoning: Mistral, Databricks."""


def text_messages(messages: list[dict[str, Any]], is_sglang: bool = False) -> list[dict[str, Any]]:
    """Returns messages whose content is text.

    Raises:
        Reject: If the engine reads a part that is no text.
    """
    join = _sglang_text if is_sglang else _vllm_text
    return [
        {**message, "content": join(message.get("content"), f"request.messages[{at}]")}
        for at, message in enumerate(messages)
    ]


def joined_by_sglang(messages: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Returns messages as SGLang reads them; None if no message has parts."""
    has_parts = any(isinstance(message.get("content"), list) for message in messages)
    return text_messages(messages, is_sglang=True) if has_parts else None


def _vllm_text(content: Any, where: str) -> str | None:
    if not isinstance(content, list):
        return take({"content": content}, "content", str, where)
    texts = [_part_text(part, where) for part in content]
    # vLLM 0.32 joins the texts of a message by newlines for templates that read strings, as R1's
    # does (renderers/chat_utils.py:1883).
    return "\n".join(text for text in texts if text is not None)


def _part_text(part: Any, where: str) -> str | None:
    if isinstance(part, str):
        return take({"part": part}, "part", str, where)
    kind = str(part.get("type", "text")) if isinstance(part, dict) else None
    if kind not in TEXTS or ("type" not in part and "text" not in part):  # Bedrock has no types
        raise Reject("not_text", f"{where} has parts other than text")
    return take(part, TEXTS[kind], str, where)


def _sglang_text(content: Any, where: str) -> str | None:
    if not isinstance(content, list):
        return take({"content": content}, "content", str, where)
    # SGLang joins by spaces (`process_content_for_template_format`), and leaves other parts out.
    parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
    return " ".join(take(part, "text", str, where) or "" for part in parts)


def response_texts(parts: list[Any], where: str) -> tuple[str | None, str | None]:
    """Returns the reasoning and the text of a response whose content is a list of parts."""
    thoughts: list[str] = []
    texts: list[str] = []
    for part in parts:
        if isinstance(part, dict) and REASONING_CONTENT in part:
            thoughts += _converse_thoughts(part[REASONING_CONTENT], where)
        elif isinstance(part, dict) and str(part.get("type")) in THOUGHTS:
            thoughts += _thoughts(part, where)
        else:
            text = _part_text(part, where)
            texts += [text] if text is not None else []
    return "".join(thoughts) if thoughts else None, "".join(texts)


def _converse_thoughts(inner: Any, where: str) -> list[str]:
    """Returns the reasoning of a part of Bedrock's Converse API."""
    thought = take({"inner": inner}, "inner", dict, where) or {}
    thought = take(thought, "reasoningText", dict, where) or {}
    return [take(thought, "text", str, where) or ""]


def _thoughts(part: dict[str, Any], where: str) -> list[str]:
    """Returns the texts of a part of reasoning, which may be parts themselves."""
    for key in ("thinking", "reasoning", "text", "content", "summary"):
        inner = part.get(key)
        if isinstance(inner, list):
            return [text for one in inner for text in _thoughts(one, where)]
        if inner is not None:
            return [take(part, key, str, where) or ""]
    return []
