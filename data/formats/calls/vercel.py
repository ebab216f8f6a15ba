"""Messages, calls and tools of Vercel's AI SDK as OpenAI's.

    vercel_messages({"role": "tool", "content": [{"type": "tool-result", "toolCallId": "c9",
                                                  "output": {"type": "text", "value": "ok"}}]})
    # [{"role": "tool", "tool_call_id": "c9", "content": "ok"}]

Spans have the SDK's own messages (`ai.prompt.messages`), whose parts have types with a hyphen. They
are converted as its provider for OpenAI-compatible endpoints does before it sends them
(packages/openai-compatible/src/chat/convert-to-openai-compatible-chat-messages.ts, 028158f5): texts
of an assistant's message are joined without a separator, each result of a tool is a message of its
own, and objects are JSON without spaces.
"""

import json
from typing import Any

from outrider.data.exchange import Reject
from outrider.data.formats.fields import first_value

RESULT_KEYS = frozenset({"text", "finishReason", "usage"})
"""Keys of what `generateText` returns and `onFinish` of `streamText` gets (packages/ai, AI SDK 4 to
6), which applications log as it is; `request.body` in it is the request's text."""

CALL = "tool-call"
RESULT = "tool-result"
REASONING = "reasoning"

TEXTS = ("text", "error-text")
"""Types of a result whose value is sent as it is; any other is sent as JSON."""

DENIED = "execution-denied"
WHY_DENIED = "Tool execution denied."


def vercel_messages(message: Any) -> list[Any]:
    """Returns the messages that a message of the SDK becomes; any other message unchanged."""
    parts = message.get("content") if isinstance(message, dict) else None
    kinds = {_kind(part) for part in parts} if isinstance(parts, list) else set()
    if RESULT in kinds and message.get("role") == "tool":
        return [_result(part) for part in parts or () if _kind(part) == RESULT]
    if not _is_of_sdk(parts, kinds) or message.get("role") != "assistant":
        return [message]
    calls = vercel_calls(parts)
    if len(calls) < sum(_kind(part) == CALL for part in parts or ()):
        raise Reject("wrong_type", "a tool-call has no toolName or no input")
    converted: dict[str, Any] = {"role": "assistant", "content": _texts(parts, "text")}
    if calls:
        converted["tool_calls"] = calls
    if thoughts := _texts(parts, REASONING):
        converted["reasoning_content"] = thoughts
    return [converted]


def _is_of_sdk(parts: Any, kinds: set[Any]) -> bool:
    """Whether an answer has calls, or reasoning beside its text, as the SDK writes them.

    Parts of other APIs have the same types: LangChain's reasoning has no `text`.
    """
    if CALL in kinds:
        return True
    return kinds == {REASONING, "text"} and all(isinstance(part.get("text"), str) for part in parts)


def vercel_calls(parts: Any) -> list[dict[str, Any]]:
    """Returns the tool calls in a list of the SDK's; empty for any other value."""
    calls = []
    for call in parts if isinstance(parts, list) else ():
        if not isinstance(call, dict) or _kind(call) == RESULT:
            continue
        name = call.get("toolName")
        arguments = first_value(call.get("input"), call.get("args"))  # `args` before AI SDK 5
        if not isinstance(name, str) or arguments is None:
            continue
        function = {"name": name, "arguments": _as_text(arguments)}
        calls.append({"id": call.get("toolCallId"), "type": "function", "function": function})
    return calls


def vercel_tools(tools: Any) -> Any:
    """Returns tools that the SDK writes as a list of texts; any other value unchanged."""
    if not isinstance(tools, list) or not all(isinstance(tool, str) for tool in tools):
        return tools
    try:
        decoded = [json.loads(tool) for tool in tools]
    except ValueError:
        return tools
    if not all(isinstance(tool, dict) for tool in decoded):
        return tools
    return [_tool(tool) if isinstance(tool.get("name"), str) else tool for tool in decoded]


def response_of_result(result: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the response in the SDK's result of a call; None for any other object."""
    usage = result.get("usage")
    if not result.keys() >= RESULT_KEYS or not isinstance(usage, dict):
        return None
    if not isinstance(result["text"], str) or not isinstance(result["finishReason"], str):
        return None
    # `reasoning` was a text before AI SDK 5, and is a list of parts since.
    thoughts = first_value(result.get("reasoningText"), result.get("reasoning"))
    if isinstance(thoughts, list):
        thoughts = "".join(str(part.get("text") or "") for part in thoughts if _kind(part))
    message = {"role": "assistant", "content": result["text"], "reasoning_content": thoughts}
    if calls := vercel_calls(result.get("toolCalls")):
        message["tool_calls"] = calls
    counts = {
        "prompt_tokens": first_value(usage.get("inputTokens"), usage.get("promptTokens")),
        "completion_tokens": first_value(usage.get("outputTokens"), usage.get("completionTokens")),
    }
    about = result.get("response")
    about = about if isinstance(about, dict) else {}
    return {
        "id": about.get("id"),
        "model": about.get("modelId"),
        "choices": [{"message": message, "finish_reason": result["finishReason"]}],
        "usage": counts,
    }


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    # `parameters` before AI SDK 5
    schema = first_value(tool.get("inputSchema"), tool.get("parameters"))
    function = {"name": tool.get("name"), "description": tool.get("description")}
    given = {key: value for key, value in function.items() if value is not None}
    return {"type": "function", "function": {**given, "parameters": schema}}


def _kind(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else None


def _texts(parts: Any, kind: str) -> str:
    return "".join(str(part.get("text") or "") for part in parts if _kind(part) == kind)


def _result(part: dict[str, Any]) -> dict[str, Any]:
    output = first_value(part.get("output"), part.get("result"))
    if isinstance(output, dict) and output.get("type") == DENIED:
        content = output.get("reason") or WHY_DENIED
    elif isinstance(output, dict) and output.keys() >= {"type", "value"}:
        content = output["value"] if output["type"] in TEXTS else _json(output["value"])
    else:
        content = _json(output)
    return {"role": "tool", "tool_call_id": part.get("toolCallId"), "content": content}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    """Returns JSON as JavaScript writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
