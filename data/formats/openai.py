"""Converts OpenAI's request and response JSON to exchanges, one per choice.

Most formats wrap this shape. It covers chat completions (`messages`) and text completions
(`prompt`, without a template). The engine's tokenizer adds the BOS token to a prompt unless the
request has `add_special_tokens: false`.

    exchanges(request, response, place, session="s-17", time=1719830400.0)

Values from the wrapping log are keyword arguments: `session`, `user`, `tenant` and `route` apply if
the request has none; `time` always applies. Sources of each field, in order of precedence:

- prompt ids: `response.prompt_token_ids`, `choices[0].prompt_token_ids`; else the target's chat
  template renders the messages
- completion ids: `choices[0].token_ids`; else the text is tokenized
- reasoning: `message.reasoning`, `message.reasoning_content`, `message.content` up to `</think>`;
  else the reject `reasoning_missing` if the template opens `<think>`
- end: `finish_reason`, `stop_reason`; else the reject `not_finished` (for a stream, `stream_cut`)
- token count: `response.usage`, if there is one choice; else the count is not checked
- time: `timestamp` (Unix seconds or milliseconds, ISO 8601), `response.created`; else log order
- session: `request.metadata.session_id`, `session_id`, `request.user`; else the first question
- tenant, route: `request.metadata`, the row
- sampling: `request.temperature`, `top_p`, `top_k`, `min_p`, penalties, grammars; else the target's
  `generation_config.json`, as in vLLM
- template arguments: `request.tools`, `documents`, `chat_template_kwargs`, `reasoning_effort`,
  `add_generation_prompt`, `continue_final_message`; else vLLM's defaults

`n` and prompts of token ids are supported; `suffix` and `echo` (`not_text`) and several prompts in
one request (`prompt_not_messages`) are rejected.
"""

from typing import Any

from outrider.data.exchange import Exchange, Place, Reject
from outrider.data.formats.fields import first, take, take_ids, take_text, take_time
from outrider.data.formats.openai_stream import DATA, chunks_of_sse, join_chunks
from outrider.data.formats.other_rows import check_completion
from outrider.data.formats.rows import kind_of, parse_row
from outrider.data.formats.sampling import sampling_of

Prompt = str | list[int]
"""A prompt of a text completion."""


def body(row: dict[str, Any], key: str) -> dict[str, Any] | None:
    """Returns a request or response logged as an object, JSON text or stream."""
    value = row.get(key)
    if value is None or isinstance(value, dict):
        return value
    if value in ("", []):
        return None
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return parse_row(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, list) and all(isinstance(chunk, str) for chunk in value):
        value = "\n".join(value)
    if isinstance(value, str) and DATA in value:
        return join_chunks(chunks_of_sse(value))
    if isinstance(value, list):
        return join_chunks(value)
    raise Reject("wrong_type", f"row.{key} is {kind_of(value)}")


def gateway_fields(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row's gateway fields as arguments for `exchanges`."""
    return {
        "session": take_text(row, "session_id", "row"),
        "tenant": take_text(row, "tenant", "row"),
        "route": take_text(row, "route", "row"),
        "time": take_time(row, "timestamp", "row"),
    }


def exchanges(
    request: dict[str, Any], response: dict[str, Any], place: Place, **logged: Any
) -> list[Exchange | Reject]:
    """Returns an exchange or reject for each choice, with the model's name.

    `logged` holds what `_exchanges` takes besides: session, tenant, route, time, user.
    """
    model = take_text(response, "model", "response") or take_text(request, "model", "request")
    try:
        outcomes = _exchanges(request, response, place, model, **logged)
    except Reject as reject:
        outcomes = [reject]
    for outcome in outcomes:
        if isinstance(outcome, Reject):
            outcome.model = model
    return outcomes


def _exchanges(
    request: dict[str, Any],
    response: dict[str, Any],
    place: Place,
    model: str | None,
    *,
    session: str | None = None,
    tenant: str | None = None,
    route: str | None = None,
    time: float | None = None,
    user: str | None = None,
) -> list[Exchange | Reject]:
    """Returns an exchange or reject for each choice.

    `session` is the id of the conversation, `user` the id of the end user.

    Raises:
        Reject: If all choices have the same problem.
    """
    check_completion({}, request, response)
    choices = take(response, "choices", list, "response")
    if not choices:
        raise Reject("no_choices", "the response has no choices")
    metadata = take(request, "metadata", dict, "request") or {}
    usage = take(response, "usage", dict, "response") or {}
    messages = take(request, "messages", list, "request")
    if messages is not None:
        if not messages:
            raise Reject("no_messages")
        messages = [
            _plain(message, f"request.messages[{at}]") for at, message in enumerate(messages)
        ]
    # The engine reports one count for all choices together.
    counted = take(usage, "completion_tokens", int, "usage") if len(choices) == 1 else None
    shared = {
        "place": place,
        "messages": messages,
        "template_arguments": template_arguments(request),
        "completion_tokens": counted,
        "prompt_tokens": take(usage, "prompt_tokens", int, "usage"),
        "model": model,
        "session": take_text(metadata, "session_id", "metadata") or session,
        "user": take_text(request, "user", "request") or user,
        "tenant": take_text(metadata, "tenant", "metadata") or tenant,
        "route": take_text(metadata, "route", "metadata") or route,
        "time": first(time, take_time(response, "created", "response")),
        **sampling_of(request, "request"),
    }
    prompt = _prompt_of(request) if messages is None else None
    prompt_ids = take_ids(response, "prompt_token_ids", "response")
    outcomes: list[Exchange | Reject] = []
    for number, choice in enumerate(choices):
        try:
            fields = _of_choice(
                choice=choice,
                prompt_ids=prompt_ids,
                messages=messages,
                prompt=prompt,
                request=request,
            )
            outcomes.append(Exchange(choice=number, **shared, **fields))
        except Reject as reject:
            outcomes.append(reject)
    return outcomes


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
    fields: dict[str, Any] = {
        "prompt_token_ids": first(prompt_ids, take_ids(choice, "prompt_token_ids", "choice")),
        "completion_token_ids": completion_ids,
    }
    if prompt is not None:  # a text completion
        fields |= {"content": take(choice, "text", str, "choice"), "completion_is_raw": True}
        if request.get("suffix") or request.get("echo"):
            raise Reject(
                "not_text", "with request.suffix or request.echo, the texts are not the engine's"
            )
        if isinstance(prompt, str):
            is_raw = request.get("add_special_tokens") is not False
            fields |= {"prompt_text": prompt, "prompt_is_raw": is_raw}
        else:
            fields["prompt_token_ids"] = first(fields["prompt_token_ids"], prompt)
    else:
        message = take(choice, "message", dict, "choice") or {}
        if messages is None and fields["prompt_token_ids"] is None:
            raise Reject("no_messages")
        fields["reasoning"], fields["content"] = reasoning_and_content(message)
        fields["tool_calls"] = take(message, "tool_calls", list, "message") or None
    if completion_ids is None and not any(map(fields.get, ("reasoning", "content", "tool_calls"))):
        raise Reject("empty_response")
    ended = finish_reason(take(choice, "finish_reason", str, "choice"))
    stop_reason = take(choice, "stop_reason", (int, str), "choice")
    if ended == "stop" and "stop_reason" not in choice:
        fields["stop_strings"] = stop_strings(request)
    return {**fields, "finish_reason": ended, "stop_reason": stop_reason}


def reasoning_and_content(message: dict[str, Any]) -> tuple[str | None, str | None]:
    """Returns an assistant message's reasoning, under either key, and its content."""
    reasoning, reasoning_content, content = (
        take(message, key, str, "message") for key in ("reasoning", "reasoning_content", "content")
    )
    return first(reasoning, reasoning_content), content


def finish_reason(logged: str | None) -> str:
    """Returns `stop` or `length`; tool calls count as `stop`."""
    if logged == "tool_calls":
        return "stop"
    if logged == "cut":
        raise Reject("stream_cut", "the stream ended without a finish_reason")
    if logged not in ("stop", "length"):
        raise Reject("not_finished", "finish_reason is neither stop nor length")
    return logged


def _plain(message: Any, where: str) -> dict[str, Any]:
    """Returns a message with its text parts joined as in vLLM."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Reject("wrong_type", f"{where} is not a message with a role")
    content = message.get("content")
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
        if len(parts) != len(content):
            raise Reject("not_text", f"{where} has parts other than text")
        content = "\n".join(take(part, "text", str, where) or "" for part in parts)
    take({"content": content}, "content", str, where)
    return {**message, "content": content}


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
