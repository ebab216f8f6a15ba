"""Converts OpenAI's request and response JSON to exchanges, one per choice.

Most formats wrap this shape. It covers chat completions (`messages`) and text completions
(`prompt`, without a template). The engine's tokenizer adds the BOS token to a prompt unless the
request has `add_special_tokens: false`. Calls of Anthropic's Messages API and of the Responses API
are read as the chat completions that vLLM makes of them.

    exchanges(request, response, place, session="s-17", time=1719830400.0)

Values from the wrapping log are keyword arguments: `session`, `user`, `tenant` and `route` apply if
the request has none; `time` always applies. Sources of each field, in order of precedence:

- prompt ids: `response.prompt_token_ids`, `choices[0].prompt_token_ids`; else the target's chat
  template renders the messages
- completion ids: `choices[0].token_ids`; else the text is tokenized
- reasoning: `message.reasoning`, `message.reasoning_content`, `message.content` up to `</think>`;
  else the reject `reasoning_missing` if the template opens `<think>`
- end: `finish_reason` under any producer's name (finish_reasons.py), `stop_reason`, SGLang's
  `matched_stop`; else the reject `not_finished` (for a stream, `stream_cut`)
- token count: `response.usage`, if there is one choice; else the count is not checked
- time: `timestamp` (Unix seconds or milliseconds, ISO 8601), `response.created`, the time in an id
  that is a UUIDv7; else log order. An unreadable time counts as missing
- session: `request.metadata.session_id`, `session_id`, `request.user`; else the first question
- tenant, route: `request.metadata`, the row
- sampling: `request.temperature`, `top_p`, `top_k`, `min_p`, penalties, grammars; else the target's
  `generation_config.json`, or what the engine is started with instead, as in vLLM
- template arguments: `request.tools`, `documents`, `chat_template_kwargs`, `reasoning_effort`,
  `add_generation_prompt`, `continue_final_message`; else vLLM's defaults

`n` and prompts of token ids are supported; `suffix` and `echo` (`not_text`) and several prompts in
one request (`prompt_not_messages`) are rejected.
"""

import re
from typing import Any

from outrider.data.exchange import Exchange, Place, Reject
from outrider.data.files.python_text import OBJECT
from outrider.data.files.rows import json_type_name, parse_row, parse_value
from outrider.data.formats.calls.attachments import check_attached
from outrider.data.formats.calls.cut_texts import check_whole
from outrider.data.formats.calls.finish_reasons import (
    ASSUMED,
    ENDS,
    STOP_STRING,
    finish_reason,
    normalize_reason,
    token_limit,
)
from outrider.data.formats.calls.openai_stream import (
    DATA,
    chunks_of_sse,
    is_chunk_lines,
    join_chunks,
)
from outrider.data.formats.calls.sampling import sampling_of
from outrider.data.formats.calls.served_apis import as_chat
from outrider.data.formats.calls.text_parts import joined_by_sglang, response_texts, text_messages
from outrider.data.formats.fields import (
    first_value,
    take,
    take_count,
    take_ids,
    take_json,
    take_mapping,
    take_text,
    take_time,
)
from outrider.data.formats.rows.named_fields import field_paths
from outrider.data.formats.rows.other_rows import check_completion
from outrider.data.formats.rows.row_fields import time_of_uuid

Prompt = str | list[int]
"""A prompt of a text completion."""

OF_JAVA = {
    "finishReason": "finish_reason",
    "stopReason": "stop_reason",
    "topP": "top_p",
    "topK": "top_k",
    "minP": "min_p",
    "maxTokens": "max_tokens",
    "maxCompletionTokens": "max_completion_tokens",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
    "repetitionPenalty": "repetition_penalty",
    "responseFormat": "response_format",
    "toolChoice": "tool_choice",
    "toolCalls": "tool_calls",
    "toolCallId": "tool_call_id",
    "reasoningContent": "reasoning_content",
    "promptTokens": "prompt_tokens",
    "completionTokens": "completion_tokens",
    "totalTokens": "total_tokens",
}
"""OpenAI's names of what clients in Java log under theirs."""

GPT_OSS_ON_BEDROCK = "openai.gpt-oss"
"""How Bedrock's names of these models begin."""

_OF_BEDROCK = re.compile(
    r"<reasoning>(?P<reasoning>.*?)(?:</reasoning>(?P<content>.*))?", re.DOTALL
)
"""What Bedrock writes for gpt-oss' channels; a cut answer has no closing tag (user guide, "OpenAI
models", November 2026)."""

REASONING = ("reasoning", "reasoning_content", "thinking")
"""Keys of a message's reasoning: vLLM; DeepSeek, SGLang, LiteLLM; Ollama behind a gateway."""

MATCHED_STOP = "matched_stop"
"""Key of SGLang's choices, and of no other engine's: the stop string or id of the stop token."""

NAMES = frozenset(
    {
        *("id", "object", "created", "model", "usage", "choices", "message", "error", "status"),
        *("headers", "body", "payload", "data", "result", "results", "response", "request"),
        *("output", "content", "text", "type", "status_code", "statusCode", "code", "metadata"),
        *("completion", "generated_text", "predictions", "candidates", "messages", "event"),
    }
)
"""Keys that a detail may list: those of APIs and of wrappers around a response."""


def body(row: dict[str, Any], key: str) -> dict[str, Any] | None:
    """Returns a request or response logged as an object, JSON text or stream."""
    value = row.get(key)
    if isinstance(value, bytes):  # a table's binary column
        value = value.decode("utf-8", "replace")
    if value is None or isinstance(value, dict):
        return value
    if value in ("", []):
        return None
    if isinstance(value, str) and is_chunk_lines(value):
        return join_chunks(chunks_of_sse(value))
    if isinstance(value, str) and OBJECT.match(value):
        return parse_row(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = parse_value(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, list) and all(isinstance(chunk, str) for chunk in value):
        value = "\n".join(value)
    if isinstance(value, str) and DATA in value:
        return join_chunks(chunks_of_sse(value))
    if isinstance(value, list):
        return join_chunks(value)
    raise Reject("wrong_type", f"row.{key} is {json_type_name(value)}")


def exchanges(
    request: dict[str, Any], response: dict[str, Any], place: Place, **logged: Any
) -> list[Exchange | Reject]:
    """Returns an exchange or reject for each choice, with the model's name.

    `logged` holds what `_exchanges` takes besides: session, trace, tenant, route, time, seconds,
    user.
    """
    request, response = as_chat(request, response)
    if _is_camel_case(response):
        request = _in_snake_case(request)
        response = _with_snake_case_choices(response)
    model = take_text(response, "model", "response") or take_text(request, "model", "request")
    if model is not None and model.startswith(GPT_OSS_ON_BEDROCK):
        response = _with_reasoning_apart(response)
    try:
        outcomes = _exchanges(request, response, place, model, **logged)
    except Reject as reject:
        outcomes = [reject]
    for outcome in outcomes:
        if isinstance(outcome, Reject):
            outcome.model = model
    return outcomes


def _is_camel_case(response: dict[str, Any]) -> bool:
    """Whether a Java client's names stand for OpenAI's: `finishReason`."""
    choices = response.get("choices")
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and "finishReason" in choice for choice in choices
    )


def _in_snake_case(holder: Any) -> Any:
    """Returns an object with OpenAI's names of its keys; what is below them stays."""
    if not isinstance(holder, dict):
        return holder
    named = {key: value for key, value in holder.items() if key not in OF_JAVA}
    for key, name in OF_JAVA.items():
        if key in holder and named.get(name) is None:
            named[name] = holder[key]
    return named


def _with_snake_case_choices(response: dict[str, Any]) -> dict[str, Any]:
    """Returns a response whose choices, their messages and its usage have OpenAI's names."""
    choices = [
        {**choice, "message": _in_snake_case(choice.get("message"))}
        if isinstance(choice, dict)
        else choice
        for choice in map(_in_snake_case, response["choices"])
    ]
    usage = _in_snake_case(response.get("usage"))
    return {**_in_snake_case(response), "choices": choices, "usage": usage}


def _with_reasoning_apart(response: dict[str, Any]) -> dict[str, Any]:
    """Returns a response whose contents begin with Bedrock's tags, which no model wrote."""
    choices = []
    for choice in take(response, "choices", list, "response") or ():
        message = choice.get("message") if isinstance(choice, dict) else None
        message = message if isinstance(message, dict) else {}
        content = message.get("content")
        tagged = _OF_BEDROCK.fullmatch(content) if isinstance(content, str) else None
        if tagged is not None:
            parts = {"reasoning": tagged["reasoning"], "content": tagged["content"]}
            choice = {**choice, "message": {**message, **parts}}
        choices.append(choice)
    return {**response, "choices": choices}


def _exchanges(
    request: dict[str, Any],
    response: dict[str, Any],
    place: Place,
    model: str | None,
    *,
    session: str | None = None,
    trace: str | None = None,
    tenant: str | None = None,
    route: str | None = None,
    time: float | None = None,
    seconds: float | None = None,
    user: str | None = None,
    log_id: str | None = None,
) -> list[Exchange | Reject]:
    """Returns an exchange or reject for each choice.

    `session` is the id of the conversation, `user` the id of the end user.

    Raises:
        Reject: If all choices have the same problem.
    """
    check_completion({}, request, response)
    choices = take(response, "choices", list, "response")
    if not choices:
        raise Reject("no_choices", f"the response has the keys {_keys(response)}")
    logged = _messages(request)
    _check_echo(request, logged, choices)
    is_sglang = any(isinstance(choice, dict) and MATCHED_STOP in choice for choice in choices)
    check_attached(logged)
    messages = None if logged is None else text_messages(logged, is_sglang)
    metadata = _optional(request, "metadata")
    usage = _optional(response, "usage")
    shared = {
        "place": place,
        "messages": messages,
        "joined_by_sglang": joined_by_sglang(logged or []),
        "template_arguments": template_arguments(request),
        # The engine reports one count for all choices together.
        "completion_tokens": take_count(usage, "completion_tokens") if len(choices) == 1 else None,
        "prompt_tokens": take_count(usage, "prompt_tokens"),
        "model": model,
        "response_id": _id_of(response),
        "log_id": log_id,
        "session": _text_of(metadata, "session_id") or session,
        "trace": trace,
        "user": _text_of(request, "user") or _text_of(request, "safety_identifier") or user,
        "tenant": _text_of(metadata, "tenant") or tenant,
        "route": _text_of(metadata, "route") or route,
        "time": first_value(time, take_time(response, "created"), time_of_uuid(log_id)),
        "seconds": seconds,
        **sampling_of(request, "request"),
    }
    # The request's own metadata do not count where the recipe names a field.
    of_row = {"session": session, "user": user, "tenant": tenant, "route": route, "time": time}
    shared |= {name: of_row[name] for name in field_paths()}
    shared["trace"] = None if "session" in field_paths() else trace
    return _of_choices(request, response, messages, shared)


def _check_echo(
    request: dict[str, Any], messages: list[dict[str, Any]] | None, choices: list[Any]
) -> None:
    """Rejects an answer that begins with what the request's last message says.

    vLLM's `echo` repeats it if it is the assistant's, too (chat_completion/serving.py).
    """
    has_ids = any(isinstance(choice, dict) and choice.get("token_ids") for choice in choices)
    if not request.get("echo") or has_ids or not messages:
        return
    if messages[-1].get("role") == "assistant":
        raise Reject("not_text", "with request.echo, the answer begins with the last message")


def _of_choices(
    request: dict[str, Any],
    response: dict[str, Any],
    messages: list[dict[str, Any]] | None,
    shared: dict[str, Any],
) -> list[Exchange | Reject]:
    prompt = _prompt_of(request) if messages is None else None
    prompt_ids = take_ids(response, "prompt_token_ids", "response")
    outcomes: list[Exchange | Reject] = []
    for number, choice in enumerate(response["choices"]):
        try:
            answer = _of_choice(
                choice=choice,
                prompt_ids=prompt_ids,
                messages=messages,
                prompt=prompt,
                request=request,
            )
            outcomes.append(Exchange(choice=number, **shared, **answer))
        except Reject as reject:
            outcomes.append(reject)
    return outcomes


def _keys(holder: dict[str, Any]) -> str:
    """Lists keys that are names of protocols; others may be a customer's words."""
    names = sorted(holder.keys() & NAMES)
    unnamed = len(holder) - len(names)
    return ", ".join([*names, *([f"{unnamed} unknown"] if unnamed else [])]) or "none"


def _messages(request: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Returns the request's messages, their parts not yet joined; None without messages."""
    messages = take_json(request, "messages", "request")
    if messages is None:
        return None
    take({"messages": messages}, "messages", list, "request")
    if not messages:
        raise Reject("no_messages")
    for at, message in enumerate(messages):
        where = f"request.messages[{at}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Reject("wrong_type", f"{where} is not a message with a role")
        check_whole(message, where)
    return [_with_content(message, at) for at, message in enumerate(messages)]


def _with_content(message: dict[str, Any], at: int) -> dict[str, Any]:
    """Returns a message whose content is under its name; LlamaIndex has blocks.

    Raises:
        Reject: If what was sent has no content; only an assistant's message may have none.
    """
    blocks = message.get("blocks")
    if "content" not in message and isinstance(blocks, list):
        parts = [
            {"type": block.get("block_type"), "text": block.get("text")}
            for block in blocks
            if isinstance(block, dict)
        ]
        return {"role": message["role"], "content": parts}
    if message.get("content") is None and message["role"] in ("system", "user"):
        raise Reject("not_text", f"request.messages[{at}] has no content")
    return message


def _optional(holder: dict[str, Any], key: str) -> dict[str, Any]:
    """Returns an object that replay does not need, also as JSON text; empty if unreadable."""
    try:
        return take_mapping(holder, key, "row")
    except Reject:
        return {}


def _text_of(holder: dict[str, Any], key: str) -> str | None:
    """Returns text or a number as text, if it is one of these and not empty."""
    value = holder.get(key)
    return str(value) or None if isinstance(value, str) or type(value) is int else None


def _id_of(response: dict[str, Any]) -> str | None:
    """Returns the id that the engine gave a response, without the prefix of its endpoint."""
    return (_text_of(response, "id") or "").removeprefix("chatcmpl-") or None


def _of_choice(
    choice: Any,
    prompt_ids: list[int] | None,
    messages: list[dict[str, Any]] | None,
    prompt: Prompt | None,
    request: dict[str, Any],
) -> dict[str, Any]:
    """Returns a choice of a chat or text completion as `Exchange` fields."""
    if not isinstance(choice, dict):
        raise Reject("wrong_type", "a choice of the response is not an object")
    completion_ids = take_ids(choice, "token_ids", "choice")
    answer: dict[str, Any] = {
        "prompt_token_ids": first_value(prompt_ids, take_ids(choice, "prompt_token_ids", "choice")),
        "completion_token_ids": completion_ids,
    }
    if prompt is None:
        answer |= _of_chat(choice, messages, answer["prompt_token_ids"])
    else:
        answer |= _of_text_completion(choice, prompt, request, answer["prompt_token_ids"])
    for key in ("reasoning", "content"):
        check_whole(answer.get(key), f"choice.{key}")
    if completion_ids is None and not any(map(answer.get, ("reasoning", "content", "tool_calls"))):
        raise Reject("empty_response")
    return answer | _end(choice, request)


def _of_text_completion(
    choice: dict[str, Any], prompt: Prompt, request: dict[str, Any], prompt_ids: list[int] | None
) -> dict[str, Any]:
    if request.get("suffix") or request.get("echo"):
        raise Reject(
            "not_text", "with request.suffix or request.echo, the texts are not the engine's"
        )
    answer = {"content": take(choice, "text", str, "choice"), "completion_is_raw": True}
    if isinstance(prompt, str):
        check_whole(prompt, "request.prompt")
        # vLLM's /v1/completions adds the BOS token by default; R1's template has its own.
        is_raw = request.get("add_special_tokens") is not False
        return {**answer, "prompt_text": prompt, "prompt_is_raw": is_raw}
    return {**answer, "prompt_token_ids": first_value(prompt_ids, prompt)}


def _of_chat(
    choice: dict[str, Any],
    messages: list[dict[str, Any]] | None,
    prompt_ids: list[int] | None,
) -> dict[str, Any]:
    message = take(choice, "message", dict, "choice") or {}
    if messages is None and prompt_ids is None:
        raise Reject("no_messages")
    reasoning, content = reasoning_and_content(message)
    tool_calls = take(message, "tool_calls", list, "message") or None
    return {"reasoning": reasoning, "content": content, "tool_calls": tool_calls}


def _end(choice: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Returns how a choice ended as `Exchange` fields."""
    logged = choice.get("finish_reason")
    # Bedrock's DeepSeek-R1 has no other reason.
    if logged is None and normalize_reason(choice.get("stop_reason")) in ENDS:
        logged = choice["stop_reason"]
        choice = {key: value for key, value in choice.items() if key != "stop_reason"}
    ended = finish_reason(logged)
    stop_reason = first_value(
        *(take(choice, key, (int, str), "choice") for key in ("stop_reason", MATCHED_STOP))
    )
    strings = stop_strings(request)
    if stop_reason is None and normalize_reason(logged) == STOP_STRING and len(strings) == 1:
        (stop_reason,) = strings
    # vLLM logs a `stop_reason`, null for the EOS token, and SGLang a `matched_stop`. Without such a
    # key, any of the request's stop strings may have ended the text.
    is_unknown = ended == "stop" and choice.keys().isdisjoint(("stop_reason", MATCHED_STOP))
    return {
        "finish_reason": ended,
        "end_is_assumed": normalize_reason(logged) == ASSUMED,
        "token_limit": token_limit(logged),
        "stop_reason": stop_reason,
        "stop_strings": strings if is_unknown and stop_reason is None else (),
    }


def reasoning_and_content(message: dict[str, Any]) -> tuple[str | None, str | None]:
    """Returns an assistant message's reasoning, under any of its keys, and its content."""
    reasoning = first_value(*(take(message, key, str, "message") for key in REASONING))
    if isinstance(message.get("content"), list):
        thoughts, content = response_texts(message["content"], "message.content")
        return first_value(reasoning, thoughts), content
    content = take(message, "content", str, "message")
    thought, closed, _ = (content or "").partition("</think>")
    if closed and reasoning and reasoning.strip() == thought.removeprefix("<think>").strip():
        return None, content  # a gateway logged the reasoning twice
    return reasoning, content


def stop_strings(request: dict[str, Any]) -> tuple[str, ...]:
    """Returns the request's stop strings."""
    stop = take(request, "stop", (str, list), "request") or ()
    strings = [stop] if isinstance(stop, str) else stop
    return tuple(string for string in strings if isinstance(string, str) and string)


def template_arguments(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the chat template's arguments other than the messages."""
    arguments = dict(take(request, "chat_template_kwargs", dict, "request") or {})
    for key in (
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "reasoning_effort",
    ):
        if request.get(key) is not None:
            arguments[key] = request[key]
    if request.get("chat_template") is not None or "chat_template" in arguments:
        raise Reject("own_chat_template", "request.chat_template")
    return arguments


def _prompt_of(request: dict[str, Any]) -> Prompt | None:
    """Returns the request's `prompt`; None if it has none."""
    prompt = request.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise Reject("prompt_not_messages", "several prompts in one request")
        (prompt,) = prompt
    if isinstance(prompt, list):
        return take_ids({"prompt": prompt}, "prompt", "request")
    return take({"prompt": prompt}, "prompt", str, "request")
