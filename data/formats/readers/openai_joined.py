"""Raw chat completions and a file of their requests, joined by id.

    {"id": "req-17", "messages": [...], "model": "deepseek-r1"}
    {"id": "chatcmpl-req-17", "object": "chat.completion", "choices": [...]}

or, wrapped or streamed (one chunk per line):

    {"request_id": "req-17", "request": {...}}
    {"request_id": "req-17", "response": {...}}
    {"id": "chatcmpl-req-17", "object": "chat.completion.chunk", "choices": [...]}

`request_id` and `correlation_id` take precedence over `id`. The prefix `chatcmpl-` that engines add
to a request's id is ignored. A response with logged prompt ids needs no request. The events of
KServe's and Seldon's loggers (CloudEvents) are joined by the id that request and response share.

Client-side logs have this form. Tenant and session are lost unless the rows have them. Send
`X-Request-Id` to choose the id. If different requests share an id, each model and then each folder
is joined separately; if an id is still ambiguous, its rows are rejected as `ambiguous_id`.
"""

import contextlib
import functools
import json
from typing import Any

from outrider.data.exchange import Exchange, Record, Reject
from outrider.data.files.rows import FileSample, Row
from outrider.data.formats.calls.cache_hits import check_generated
from outrider.data.formats.calls.message_sides import (
    SENT,
    answers_in,
    asked_in,
    logged_about,
    message_sides,
)
from outrider.data.formats.calls.openai import body, exchanges
from outrider.data.formats.calls.openai_stream import join_chunks
from outrider.data.formats.calls.usual_texts import is_plain_answer
from outrider.data.formats.fields import first_value
from outrider.data.formats.readers import message_pairs
from outrider.data.formats.rows.call_ids import call_id
from outrider.data.formats.rows.embedded import object_of
from outrider.data.formats.rows.join import joined_records, model_of
from outrider.data.formats.rows.other_rows import check_completion
from outrider.data.formats.rows.row_fields import fields
from outrider.data.formats.sides import sides
from outrider.data.formats.wrappers import open_row

NO_ID = (
    "no id joins the row with the other half of its exchange: give a request and its response, or"
    " each chunk of it, the same request_id, or log them in one row"
)

ASKED = ("messages", "prompt", "input", "inputs", "system")
PARAMETERS = frozenset({
    *ASKED, *SENT, "model", "tools", "tool_choice", "functions", "function_call", "n", "best_of",
    "max_tokens", "max_completion_tokens", "logit_bias", "reasoning_effort", "thinking",
})  # fmt: skip
"""What a request and its retry have in common, beside which a log has fields of its own."""

OF_OTHER_APIS = frozenset({"choices", "response", "done", "eval_count", "type"})
"""Keys of a row whose `message` is no whole answer, or not the only one: Ollama, Anthropic."""

OF_PIECES = frozenset({"choices", "done", "eval_count", "delta"})
"""Keys of a row that may be a piece of an answer."""


def recognizes(sample: FileSample) -> bool:
    return any(_is_side(row) for row in sample.rows) or _has_halves(sample)


def _has_halves(sample: FileSample) -> bool:
    """Whether two rows with the same id are an application's own request and response."""
    ids: dict[str, set[str | None]] = {"request": set(), "response": set()}
    for row in sample.rows:
        side = None if message_sides(row) else _side_of_own_form(row)
        if side is not None:
            with contextlib.suppress(Reject):  # an id that is no valid text
                ids[side].add(call_id(row))
    return bool((ids["request"] & ids["response"]) - {None})


def _is_side(row: dict[str, Any]) -> bool:
    """Whether the row is a request or a response with an id."""
    if isinstance(row.get("prompt"), str) and isinstance(row.get("response"), str):
        return False  # both are texts, whatever id the row has
    if message_sides(row) is not None:
        return False  # the row has its answer, too
    try:
        return _side(row) is not None
    except Reject:  # an id that is no valid text
        return False


def _side(row: dict[str, Any]) -> str | None:
    """Returns `request`, `response` or `chunk`; None for an unrelated row."""
    if call_id(row) is None:
        return None
    choices = row.get("choices")
    if isinstance(choices, list):
        delta = any(isinstance(choice, dict) and "delta" in choice for choice in choices)
        return "chunk" if delta or row.get("object") == "chat.completion.chunk" else "response"
    if isinstance(row.get("response"), dict | str) or _answer_of(row) is not None:
        return "response"
    messages = row.get("messages")
    if isinstance(messages, list) and messages:
        # A conversation that ends with an answer is a data set row, not a request.
        last = messages[-1]
        return "request" if isinstance(last, dict) and last.get("role") != "assistant" else None
    if "model" in row and isinstance(row.get("prompt"), str | list):  # a text completion
        return "request"
    return "request" if isinstance(row.get("request"), dict | str) else None


def _member_of(row: Row | None) -> tuple[str, str, str | None]:
    parsed = open_row(row)
    side = (
        _side(parsed)
        or _side_of_other_row(parsed)
        or _side_inside(parsed)
        or _side_of_own_form(parsed)
    )
    if str(parsed.get("datainblob")).lower() == "true":  # Azure Machine Learning, above 4 MB
        raise Reject("content_not_logged", "the event's data is a path: its body is in a blob")
    if side is None:
        raise Reject("no_id" if call_id(parsed) is None else "incomplete_pair", NO_ID)
    key = call_id(parsed)
    if key is None:
        raise Reject("no_id", NO_ID)
    body_of_side = object_of(parsed.get("request" if side == "request" else "response"))
    return key.removeprefix("chatcmpl-"), side, model_of(body_of_side or parsed)


def _side_of_other_row(row: dict[str, Any]) -> str | None:
    """Like `_side`, for errors and rows of other APIs."""
    is_response = row.get("error") or isinstance(row.get("object"), str) or "type" in row
    if is_response:
        return "response"
    return "request" if "model" in row and ("input" in row or "messages" in row) else None


def _side_inside(row: dict[str, Any]) -> str | None:
    """Like `_side`, for a row that has its side under any name, such as a list of chunks."""
    request, response = sides(row)
    if response is not None:
        return "response"
    return None if request is None else "request"


def _side_of_own_form(row: dict[str, Any]) -> str | None:
    """Like `_side`, for messages or an answer under names of an application's own."""
    if asked_in(row):
        return "request"
    return "response" if _own_answers(row) else None


def _own_answers(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the choices of a row with a whole answer under an application's own names."""
    return answers_in(row) if OF_PIECES.isdisjoint(row) else []


def _asked_in(row: bytes) -> str:
    """Returns a row's request and who sent it, without what a shipper has put around it.

    A retry has the same, at another time.
    """
    try:
        opened = open_row(row)
        about = fields(opened)
    except Reject:
        return row.decode("utf-8", "replace")
    who = {name: about[name] for name in ("session", "user", "tenant")}
    request = _request_of(opened)
    has_text = any(name in request for name in ASKED)
    asked = {name: request[name] for name in request if name in PARAMETERS or not has_text}
    return json.dumps([who, asked], sort_keys=True, default=str)


def _request_of(asked: dict[str, Any]) -> dict[str, Any]:
    prompt = asked.get("prompt")
    is_own = isinstance(prompt, list) and all(isinstance(item, dict) for item in prompt)
    logged = None if is_own else first_value(body(asked, "request"), sides(asked).request)
    if logged is not None or "messages" in asked:
        return first_value(logged, asked)
    messages = asked_in(asked)
    if not messages:
        return asked
    return message_pairs.request_of(asked, messages, logged_about(asked))


records = functools.partial(joined_records, member_of=_member_of, content_of=_asked_in)


def _answer_of(row: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the assistant's message that a row of an application's own has."""
    message = row.get("message")
    if not OF_OTHER_APIS.isdisjoint(row) or not isinstance(message, dict):
        return None
    return message if message.get("role") == "assistant" else None


def _response_of(answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the response in a row, which is the response itself if it has none inside."""
    message = _answer_of(answer)
    if message is not None:
        about = logged_about(answer)
        choice = {"message": message, "finish_reason": about["end"]}
        return {"choices": [choice], "usage": {"completion_tokens": about["count"]}}
    inside = {"response": sides(answer).response}
    logged = first_value(body(answer, "response"), body(inside, "response"))
    if "choices" in answer or not (logged is None or is_plain_answer(logged)):
        return first_value(logged, answer)
    choices = _own_answers(answer)
    return message_pairs.response_of(choices, logged_about(answer)) if choices else answer


def parse(record: Record) -> list[Exchange | Reject]:
    request_row, response_rows = record.payload
    answers = [open_row(row) for row in response_rows]
    answer = answers[0]
    is_stream = _side(answer) == "chunk"
    response = join_chunks(answers) if is_stream else _response_of(answer)
    asked = open_row(request_row) if request_row is not None else {}
    request = _request_of(asked)
    check_generated(answer)
    check_completion(answer, request, response)
    choices = response.get("choices")
    holders = [response, *(choices if isinstance(choices, list) else ())]
    has_ids = any(isinstance(holder, dict) and holder.get("prompt_token_ids") for holder in holders)
    if request_row is None and not has_ids:
        raise Reject("unmatched_response", "no request with this id, and no prompt ids")
    logged = fields(answer)
    ended = fields(answers[-1])["time"]
    logged |= {key: value for key, value in fields(asked).items() if value is not None}
    if logged["seconds"] is None and request_row is not None and ended is not None:
        # The two halves were logged when the request arrived and when the response ended.
        logged["seconds"] = max(ended - (logged["time"] or ended), 0.0) or None
    return exchanges(request, response, record.place, **logged)
