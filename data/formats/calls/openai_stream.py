"""Assembles a streamed chat completion from its chunks or its SSE text.

The result has the shape of a non-streamed response, so that `openai.exchanges` reads both. With
`return_token_ids`, vLLM sends the prompt ids in the first chunk and completion ids as deltas. If
the number of completion ids differs from the engine's count, they are dropped and the text is used.

    response = join_chunks(chunks_of_sse(text))
"""

import itertools
from collections.abc import Iterable
from typing import Any

from outrider.data.exchange import Reject
from outrider.data.files.rows import parse_row
from outrider.data.formats.calls.finish_reasons import ENDS, normalize_reason
from outrider.data.formats.calls.native_apis import (
    is_of_ollama,
    is_ollama_lines,
    join_ollama_stream,
    join_tgi_stream,
)
from outrider.data.formats.calls.served_apis import join_events
from outrider.data.formats.fields import first_value, take, take_count, take_ids
from outrider.data.formats.rows.other_rows import LOG_CHATS

DATA = "data:"
CHUNK = '"chat.completion.chunk"'

STOPS = ("stop_reason", "matched_stop")
"""What ended a choice: vLLM, SGLang. Null is the EOS token in vLLM."""


RUNPOD = (
    "RunPod's own API, whose choices have tokens and no finish_reason: send the requests to the"
    " worker's OpenAI route, /openai/v1, and log these"
)


def is_chunk_lines(text: str) -> bool:
    """Whether a text has a stream's chunks as lines without `data:`: TensorZero's raw_response,
    Ollama's answers."""
    if is_ollama_lines(text):
        return True
    return text.startswith("{") and CHUNK in text.partition("\n")[0] and "\n{" in text


def chunks_of_sse(text: str) -> list[dict[str, Any]]:
    """Parses an event stream; rejects an incomplete last event as `stream_cut`."""
    # Not splitlines: JSON may contain U+2028 (line separator). Lines without data are comments
    # and event names.
    lines = (line.strip("\r") for line in text.split("\n"))
    begins = ("{", DATA) if is_chunk_lines(text) else DATA
    payloads = [line.removeprefix(DATA).strip() for line in lines if line.startswith(begins)]
    payloads = [payload for payload in payloads if payload not in ("", "[DONE]")]
    chunks = []
    for number, payload in enumerate(payloads, start=1):
        try:
            chunks.append(parse_row(payload.encode("utf-8", "surrogatepass")))
        except Reject:
            if number < len(payloads):
                raise
            raise Reject("stream_cut", "the last event is not a complete JSON object") from None
    return chunks


def join_chunks(chunks: Iterable[Any]) -> dict[str, Any]:
    """Joins all chunks of a stream into one response; refuses those of several streams."""
    response: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    events = _without_copies(list(chunks))
    of_other_api = _of_other_api(events)
    if of_other_api is not None:
        return of_other_api
    for chunk in events:
        if not isinstance(chunk, dict):
            raise Reject("wrong_type", "a chunk of the stream is not an object")
        if chunk.get("error") is not None:
            raise Reject("error_response")
        _add_fields(response, chunk)
        for delta in take(chunk, "choices", list, "chunk") or ():
            if not isinstance(delta, dict):
                raise Reject("wrong_type", "a choice of a chunk is not an object")
            index = take(delta, "index", int, "choice") or 0
            empty: dict[str, Any] = {"texts": {}, "tool_calls": {}, "token_ids": [], "rest": {}}
            _add(choices.setdefault(index, empty), delta)
    _check_one_stream(events, has_choices=bool(choices))
    response["choices"] = [_finished(choices[index]) for index in sorted(choices)]
    _drop_incomplete_ids(response)
    return response


def _of_other_api(events: list[Any]) -> dict[str, Any] | None:
    """Returns the response of a stream of Ollama, TGI, Anthropic's or the Responses API."""
    if not events or not all(isinstance(event, dict) for event in events):
        return None
    if all(map(is_of_ollama, events)):
        return join_ollama_stream(events)
    if all("token" in event and "choices" not in event for event in events):
        return join_tgi_stream(events)
    return join_events(events)


def _without_copies(chunks: list[Any]) -> list[Any]:
    """Returns a stream's chunks once, if a log has all of them several times.

    Equal deltas are common, but a stream has one last chunk. If equal last chunks occur k times,
    the log has k copies of every chunk, one after the other or each k times in a row.
    """
    last = next((chunk for chunk in reversed(chunks) if _ends_choice(chunk)), None)
    copies = chunks.count(last) if last is not None else 1
    if copies == 1 or len(chunks) % copies:
        return chunks
    once = chunks[: len(chunks) // copies]
    return once if chunks == once * copies else _each_once(chunks, copies)


def _each_once(chunks: list[Any], copies: int) -> list[Any]:
    once = chunks[::copies]
    repeated = [chunk for chunk in once for _ in range(copies)]
    if chunks != repeated:
        raise Reject("ambiguous_id", "chunks of several streams, as of a retried request")
    return once


def _ends_choice(chunk: Any) -> bool:
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    if not isinstance(choices, list):
        return False
    return any(isinstance(choice, dict) and choice.get("finish_reason") for choice in choices)


def _add_fields(response: dict[str, Any], chunk: dict[str, Any]) -> None:
    """Adds a chunk's fields, other than its choices, to the response."""
    for key in ("id", "model", "created", "prompt_token_ids"):
        if chunk.get(key) is not None:
            response.setdefault(key, chunk[key])
    if chunk.get("usage") is not None:
        response["usage"] = chunk["usage"]  # the last one covers the whole response


def _check_one_stream(chunks: list[dict[str, Any]], has_choices: bool) -> None:
    """Raises a `Reject` for chunks of several streams, of another API, or without choices."""
    ids = [str(chunk["id"]) for chunk in chunks if chunk.get("id")]
    if 1 < len(set(ids)) < len(ids):  # not a gateway that gives each chunk an id of its own
        raise Reject("ambiguous_id", "chunks of several streams, as of a retried request")
    if has_choices:
        return
    # The Responses API and Anthropic name the type of each event.
    others = (chunk for chunk in chunks if "choices" not in chunk)
    if any(isinstance(chunk.get("type"), str) for chunk in others):
        raise Reject("not_a_generation", f"events of another API; {LOG_CHATS}")
    raise Reject("stream_cut", "no chunk has a choice")


def _drop_incomplete_ids(response: dict[str, Any]) -> None:
    """Removes token ids if deltas are missing, which the engine's count shows."""
    usage = response.get("usage")
    counted = take_count(usage, "completion_tokens") if isinstance(usage, dict) else None
    logged = [choice.get("token_ids") for choice in response["choices"]]
    if counted is not None and None not in logged and sum(map(len, logged)) != counted:
        for choice in response["choices"]:
            del choice["token_ids"]


def _add(choice: dict[str, Any], delta: dict[str, Any]) -> None:
    """Adds a chunk's delta to a choice."""
    if "tokens" in delta and delta.keys().isdisjoint(("delta", "text")):
        raise Reject("not_finished", RUNPOD)
    added = take(delta, "delta", dict, "choice") or {}
    if delta.get("text") is not None:  # a text completion
        added = {"text": delta["text"]}
    keys = ("reasoning", "reasoning_content", "thinking", "content", "text")
    texts = {key: take(added, key, str, "delta") for key in keys}
    for key, text in texts.items():
        if text is not None:
            choice["texts"].setdefault(key, []).append(text)
    for call in take(added, "tool_calls", list, "delta") or ():
        _add_call(choice["tool_calls"], call)
    token_ids = take_ids(delta, "token_ids", "choice")
    if token_ids is not None or any(texts.values()):
        choice["token_ids"].append(token_ids)
    for key in ("finish_reason", *STOPS, "prompt_token_ids"):
        if delta.get(key) is not None or (key in STOPS and key in delta):
            choice["rest"][key] = first_value(delta[key], choice["rest"].get(key))


def _add_call(calls: dict[int, dict[str, Any]], delta: Any) -> None:
    if not isinstance(delta, dict):
        raise Reject("wrong_type", "a tool call of a chunk is not an object")
    index = take(delta, "index", int, "tool_call")
    call = calls.setdefault(len(calls) if index is None else index, {"name": [], "arguments": []})
    call["id"] = call.get("id") or delta.get("id")
    function = take(delta, "function", dict, "tool_call") or {}
    for key in ("name", "arguments"):
        text = take(function, key, str, "function")
        if text is not None:
            call[key].append(text)


def _finished(choice: dict[str, Any]) -> dict[str, Any]:
    """Returns a choice in the shape of a non-streamed response."""
    message: dict[str, Any] = {key: "".join(texts) for key, texts in choice["texts"].items()}
    rest = choice["rest"]
    is_ended = normalize_reason(rest.get("stop_reason")) in ENDS  # Bedrock has no finish_reason
    finished = {"finish_reason": None if is_ended else "cut", "message": message, **rest}
    if "text" in message:
        finished["text"] = message.pop("text")
    if choice["tool_calls"]:
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {key: "".join(call[key]) for key in ("name", "arguments")},
            }
            for _, call in sorted(choice["tool_calls"].items())
        ]
    if choice["token_ids"] and None not in choice["token_ids"]:
        finished["token_ids"] = list(itertools.chain.from_iterable(choice["token_ids"]))
    return finished
