"""The request and the response in a row, wherever they are.

    request, response = sides({"log": {"body": '{"messages": [...]}', "answer": {"choices": []}}})

What an object is, its own keys decide (wrappers.py): a request has `messages` or a `prompt`, a
response `choices` or an event stream.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from outrider.data.formats.calls.message_sides import asked_in_texts
from outrider.data.formats.calls.native_apis import (
    OLLAMA,
    is_of_ollama,
    is_ollama_lines,
    native_request,
    native_response,
    text_pair,
    with_ollama_messages,
)
from outrider.data.formats.calls.openai_stream import is_chunk_lines
from outrider.data.formats.calls.served_apis import is_responses_request, is_responses_stream
from outrider.data.formats.calls.vercel import response_of_result
from outrider.data.formats.fields import first_value
from outrider.data.formats.rows.embedded import json_of, object_of, plain_text
from outrider.data.formats.rows.other_rows import is_served

DEEPEST = 6
"""Levels that are searched; Kong's `ai.proxy.payload.request` in a collector's record is at 5."""

PIECES = ("response", "text")
"""Keys of a piece of a response, where a list has an object for each: GenAI-Perf, AIPerf."""

FIRST_EVENTS = ("message_start", "response.created")
"""Types of the first events of Anthropic's and the Responses API's streams."""

BODIES = ("messages", "choices", "tools", "conversations")
"""Keys whose lists are a customer's."""

PARAMETERS = frozenset({"model", "max_tokens", "temperature", "stream", "n", "top_p"})
"""Keys of which a text completion's request has at least one."""


class Sides(NamedTuple):
    """A row's request and response as logged; None if not there."""

    request: dict[str, Any] | None
    response: Any


def sides(row: dict[str, Any]) -> Sides:
    """Returns the request and response in a row.

    The row itself is a request only if none is inside it: LiteLLM's spend logs have the messages,
    and next to them the request with its sampling.
    """
    pair = text_pair(row)
    if pair is not None:
        return Sides(*pair)
    flat = row if _is_request(row) else None
    requests: list[dict[str, Any]] = []
    responses: list[Any] = []
    results = [response_of_result(row)]
    for value in values_in(row):
        holder = object_of(value)
        response = None if holder is None else _response_of(holder)
        results.append(None if holder is None else response_of_result(holder))
        if response is not None:
            responses.append(response)
        elif holder is not None and _is_request(holder):
            requests.append(native_request(holder) or holder)
        elif _whole_in_list(value):
            responses.append(_response_of(value[0]))
        elif is_stream(value):
            responses.append(value)
    requests.sort(key=lambda request: "messages" not in request)
    request = requests[0] if requests else flat
    if isinstance(row.get("choices"), list):
        responses.append(row)
    response = responses[0] if responses else first_value(*results)
    if request is None:
        request = _request_beside(row, response)
    if request is not None and _is_of_ollama(response):
        request = with_ollama_messages(request)
    return Sides(request, response)


def _request_beside(row: dict[str, Any], response: Any) -> dict[str, Any] | None:
    """Returns a request that only its response shows to be one."""
    if is_served(response) or is_responses_stream(response):
        return next(filter(is_responses_request, [*objects_in(row), row]), None)
    asked = asked_in_texts(row) if _is_chat(response) else None
    return None if asked is None else {"messages": asked}


def _is_chat(response: Any) -> bool:
    """Whether a response is a whole chat completion."""
    choices = response.get("choices") if isinstance(response, dict) else None
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and isinstance(choice.get("message"), dict) for choice in choices
    )


def _is_of_ollama(response: Any) -> bool:
    if isinstance(response, list):
        return bool(response) and isinstance(response[0], dict) and is_of_ollama(response[0])
    return OLLAMA in response if isinstance(response, dict) else is_ollama_lines(str(response))


def _response_of(holder: dict[str, Any]) -> dict[str, Any] | None:
    is_response = isinstance(holder.get("choices"), list) or is_served(holder)
    return holder if is_response else native_response(holder)


def _is_request(holder: dict[str, Any]) -> bool:
    if isinstance(holder.get("choices"), list):
        return False
    if native_request(holder) is not None:
        return True
    messages = holder.get("messages")
    if isinstance(messages, str):
        return messages.lstrip().startswith("[")
    if isinstance(messages, list):
        return True
    # Metadata may name a prompt; a request has parameters, too.
    is_prompt = isinstance(holder.get("prompt"), str | list)
    return is_prompt and not PARAMETERS.isdisjoint(holder)


def _whole_in_list(value: Any) -> bool:
    """Whether a value is a list of one response that was not streamed: RunPod's, TGI's."""
    if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], dict):
        return False
    if native_response(value[0]) is not None:
        return True
    choices = value[0].get("choices")
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and "message" in choice for choice in choices
    )


def _without_holders(value: Any) -> Any:
    """Returns the texts of a response's pieces, if each is in an object; else the value."""
    if not isinstance(value, list) or not all(isinstance(piece, dict) for piece in value):
        return value
    pieces = [_piece(piece) for piece in value]
    texts = [piece for piece in pieces if piece is not None]
    if not texts or len(texts) < len(value):
        return value
    if len(texts) == 1 and texts[0].lstrip().startswith("{"):
        return texts[0]
    return texts if is_stream(texts) else value


def _piece(piece: dict[str, Any]) -> str | None:
    """Returns the text of a piece of a response; an event's fields may be apart (AIPerf)."""
    packets = piece.get("packets")
    if isinstance(packets, list):
        fields_of_event = [packet for packet in packets if isinstance(packet, dict)]
        return "".join(f"{one.get('name')}: {one.get('value')}\n" for one in fields_of_event) + "\n"
    text = first_value(*(piece.get(key) for key in PIECES))
    return text if isinstance(text, str) else None


def is_stream(value: Any) -> bool:
    """Whether a value is an event stream's text, its lines, or a list of its chunks."""
    if isinstance(value, str) and value.startswith("[{") and '"delta"' in value:
        value = json_of(value)  # Databricks
    if isinstance(value, str) and is_chunk_lines(value):
        return True
    if isinstance(value, str):
        return value.lstrip()[:200].startswith(("data:", "event:", ":", "id:")) and "data:" in value
    if not isinstance(value, list) or not value:
        return False
    if all(isinstance(chunk, str) for chunk in value):
        return any(chunk.startswith("data:") for chunk in value)
    pieces = [chunk for chunk in value if isinstance(chunk, dict)]
    is_event = any(piece.get("type") in FIRST_EVENTS for piece in pieces)
    return is_event or any("choices" in piece or is_of_ollama(piece) for piece in pieces)


def objects_in(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the objects inside a row, outermost first."""
    for value in values_in(row):
        holder = object_of(value)
        if holder is not None:
            yield holder


def values_in(row: dict[str, Any]) -> Iterator[Any]:
    """Yields the values inside a row, breadth first, but not those inside a body."""
    waiting = deque([(row, 0)])
    while waiting:
        holder, depth = waiting.popleft()
        for key, value in holder.items():
            if value is None or key in BODIES:
                continue
            value = _without_holders(plain_text(value))
            yield value
            inner = object_of(value)
            if inner is None or depth == DEEPEST:
                continue
            if not _is_request(inner) and _response_of(inner) is None:
                waiting.append((inner, depth + 1))
