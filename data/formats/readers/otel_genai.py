"""OpenTelemetry spans of LLM calls (GenAI conventions), one per row or as OTLP JSON.

    {"name": "chat deepseek-r1", "attributes": {"gen_ai.operation.name": "chat",
     "gen_ai.input.messages": "[...]", ...}}
    {"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes":
     [{"key": "gen_ai.input.messages", "value": {...}}]}]}]}]}

The conventions also allow the attributes on an event (`gen_ai.client.inference.operation.details`),
which is a log record or part of a span; both are read. A row with many spans is one record; each
of its spans or log records becomes an outcome, numbered by `choice`. Also read are events of one
message each before 1.37 (`gen_ai.user.message`), in a span or as log records (give the traces file,
too, which has model and sampling), and the attributes of OpenLLMetry (`gen_ai.prompt.0.content`),
OpenInference (`llm.input_messages.0.message.content`) and Vercel's AI SDK (`ai.prompt.messages`).

To export such spans, use the collector's file exporter, with `OTEL_SEMCONV_STABILITY_OPT_IN` set
to `gen_ai_latest_experimental`, `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY`, no
`OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT` (cut values are rejected as `truncated`) and batches below
64 MB. Token ids are lost. Exports of Jaeger, Zipkin, Tempo, SigNoz, Honeycomb, Application Insights
and ClickHouse are read, too (rows/span_attributes.py). vLLM's own spans have no messages.
"""

import re
from dataclasses import replace
from typing import Any

from outrider.data.exchange import Exchange, Place, Record, Reject
from outrider.data.files.rows import FileSample
from outrider.data.formats.calls.cache_hits import check_generated
from outrider.data.formats.calls.message_parts import openai_message, openai_messages
from outrider.data.formats.calls.message_sides import MessageSides, message_sides
from outrider.data.formats.calls.openai import exchanges
from outrider.data.formats.calls.sampling import NUMBERS
from outrider.data.formats.fields import (
    first_value,
    parse_number,
    take,
    take_json,
    take_json_or_text,
    take_mapping,
    take_names,
    take_text,
    take_time,
)
from outrider.data.formats.readers import message_pairs, openai_pairs
from outrider.data.formats.readers.otel_events import (
    CALL,
    EVENT,
    JOINED,
    check_captured,
    event_name,
    joined_calls,
    key_of,
)
from outrider.data.formats.rows.embedded import object_of
from outrider.data.formats.rows.named_fields import field_paths, field_values
from outrider.data.formats.rows.nested_rows import outcomes_of
from outrider.data.formats.rows.paths import find_field
from outrider.data.formats.rows.row_fields import LONGEST_S, fields, seconds_of
from outrider.data.formats.rows.span_attributes import (
    IS_AROUND,
    attributes_of,
    has_genai,
    has_genai_attributes,
    is_otlp,
    mark_outer_spans,
    plain_value,
    spans_of,
)
from outrider.data.formats.sides import sides
from outrider.data.formats.wrappers import PAIR, check_call, open_row, unwrap_row

ADK_REQUEST = "gcp.vertex.agent.llm_request"

OF_CALL = tuple(
    f"gen_ai.{part}"
    for part in (
        *("request.", "response.", "usage.", "input.", "output.", "operation."),
        *("latency.", "prompt", "completion"),
    )
)
"""How attributes begin that only a call's span has; others name a provider or an agent, as those
of OpenRouter's attempts."""

COLUMNS = frozenset({"input", "output"})
"""Columns of a table of spans that have the messages."""

OPENINFERENCE = {
    "messages": ("input.value", "llm.input_messages."),
    "choices": ("output.value", "llm.output_messages."),
}
"""A key of a request's or a response's body, the attribute of OpenInference that has the body, and
how the attributes begin that repeat its messages."""

CHUNK = "chat.completion.chunk"

OF_ENGINE = "gen_ai.latency."
"""How attributes begin that vLLM itself writes (vllm/tracing/utils.py)."""

NO_TEXTS = (
    "vLLM's own spans never have texts; log requests and responses with --enable-log-requests,"
    " --enable-log-outputs and VLLM_LOGGING_LEVEL=DEBUG, or at a gateway"
)
NO_MESSAGES = (
    "the span has no messages; use instrumentation that follows conventions 1.37 or newer"
    " (OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental)"
)
NO_FIELDS = (
    "the row has no messages: add prompt and completion to the fields that are logged, or put a"
    " gateway that logs request and response in front of the endpoint"
)
APART = (
    "a message of its own, without the id of its call's span; use instrumentation that writes"
    " messages together (OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental)"
)
AROUND = "the span is around another one of the same call"
WITH_SPAN = "messages of calls, which are read with their spans"

_WRAPPER = re.compile(r"ai\.(?:(?:generate|stream)(?:Text|Object)|toolCall)")
"""Values of `ai.operationId` in spans around those of Vercel's calls (`ai.streamText.doStream`) and
in a tool's."""

LOGFIRE = ("request_data", "response_data")
"""Attributes with a call's request and its response."""

CONVENTIONS = frozenset(
    {"gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"}
)

STREAMED = "combined_chunk_content"
"""Key of a streamed response's text in Logfire's record of it."""

PENDING = "pending_span"
"""Value of `kind` for a span that Logfire stores when it opens, and once more when it ends."""

FAILED = (2, "2", "STATUS_CODE_ERROR", "ERROR", "Error")
"""Values of a span's `status.code` after an error."""

NAMES = {
    "session": (
        *("gen_ai.conversation.id", "session.id", "langfuse.session.id", "thread.id"),
        "traceloop.association.properties.session_id",
        "lmnr.association.properties.session_id",
        *("ai.telemetry.metadata.sessionId", "ai.telemetry.metadata.conversationId"),
        *("ai.telemetry.metadata.threadId", "ai.telemetry.metadata.chatId"),
    ),
    "user": (
        *("user.id", "enduser.id", "langfuse.user.id"),
        "traceloop.association.properties.user_id",
        *("lmnr.association.properties.user_id", "ai.telemetry.metadata.userId"),
    ),
    "tenant": ("tenant", "tenant.id"),
    "route": ("route", "gen_ai.agent.name"),
}
"""Attribute names for each field of an exchange, in order of preference."""


call_records = joined_calls


def recognizes(sample: FileSample) -> bool:
    return any(is_otlp(row) or has_genai_attributes(row) for row in sample.rows)


def parse(record: Record) -> list[Exchange | Reject]:
    row = open_row(record.payload)
    if row.pop(IS_AROUND, False):
        raise Reject("not_a_generation", AROUND)
    call = row.pop(CALL, None)
    if call is not None:
        return [
            replace(outcome, call=call) if isinstance(outcome, Exchange) else outcome
            for outcome in _of_joined(row, record.place)
        ]
    joined = frozenset(row.pop(JOINED, ()))
    records = list(spans_of(row)) if is_otlp(row) else [row]
    others = [one for one in records if event_name(one) is None or key_of(one) is None]
    if records and not others:
        raise Reject("not_a_generation", WITH_SPAN)
    if not is_otlp(row):
        return _outcomes(row, record.place, joined)
    return outcomes_of(
        mark_outer_spans(others), lambda span: _outcomes(span, record.place, joined), "span"
    )


def _of_joined(span: dict[str, Any], place: Place) -> list[Exchange | Reject]:
    """Returns the outcomes of a call whose messages were events of their own."""
    if not (attributes_of(span).get("error.type") or _has_failed(span)):
        check_captured(span["events"])
    return _outcomes(span, place, frozenset())


def _outcomes(
    span: dict[str, Any], place: Place, joined: frozenset[str]
) -> list[Exchange | Reject]:
    logged = attributes_of(span)
    _check_unique(span, logged, joined)
    details = "gen_ai.client.inference.operation.details"  # event with the messages
    for event in take(span, "events", list, "span") or ():
        if isinstance(event, dict) and event.get("name") == details:
            logged = {**attributes_of(event), **logged}
    operation = logged.get("gen_ai.operation.name")
    _check_operation(operation, str(logged.get("ai.operationId")))
    _check_logfire(span, logged)
    if all(object_of(logged.get(name)) for name in LOGFIRE):
        # Its messages under the conventions' names lack the reasoning (logfire 4.14).
        logged = {key: value for key, value in logged.items() if key not in CONVENTIONS}
    is_call = operation in ("chat", "generate_content", None)  # some instrumentations omit it
    row, sides = _other_messages(span, logged) if is_call else (span, None)
    if sides is not None:
        check_call(row)
        return message_pairs.outcomes(
            row=row,
            sides=sides,
            place=place,
            log_id=_span_id(span),
            **_about(span, logged),
        )
    if ADK_REQUEST in logged:
        raise Reject(
            "content_not_logged",
            "Google ADK's spans have Gemini's messages; log the endpoint's /v1/chat/completions",
        )
    if not is_call or not any(key.startswith(OF_CALL) for key in logged):
        return _of_body(span, place)
    check_generated(logged)
    if logged.get("error.type") or _has_failed(span):
        raise Reject("error_response", "the span has an error")
    asked, answered = (
        take_json(logged, f"gen_ai.{side}.messages", "attributes") for side in ("input", "output")
    )
    if asked is None or answered is None:
        raise Reject("content_not_logged", _why_no_messages(span, logged))
    logged = {**logged, "gen_ai.input.messages": asked, "gen_ai.output.messages": answered}
    instructions = take_json(logged, "gen_ai.system_instructions", "attributes")
    messages = openai_messages(
        take(logged, "gen_ai.input.messages", list, "attributes"), "gen_ai.input.messages"
    )
    if instructions:
        key = "parts" if isinstance(instructions, list) else "content"
        system = {"role": "system", key: instructions}
        messages = [*openai_messages([system], "gen_ai.system_instructions"), *messages]
    request = {
        "model": logged.get("gen_ai.request.model"),
        "messages": messages,
        **{name: parse_number(logged, f"gen_ai.request.{name}") for name in NUMBERS},
        "response_format": logged.get("gen_ai.output.type"),
        "stop": take_json_or_text(logged, "gen_ai.request.stop_sequences", "attributes"),
        "tools": _tools(logged),
    }
    used = parse_number(logged, "gen_ai.usage.output_tokens")
    response = {
        "id": logged.get("gen_ai.response.id"),
        "model": logged.get("gen_ai.response.model"),
        "choices": _choices(logged),
        "usage": None if used is None else {"completion_tokens": int(used)},
    }
    return exchanges(request, response, place, log_id=_span_id(span), **_about(span, logged))


def _about(span: dict[str, Any], logged: dict[str, Any]) -> dict[str, Any]:
    """Returns a call's session, user, tenant, route, time and duration."""
    about = {**_times(span, logged), **take_names(logged, NAMES, "attributes")}
    if not field_paths():
        return about
    return {**about, **field_values({**logged, "attributes": logged}, span)}


def _check_unique(span: dict[str, Any], logged: dict[str, Any], joined: frozenset[str]) -> None:
    """Raises a `Reject` for a span whose call is read from another span or from log records."""
    if IS_AROUND in span:
        raise Reject("not_a_generation", AROUND)
    if key_of(span) in joined and "gen_ai.input.messages" not in logged:
        raise Reject("not_a_generation", "the span's messages are log records, which are read")


def _check_operation(operation: Any, of_vercel: str) -> None:
    """Raises a `Reject` for a span around calls, and for a text completion."""
    if _WRAPPER.fullmatch(of_vercel):
        raise Reject("not_a_generation", "the span is around calls, which have spans of their own")
    if operation == "text_completion":
        raise Reject(
            "prompt_not_messages",
            "a text_completion span does not show whether a chat template was applied",
        )


def _check_logfire(span: dict[str, Any], logged: dict[str, Any]) -> None:
    """Raises a `Reject` for spans that Logfire stores besides those with both sides."""
    if span.get("kind") == PENDING:
        raise Reject("not_a_generation", "a copy of the span from before its end")
    request = object_of(logged.get("request_data"))
    if request is None or logged.get("response_data"):
        return
    if span.get("exception_type") or span.get("is_exception") is True:
        raise Reject("error_response", "the span has an error")
    if request.get("stream") is True:
        raise Reject("not_a_generation", "the streamed response is a record of its own")


def _why_no_messages(span: dict[str, Any], logged: dict[str, Any]) -> str:
    if any(key.startswith(OF_ENGINE) for key in logged):
        return NO_TEXTS
    is_log_row = has_genai(span) and _span_id(span) is None
    return NO_FIELDS if is_log_row else NO_MESSAGES


def _has_failed(span: dict[str, Any]) -> bool:
    """Whether a span has the status of an error; an access log has HTTP's."""
    where = find_field(span, "status.code") or find_field(span, "status_code")
    code = where.holder[where.key] if where else None
    status = parse_number(span, "http.status")
    return code in FAILED or (status is not None and status >= 400)


def _other_messages(
    span: dict[str, Any], logged: dict[str, Any]
) -> tuple[dict[str, Any], MessageSides | None]:
    """Returns messages under names of conventions before 1.37, or of other conventions.

    Laminar's table has the messages next to the attributes. The first value is what holds them.
    """
    if any(logged.get(f"gen_ai.{side}.messages") is not None for side in ("input", "output")):
        return span, None
    row = _with_whole_bodies({**logged, **_of_events(span)})
    sides = message_sides(row)
    if sides is None and not span.keys().isdisjoint(COLUMNS):
        row = {**span, **row}
        sides = message_sides(row)
    return row, sides


def _with_whole_bodies(row: dict[str, Any]) -> dict[str, Any]:
    """Returns OpenInference's attributes without the messages that it takes from whole bodies.

    Its convention has no name for the reasoning of a message, which only the body has, where the
    instrumentation keeps it (Envoy AI Gateway 0.3, internal/tracing/openinference).
    """
    bodies = {name: object_of(row.get(key)) or {} for name, (key, _) in OPENINFERENCE.items()}
    if bodies["choices"].get("object") == CHUNK and "usage" not in bodies["choices"]:
        # Its end is Envoy's, which writes `stop` for a stream without one, too (sse_converter.go).
        bodies["choices"] = {}
    repeated = tuple(
        beginning for name, (_, beginning) in OPENINFERENCE.items() if name in bodies[name]
    )
    return {key: value for key, value in row.items() if not key.startswith(repeated)}


def _of_events(span: dict[str, Any]) -> dict[str, Any]:
    """Returns the messages and choices in a span's events (conventions 1.28 to 1.36)."""
    messages: dict[str, list[dict[str, Any]]] = {"gen_ai.prompt": [], "gen_ai.completion": []}
    for event in take(span, "events", list, "span") or ():
        kind = EVENT.fullmatch(str(event.get("name"))) if isinstance(event, dict) else None
        if kind is None:
            continue
        logged = attributes_of(event)
        logged = {**logged, **take_mapping(logged, "gen_ai.event.content", "event")}  # Azure's SDK
        if kind[1] == "choice":
            answer = take_json_or_text(logged, "message", "event")
            # Strands Agents writes the content's parts alone.
            answer = answer if isinstance(answer, dict) else {"content": answer}
            message = {"role": "assistant", **answer}
            choice = {"message": message, "finish_reason": logged.get("finish_reason")}
            messages["gen_ai.completion"].append(choice)
        else:
            keys = ("content", "tool_calls", "id")
            message = {
                key: take_json_or_text(logged, key, "event") for key in keys if key in logged
            }
            messages["gen_ai.prompt"].append({"role": kind[2], **message})
    return {key: listed for key, listed in messages.items() if listed}


def _of_body(record: dict[str, Any], place: Place) -> list[Exchange | Reject]:
    """Returns the exchange that an application logged as the body of a log record."""
    if event_name(record) is not None:
        raise Reject("content_not_logged", APART)
    # A record of a single line is given without OTLP around it.
    row = object_of(plain_value(record.get("body", record)))
    if row is None or (None in sides(unwrap_row(row)) and not row.keys() >= PAIR):
        raise Reject("not_a_generation")
    return openai_pairs.parse(Record(place, {"timestamp": _time(record), **row}))


def _span_id(span: dict[str, Any]) -> str | None:
    """Returns the id of a span; an event's record has that of the span it belongs to."""
    where = find_field(span, "span_id")
    return take_text(*where, "span") if where else None


def _choices(logged: dict[str, Any]) -> list[dict[str, Any]]:
    reasons = take_json(logged, "gen_ai.response.finish_reasons", "attributes")
    reasons = reasons if isinstance(reasons, list) else [reasons]
    choices = []
    for index, message in enumerate(take(logged, "gen_ai.output.messages", list, "attributes")):
        answer = openai_message(message, f"gen_ai.output.messages[{index}]")[-1]
        reason = first_value(
            message.get("finish_reason"), reasons[index] if index < len(reasons) else None
        )
        choices.append(
            {"message": answer, "finish_reason": "tool_calls" if reason == "tool_call" else reason}
        )
    return choices


def _tools(logged: dict[str, Any]) -> list[Any] | None:
    """Returns tools in OpenAI's form; the conventions omit the `function` level."""
    tools = take_json(logged, "gen_ai.tool.definitions", "attributes")
    if not isinstance(tools, list):
        return None
    for index, tool in enumerate(tools):
        if isinstance(tool, dict) and "function" not in tool:
            function = {key: value for key, value in tool.items() if key != "type"}
            tools[index] = {"type": "function", "function": function}
    return tools


def _time(span: dict[str, Any]) -> float | None:
    """Returns the call's start time; OTLP writes nanoseconds as text."""
    for key in ("start_time_unix_nano", "time_unix_nano"):
        where = find_field(span, key)
        nanoseconds = parse_number(*where) if where else None
        if nanoseconds:
            return round(nanoseconds / 1e9, 6)
    named = (find_field(span, key) for key in ("start_time", "start_timestamp", "timestamp"))
    return first_value(*(take_time(*where) for where in named if where), fields(span)["time"])


def _times(span: dict[str, Any], logged: dict[str, Any]) -> dict[str, float | None]:
    """Returns a call's start time and, if the span has its end, its duration in seconds.

    Logfire records a streamed response at its end, with its duration.
    """
    began = _time(span)
    streamed = object_of(logged.get("response_data")) or {}
    duration = parse_number(logged, "duration") if STREAMED in streamed else None
    if began is not None and duration is not None and 0 <= duration <= LONGEST_S:
        return {"time": round(began - duration, 6), "seconds": duration}
    return {"time": began, "seconds": seconds_of(span, began)}
