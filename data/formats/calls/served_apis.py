"""Anthropic's Messages API and OpenAI's Responses API, which vLLM serves next to chat completions.

    as_chat({"system": "Be brief.", "messages": [...]}, {"type": "message", "content": [...]})

Requests become the chat completions that vLLM 0.32 makes of them before it renders the prompt
(entrypoints/anthropic/serving.py, `to_chat_completion_request`; entrypoints/openai/responses/
utils.py, `construct_input_messages`). A closed model's answer is not read (other_rows.is_served).
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from outrider.data.exchange import Reject
from outrider.data.formats.calls.text_parts import response_texts
from outrider.data.formats.rows.other_rows import is_anthropic, is_served

BILLING = "x-anthropic-billing-header"
"""How a block of Claude Code begins that vLLM leaves out."""

SESSION = "_session_"
"""What precedes the session in the user's id that Claude Code sends."""

ANTHROPIC_ONLY = frozenset(
    {"system", "stop_sequences", "thinking", "output_config", "tool_choice", "tools", "metadata"}
)
"""Parameters of Anthropic's that have another name or form in a chat completion."""

RESPONSES_ONLY = frozenset(
    {"input", "instructions", "text", "reasoning", "tools", "max_output_tokens"}
)

NO_CONTENT = frozenset({"thinking", "redacted_thinking", "tool_use", "tool_result"})
"""Types of Anthropic's blocks that are no content of their message."""

CHOICES_OF_TOOLS = {"auto": "auto", "any": "required", "none": "none"}
"""OpenAI's names of Anthropic's choices of a tool."""

KEPT_ON_THE_SERVER = (
    "previous_response_id: the earlier messages are not in the row; let the client send the whole"
    " conversation as input"
)

OUTPUTS = frozenset({"reasoning", "message", "function_call"})
"""Types of the items of a response of the Responses API."""

CREATED = "response.created"
"""Type of the first event of a stream of the Responses API."""

ENDED, CUT = "response.completed", "response.incomplete"
"""Types of the last event of a stream of the Responses API, which has the whole response."""


def as_chat(
    request: dict[str, Any], response: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a request and its response as a chat completion's; others as they are."""
    if not is_served(response):
        return request, response
    if is_anthropic(response):
        return _asked_of_anthropic(request), _answered_by_anthropic(response)
    return _asked_of_responses(request), _answered_by_responses(response)


def join_events(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the response that a stream of one of the two APIs has; None for any other.

    Raises:
        Reject: If the stream was cut.
    """
    kinds = [event.get("type") for event in events]
    if CREATED in kinds or ENDED in kinds or CUT in kinds:
        last = events[-1].get("response")
        if kinds[-1] not in (ENDED, CUT) or not isinstance(last, dict):
            raise Reject("stream_cut", f"the last event is neither {ENDED} nor {CUT}")
        return last if _has_text(last) else {**last, "output": _joined_items(events)}
    if "message_start" in kinds:
        return _join_anthropic(events)
    return None


def _has_text(response: dict[str, Any]) -> bool:
    return any(item.get("content") for item in _objects(response.get("output")))


def _joined_items(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the texts of a stream whose last event was logged without them."""
    texts = {"response.reasoning_text.delta": "", "response.output_text.delta": ""}
    for event in events:
        kind = str(event.get("type"))
        if kind in texts and isinstance(event.get("delta"), str):
            texts[kind] += event["delta"]
    return [
        {"type": kind, "content": [{"text": text}]}
        for kind, text in zip(("reasoning", "message"), texts.values(), strict=True)
        if text
    ]


def is_responses_stream(logged: Any) -> bool:
    """Whether a logged response is a stream of the Responses API, as text or as its events."""
    if isinstance(logged, list) and logged and isinstance(logged[0], dict):
        return logged[0].get("type") == CREATED
    return isinstance(logged, str) and CREATED in logged[:200]


def is_responses_request(holder: dict[str, Any]) -> bool:
    """Whether an object is a request to the Responses API, if its response is of that API."""
    return isinstance(holder.get("input"), str | list) and "object" not in holder


def _asked_of_anthropic(request: dict[str, Any]) -> dict[str, Any]:
    messages = request.get("messages")
    if not isinstance(messages, list):
        return request
    chat: dict[str, Any] = {
        key: value for key, value in request.items() if key not in ANTHROPIC_ONLY
    }
    system = request.get("system")
    system = system if isinstance(system, str) else _system_text(system)
    chat["messages"] = [{"role": "system", "content": system}] if system else []
    for message in messages:
        chat["messages"] += _of_anthropic_message(message)
    chat["stop"] = request.get("stop_sequences")
    chat["tools"] = list(map(_anthropic_tool, _objects(request.get("tools")))) or None
    chat |= _anthropic_tool_choice(request.get("tool_choice"))
    output = _object(request.get("output_config"))
    if output.get("effort") is not None:
        chat["reasoning_effort"] = output["effort"]
    form = _object(output.get("format"))
    schema = form.get("json_schema") or form.get("schema")
    if schema:
        chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    chat |= _anthropic_thinking(_object(request.get("thinking")))
    return chat | _anthropic_user(_object(request.get("metadata")))


def _anthropic_user(metadata: dict[str, Any]) -> dict[str, Any]:
    """Returns the user, and the session that Claude Code appends to it."""
    user = metadata.get("user_id")
    if not isinstance(user, str):
        return {"metadata": metadata}
    name, mark, session = user.rpartition(SESSION)
    if not mark:
        return {"metadata": metadata, "user": user}
    return {"metadata": {**metadata, "session_id": session}, "user": name}


def _system_text(system: Any) -> str:
    """Returns the texts of a system prompt or message, joined without a separator."""
    texts = (
        [system] if isinstance(system, str) else [block.get("text") for block in _objects(system)]
    )
    whole = (text for text in texts if isinstance(text, str) and not text.startswith(BILLING))
    return "".join(whole)


def _of_anthropic_message(message: Any) -> list[Any]:
    """Returns the messages that one of Anthropic's becomes: results of tools are their own."""
    if not isinstance(message, dict):
        return [message]
    content = message.get("content")
    if message.get("role") == "system":
        text = _system_text(content)
        return [{"role": "system", "content": text}] if text else []
    if not isinstance(content, list):
        return [message]
    blocks = list(_objects(content))
    chat: dict[str, Any] = {"role": message.get("role")}
    thoughts = [block for block in blocks if block.get("type") == "thinking"]
    if thoughts:
        chat["reasoning"] = "".join(str(block.get("thinking") or "") for block in thoughts)
    calls = [_tool_use(block) for block in blocks if block.get("type") == "tool_use"]
    if calls:
        chat["tool_calls"] = calls
    parts = list(filter(_is_content, blocks))
    if parts:
        is_text = len(parts) == 1 and parts[0].get("type") == "text"
        chat["content"] = parts[0]["text"] if is_text else parts
    results = [_tool_result(block) for block in blocks if block.get("type") == "tool_result"]
    is_empty = chat["role"] == "user" and "content" not in chat
    return results if is_empty else [*results, chat]


def _is_content(block: dict[str, Any]) -> bool:
    """Whether a block is sent as content: a text that is not empty, or something else."""
    kind = str(block.get("type"))
    return bool(block.get("text")) if kind == "text" else kind not in NO_CONTENT


def _tool_use(block: dict[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(block.get("input") or {})
    function = {"name": block.get("name") or "", "arguments": arguments}
    return {"id": block.get("id"), "type": "function", "function": function}


def _tool_result(block: dict[str, Any]) -> dict[str, Any]:
    content = block.get("content")
    if isinstance(content, list):
        if any(part.get("type") != "text" for part in _objects(content)):
            raise Reject("not_text", "a tool's result has parts other than text")
        content = "\n".join(str(part.get("text", "")) for part in _objects(content))
    return {
        "role": "tool",
        "tool_call_id": block.get("tool_use_id") or "",
        "content": content or "",
    }


def _anthropic_tool(tool: dict[str, Any]) -> dict[str, Any]:
    names = {"name": "name", "description": "description", "input_schema": "parameters"}
    return {"type": "function", "function": _renamed(tool, names | {"strict": "strict"})}


def _anthropic_tool_choice(choice: Any) -> dict[str, Any]:
    if not isinstance(choice, dict):
        return {}
    kind = str(choice.get("type"))
    named = {"type": "function", "function": {"name": choice.get("name")}}
    parallel = not choice.get("disable_parallel_tool_use")
    return {"tool_choice": CHOICES_OF_TOOLS.get(kind, named), "parallel_tool_calls": parallel}


def _anthropic_thinking(thinking: dict[str, Any]) -> dict[str, Any]:
    if thinking.get("type") == "disabled":
        return {"reasoning_effort": "none"}
    if thinking.get("type") == "enabled":
        return {"thinking_token_budget": thinking.get("budget_tokens")}
    return {}


def _answered_by_anthropic(response: dict[str, Any]) -> dict[str, Any]:
    blocks = list(_objects(response["content"]))
    calls = [_tool_use(block) for block in blocks if block.get("type") == "tool_use"]
    texts = [block for block in blocks if block.get("type") in ("text", "thinking")]
    thought, text = response_texts(texts, "response.content")
    message = {"role": "assistant", "reasoning": thought, "content": text or None}
    choice = {
        "message": {**message, "tool_calls": calls or None},
        "finish_reason": response["stop_reason"],
        "stop_reason": response.get("stop_sequence"),
    }
    usage = _object(response.get("usage"))
    counts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return {
        "id": response.get("id"),
        "model": response.get("model"),
        "choices": [choice],
        "usage": {
            "prompt_tokens": _sum(usage.get(name) for name in counts),
            "completion_tokens": usage.get("output_tokens"),
        },
    }


def _join_anthropic(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Joins the events of a message: its start, each block's start and deltas, and its end."""
    response: dict[str, Any] = {}
    blocks: dict[str, dict[str, Any]] = {}
    for event in events:
        kind = event.get("type")
        if kind == "error":
            raise Reject("error_response")
        if kind == "message_start":
            response = {**_object(event.get("message"))}
        elif kind == "content_block_start":
            blocks[str(event.get("index"))] = {**_object(event.get("content_block"))}
        elif kind == "content_block_delta":
            _add_delta(blocks.setdefault(str(event.get("index")), {}), _object(event.get("delta")))
        elif kind == "message_delta":
            usage = {**_object(response.get("usage")), **_object(event.get("usage"))}
            response |= {**_object(event.get("delta")), "usage": usage}
    if events[-1].get("type") != "message_stop":
        raise Reject("stream_cut", "the last event is not message_stop")
    for block in blocks.values():
        arguments = block.pop("partial_json", None)
        if arguments is not None:
            block["input"] = _json_or_text(arguments)
    return {**response, "content": list(blocks.values())}


def _add_delta(block: dict[str, Any], delta: dict[str, Any]) -> None:
    for key in ("text", "thinking", "partial_json"):
        if isinstance(delta.get(key), str):
            block[key] = str(block.get(key) or "") + delta[key]


def _asked_of_responses(request: dict[str, Any]) -> dict[str, Any]:
    if request.get("previous_response_id"):
        raise Reject("prompt_not_messages", KEPT_ON_THE_SERVER)
    chat = {key: value for key, value in request.items() if key not in RESPONSES_ONLY}
    instructions = request.get("instructions")
    messages = [{"role": "system", "content": instructions}] if instructions else []
    given = request.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else _objects(given)
    for item in items:
        _add_item(messages, item)
    chat["messages"] = messages
    last = given[-1] if isinstance(given, list) and given else None
    if isinstance(last, dict) and last.get("status") in ("in_progress", "incomplete"):
        chat |= {"continue_final_message": True, "add_generation_prompt": False}
    effort = _object(request.get("reasoning")).get("effort")
    if effort is not None:
        chat["reasoning_effort"] = effort
    tools = [tool for tool in _objects(request.get("tools")) if tool.get("type") == "function"]
    chat["tools"] = list(map(_responses_tool, tools)) or None
    form = _object(_object(request.get("text")).get("format"))
    if form.get("type") == "json_schema":
        chat["response_format"] = {"type": "json_schema", "json_schema": form}
    elif form:
        chat["response_format"] = form
    return chat


def _add_item(messages: list[dict[str, Any]], item: dict[str, Any]) -> None:
    """Adds an item of the input: a reasoning, a text and calls in a row are one message.

    Raises:
        Reject: If vLLM has no message for it.
    """
    kind = item.get("type")
    before = messages[-1] if messages and messages[-1].get("role") == "assistant" else None
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        if before is None:
            messages.append({"role": "assistant", "tool_calls": [call]})
        else:
            before.setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        text = item.get("output")
        result = {"role": "tool", "content": text, "tool_call_id": item.get("call_id")}
        messages.append(result)
    elif kind == "reasoning":
        _add_text(
            messages, before, "reasoning", _first_text(item.get("content") or item.get("summary"))
        )
    elif item.get("role") == "assistant":
        _add_text(messages, before, "content", _first_text(item.get("content")))
    elif "role" in item:
        messages.append({"role": item["role"], "content": item.get("content")})
    else:
        raise Reject("not_text", f"an item of the input that is no message: {kind!s:.40}")


def _add_text(
    messages: list[dict[str, Any]], before: dict[str, Any] | None, key: str, text: str | None
) -> None:
    if before is not None and before.get(key) is None:
        before[key] = text
    else:
        messages.append({"role": "assistant", key: text})


def _first_text(content: Any) -> str | None:
    if isinstance(content, str):
        return content
    return next((part.get("text") for part in _objects(content)), None)


def _responses_tool(tool: dict[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in tool.items() if key != "type" and value is not None}
    return {"type": "function", "function": rest}


def message_of_items(items: Any) -> dict[str, Any] | None:
    """Returns the message that a list of the Responses API's items is; None for any other list."""
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return None
    answers = [item for item in items if item.get("type") == "message"]
    if not answers or not {str(item.get("type")) for item in items} <= OUTPUTS:
        return None
    is_models = all(item.get("role") == "assistant" for item in answers)
    return _message_of(items) if is_models else None


def _message_of(items: list[dict[str, Any]]) -> dict[str, Any]:
    thoughts = [item for item in items if item.get("type") == "reasoning"]
    texts = [item for item in items if item.get("type") == "message"]
    calls: list[dict[str, Any]] = []
    for item in items:
        if item.get("type") == "function_call":
            _add_item(calls, item)
    return {
        "role": "assistant",
        "reasoning": _joined(part for item in thoughts for part in _objects(item.get("content"))),
        "content": _joined(part for item in texts for part in _objects(item.get("content"))),
        "tool_calls": [call for group in calls for call in group["tool_calls"]] or None,
    }


def _answered_by_responses(response: dict[str, Any]) -> dict[str, Any]:
    message = _message_of(list(_objects(response["output"])))
    usage = _object(response.get("usage"))
    counts = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
    return {
        "id": response.get("id"),
        "model": response.get("model"),
        "created": response.get("created_at"),
        "choices": [{"message": message, "finish_reason": _end_of_responses(response)}],
        "usage": _renamed(usage, counts),
    }


def _end_of_responses(response: dict[str, Any]) -> str | None:
    status = response.get("status")
    if status == "completed":
        return "stop"
    why = _object(response.get("incomplete_details")).get("reason", "max_output_tokens")
    return "length" if status == "incomplete" and why == "max_output_tokens" else None


def _joined(parts: Iterable[dict[str, Any]]) -> str | None:
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    return "".join(texts) if texts else None


def _renamed(holder: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Returns the values that an object has under these names, under the others."""
    return {name: holder[key] for key, name in names.items() if holder.get(key) is not None}


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        yield from (member for member in value if isinstance(member, dict))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _sum(counts: Iterable[Any]) -> int | None:
    numbers = [count for count in counts if isinstance(count, int)]
    return sum(numbers) if numbers else None


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"": text}
