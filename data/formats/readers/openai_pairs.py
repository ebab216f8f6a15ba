"""OpenAI pairs: one chat completion per row, as logged by gateways.

    {"request": {"model": "deepseek-r1", "messages": [...]}, "response": {"choices": [...]},
     "timestamp": 1719830400}

Request and response may be anywhere in the row, under any name, as objects or as JSON text: HTTP
messages with a `body` (Portkey), Kong's `ai.proxy.payload`, Dynamo's `event`, LiteLLM's
`proxy_server_request`, tables of Databricks or BigQuery, records of a collector, SageMaker's and
Vertex AI's captures (also in base64), Bedrock's invocations of R1, HTTP messages in wire format
(Tyk), Envoy's taps, SGLang's and TGI's `/generate`, Ollama's `/api/chat` and `/api/generate`,
Phoenix's spans, lines in Loki's answers. Each entry of a HAR file and each LLM span of an MLflow
trace is a call. A streamed response is its event stream's text or a list of its chunks. Token ids
are included if requests set `return_token_ids`.

Session, user, tenant, route and time are read from the names that these producers use
(wrappers.py). Failed requests, rows of other APIs and answers from a gateway's cache
are set aside.
"""

from typing import Any

from outrider.data.exchange import Exchange, Record, Reject
from outrider.data.files.rows import FileSample
from outrider.data.formats.calls.cache_hits import check_generated
from outrider.data.formats.calls.cut_texts import check_complete, check_stored, check_whole
from outrider.data.formats.calls.message_sides import logged_about, message_sides, sent_parameters
from outrider.data.formats.calls.openai import body, exchanges
from outrider.data.formats.calls.sampling import NUMBERS
from outrider.data.formats.calls.usual_texts import is_plain_answer
from outrider.data.formats.fields import first_value, take_json
from outrider.data.formats.readers import message_pairs
from outrider.data.formats.rows.embedded import object_of
from outrider.data.formats.rows.other_rows import (
    FAILURES,
    check_completion,
    is_proxys_text,
    path_of_line,
)
from outrider.data.formats.sides import objects_in, sides
from outrider.data.formats.wrappers import check_call, open_row, pair_fields

TYK = "Tyk's record without bodies: set enable_detailed_recording"

VERTEX = (
    "Vertex AI's predictions are texts without an end or counts: send the endpoint chat completions"
    " (@requestFormat: chatCompletions)"
)

DYNAMO = {
    "request_payload": "Dynamo left out a payload above its exporter's limit: raise"
    " DYN_REQUEST_TRACE_OTEL_MAX_PAYLOAD_BYTES, or use its file sink",
    "request_end": "Dynamo's record of a request's end; its request_payload record has the texts",
}
"""Values of `event_type` in Dynamo's request trace (schema dynamo.request.trace.v1), and why such a
record has no text."""

NGINX = (
    "no request: nginx logs no body that it buffers on the disk: set client_body_buffer_size above"
    " the longest request"
)

SIDES = ("request", "response", "chunks", "messages", "prompt", "choices", "body")
"""Keys of a row that is a request, a response or both. Other rows are a server's other lines."""


def recognizes(sample: FileSample) -> bool:
    return any(map(_is_pair, sample.rows))


def _is_pair(row: dict[str, Any]) -> bool:
    if isinstance(row.get("request"), dict | str) and ("response" in row or "chunks" in row):
        return True
    return None not in sides(row)


def parse(record: Record) -> list[Exchange | Reject]:
    row = open_row(record.payload)
    place = record.place
    check_call(row)
    request, response = sides(row)
    check_generated(row)
    logged = _named(row, ("response", "chunks"))
    asked = first_value(request, _named(row, ("request",)))
    if path_of_line(asked) is not None:  # nginx's `$request`
        asked = None
    if response is None:
        pair = message_sides(row) if logged is None or _is_answer(logged) else None
        if pair is not None:
            return message_pairs.outcomes(row, pair, place)
        check_completion(row, asked, logged)
        response = _without_choices(row, logged)
    else:
        response = body({"response": response}, "response")
    check_completion(row, asked, response)
    if request is None:
        check_whole(asked, "row.request")
        request = body({"request": take_json({"request": asked}, "request", "row")}, "request")
    if request is None or response is None:
        check_stored(row)
        check_complete(row)
        raise _incomplete(row, request, response)
    if not any(request.get(name) is not None for name in NUMBERS):
        request = {**sent_parameters(row), **request}
    if request.get("model") is None and response.get("model") is None:
        model = logged_about(row).get("model")
        request = {**request, "model": model if isinstance(model, str) else None}
    return exchanges(request, response, place, **pair_fields(row))


def _incomplete(row: dict[str, Any], request: Any, response: Any) -> Reject:
    """Returns why a row lacks its request, its response or both."""
    holders = [row, *objects_in(row)]
    if any(holder.get("raw_request") == "" for holder in holders):
        return Reject("content_not_logged", TYK)
    trace = row.get("info")  # MLflow's, of which no span is a whole call
    if isinstance(trace, dict) and str(trace.get("state")).lower() in FAILURES:
        return Reject("error_response", "the trace failed")
    if _are_predictions(row.get("response_payload")):
        return Reject("no_choices", VERTEX)
    for holder in holders:
        kind = str(holder.get("event_type"))
        if str(holder.get("schema")).startswith("dynamo.") and kind in DYNAMO:
            why = DYNAMO[kind]
            is_end = kind == "request_end"
            return Reject("not_a_generation" if is_end else "content_not_logged", why)
    if request is None and response is None and row.keys().isdisjoint(SIDES):
        return Reject("not_a_generation", "a row with neither request nor response")
    if request is None and path_of_line(row.get("request")) is not None:
        return Reject("incomplete_pair", NGINX)
    return Reject("incomplete_pair", f"no {'request' if request is None else 'response'}")


def _are_predictions(answers: Any) -> bool:
    """Whether a column of responses has texts that are no objects."""
    if not isinstance(answers, list) or not answers:
        return False
    return all(isinstance(answer, str) and object_of(answer) is None for answer in answers)


def _is_answer(logged: Any) -> bool:
    """Whether a response is its message, a list of it, or the message's text."""
    if isinstance(logged, list) and logged and all(isinstance(item, dict) for item in logged):
        return all(item.get("role") == "assistant" and "type" not in item for item in logged)
    if isinstance(logged, dict):
        is_message = logged.get("role") == "assistant" and "type" not in logged
        return is_message or is_plain_answer(logged)
    is_text = isinstance(logged, str) and object_of(logged) is None
    return is_text and not is_proxys_text(logged)


def _named(row: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Returns the first side under its usual name, or the body of an HTTP message."""
    side = first_value(*(row.get(name) for name in names))
    if (
        isinstance(side, dict)
        and "body" in side
        and side.keys().isdisjoint(("messages", "choices"))
    ):
        return side["body"]
    return side


def _without_choices(row: dict[str, Any], logged: Any) -> dict[str, Any] | None:
    """Returns a response under its usual name that has no choices."""
    check_whole(logged, "row.response")
    if isinstance(logged, str):
        logged = first_value(take_json({"response": logged}, "response", "row"), None)
    return body({"response": logged}, "response")
