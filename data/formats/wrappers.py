"""Finds a row inside what gateways, collectors and databases wrap around it.

    open_row(payload)       # the object that a format reads

One rule: what an object is, its own keys decide, not the keys around it. A request has `messages`
or a `prompt`, a response `choices` or an event stream (sides.py), and other producers' rows have
the keys of `PRODUCERS`. They are looked for breadth first through objects, and through text that
holds a JSON object, also in base64, never through lists, so that a customer's text is not searched.
A list of calls (a page of an API, a search's hits, a query's rows, a trace's spans) is the
exception: `calls_of`.
"""

import re
from typing import Any

from outrider.data.exchange import Reject
from outrider.data.files.record_lines import lines_in
from outrider.data.files.rows import Row, parse_row
from outrider.data.formats.calls.attachments import with_attachments
from outrider.data.formats.calls.cut_texts import is_cut, is_stored
from outrider.data.formats.calls.message_sides import message_sides
from outrider.data.formats.fields import first_value
from outrider.data.formats.rows.call_ids import call_id
from outrider.data.formats.rows.change_events import check_not_deleted, row_after_change
from outrider.data.formats.rows.dynamodb import item_of
from outrider.data.formats.rows.embedded import json_of, object_of, plain_text, text_of_bytes
from outrider.data.formats.rows.engine_lines import JOURNALD
from outrider.data.formats.rows.mlflow import with_chunks
from outrider.data.formats.rows.named_fields import (
    CARRIED,
    field_paths,
    field_values,
    inherited_fields,
    stored_inherited_fields,
)
from outrider.data.formats.rows.other_rows import ERROR_KEYS, FAILURES, failed_status, is_error
from outrider.data.formats.rows.paths import find_field, normalize_key
from outrider.data.formats.rows.result_tables import query_result_rows
from outrider.data.formats.rows.row_fields import fields
from outrider.data.formats.rows.span_attributes import (
    has_genai_attributes,
    is_otlp,
    mark_outer_spans,
    of_typed_pairs,
    spans_of,
)
from outrider.data.formats.rows.tensorzero import translate_tensorzero
from outrider.data.formats.sides import is_stream, objects_in, sides, values_in

TRACE = frozenset({"session_id", "user_id", "public", "bookmarked", "tags"})
"""Keys of a trace in Langfuse's export, whose observations lack its session and user."""

PRODUCERS = tuple(
    frozenset(keys.split())
    for keys in (
        "call_type model_parameters response",  # LiteLLM's StandardLoggingPayload
        "call_type proxy_server_request response",  # LiteLLM's spend logs
        "custom_id body",  # OpenAI Batch
        "custom_id response",
        "request_created_at request_body",  # Helicone
        "observations",  # Langfuse's traces
        " ".join(TRACE),
        "prompt_token_ids completion_token_ids",
        "prompt_token_ids generated_tokens",  # Ray Data LLM
    )
)
"""Keys of rows that a format other than pairs reads."""

LISTS = ("data.spans",)
"""Paths of calls next to which a row repeats one of them: MLflow's traces."""

SAMPLE = frozenset({"epoch", "events"})
"""Keys of a sample in Inspect's log, which repeats the last of the calls in its events."""

TRACING = frozenset({"fields", "span", "spans"})
"""Keys of a line of Rust's tracing-subscriber in JSON: the event's values, and those of the spans
that it is in."""

ROLE_COLUMN = ".role"

STRING = "string_value"
"""Name of a line in a log record of OTLP."""

RAW = "call"
"""Key of the API's bodies in Inspect's events, which have them in its own form, too."""

TRIED = 20
"""Members of a list that are tried, to learn whether its members are calls."""

EVENTS = {
    frozenset({"specversion", "type", "source", "id"}): ("data", "data_base64"),
    frozenset({"req_type", "bytes", "id"}): ("bytes", "Bytes"),
}
"""Names of an event's attributes, and keys of its content: CloudEvents 1.0, which KServe's and
Seldon's loggers send, and KServe's in a bucket (pkg/logger/marshaller_record.go)."""

EVENT_IDS = ("requestid", "xrequestid", "correlationid", "id", "Id")
"""Attributes with the request's id, which both halves have, in order of preference: Seldon, Azure
Machine Learning's data collector, KServe."""

CHAT_EXPORTS = {
    "chat": "title",  # Open WebUI
    "snapshot": "meta",  # Open WebUI's feedbacks
    "mapping": "title",  # ChatGPT, DeepSeek
    "state": "exportType",  # LobeChat
    "chat_messages": "uuid",  # Claude
}
"""Keys of what chat interfaces export, with another key of it: texts as displayed, without
requests."""

CHAT_MESSAGES = frozenset({"thread.message", "thread"})
"""Values of `object` for messages and threads that Jan stores."""

SPAN_KINDS = (
    *("attributes.mlflow.spanType", "attributes.openinference.span.kind", "span_kind"),
    "attributes.span_kind",
    *("openinference.span.kind", "traceloop.span.kind", "attributes.traceloop.span.kind"),
    *("run_type", "span_type", "span_attributes.type", "meta.kind", "meta.span.kind"),
    *("type", "object"),
)
OTHER_KINDS = frozenset(
    {
        *("CHAIN", "AGENT", "TOOL", "RETRIEVER", "RERANKER", "EMBEDDING", "GUARDRAIL"),
        *("EVALUATOR", "PROMPT", "PARSER", "MEMORY", "WORKFLOW", "TASK", "RETRIEVAL", "RAG"),
        *("FUNCTION", "SCORE", "EVAL", "GENERAL", "SPAN", "COMPONENT", "MODULE", "THREAD", "TRACE"),
        "DEFAULT",
    }
)
"""Kinds of spans around calls, whose inputs and outputs they may repeat: OpenInference, MLflow,
OpenLLMetry, LangSmith, Braintrust, Datadog, Opik, LangWatch, Lunary, OpenAI's Agents SDK, Laminar
(`DEFAULT`)."""

OBSERVATIONS = frozenset(
    {
        *("SPAN", "GENERATION", "EVENT", "AGENT", "TOOL", "CHAIN"),
        *("RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL"),
    }
)
"""Types of Langfuse's observations."""

PROMPTS = frozenset({"messages", "prompt"})

HALF = frozenset({"messages", "prompt", "choices", "request", "response", "conversations"})
"""Keys of a request, a response, or a conversation."""

PAIR = frozenset({"request", "response"})

APISIX = "llm_request"
"""Key of the request's body in the log of APISIX' ai-proxy (3.13, `logging.payloads`)."""

OF_ENGINE = re.compile("(endpoint|upstream|backend)_(request|response)")
OF_CLIENT = re.compile("(entrypoint|downstream|client)_(request|response)")
"""Names of what a gateway got from the engine or sent to it, and of what its client sent or got:
policies in between change them (Gravitee)."""

IDS = frozenset({"request_id", "id"})
CALLS = ("call_id", "call")
"""Keys of the id that the rows of an exchange share; `CALLS` are read only of rows around a half,
of which other ids may be those of a trace or a project."""

INHERITED = {
    "session_id": "session",
    "user_id": "user",
    "tenant": "tenant",
    "route": "route",
    "timestamp": "time",
}
"""Keys under which an inner row gets the fields of the rows around it, unless it has them."""


def open_row(payload: Row | None) -> dict[str, Any]:
    """Parses a row and returns the object that its format reads."""
    row = parse_row(payload)
    check_not_deleted(row)
    return unwrap_row(row)


def unwrap_row(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the innermost row of a known producer, with the fields of the rows around it."""
    if _is_produced(row) or is_chat_export(row) or is_stored(row):
        return row
    row = _of_engine(_with_plain_columns(row))
    item = item_of(row) or row_after_change(row)
    if item is not None:
        return _within(_inherited(row), unwrap_row(item))
    event = _event(row)
    if event is not None:
        return event
    holders = list(objects_in(row))
    inner = next((holder for holder in holders if _is_produced(holder)), None)
    if inner is None and not HALF & row.keys() and None in sides(row):
        inner = next((holder for holder in holders if HALF & holder.keys()), None)
        is_part = inner is not None and not inner.keys() >= PAIR and message_sides(inner) is None
        if is_part and message_sides(row) is not None:
            return row
    if inner is None:
        return row
    outer = _around(inner, [row, *_between(row, inner, holders)])
    outer |= {key: row[key] for key in ERROR_KEYS & row.keys() if row[key]}
    if not inner.keys() >= PAIR:
        outer |= _failure([row, *holders])
    texts = {key: plain_text(value) for key, value in row.items() if isinstance(value, str)}
    outer |= {key: text for key, text in texts.items() if is_cut(text)}
    return _within(outer, inner)


def _around(inner: dict[str, Any], holders: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the fields of the objects around a row, outermost first, and the id of its call.

    The nearest field counts, but the outermost id.
    """
    outer: dict[str, Any] = {}
    for holder in holders:
        outer = _within(outer, _inherited(holder))
    for holder in reversed(holders):
        outer |= {"request_id": holder["request_id"]} if "request_id" in holder else {}
    if outer.keys().isdisjoint(IDS) and inner.keys().isdisjoint(IDS):
        call = first_value(*map(_valid_call_id, holders))
        outer |= {} if call is None else {"request_id": call}
    return outer


def _valid_call_id(row: dict[str, Any]) -> str | None:
    try:
        return call_id(row, other_ids=CALLS)
    except Reject:  # an id that is no valid text
        return None


def _between(
    row: dict[str, Any], inner: dict[str, Any], holders: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns the objects around `inner`, outermost first, without the row itself.

    Objects written as text are decoded once (`json_of`), so that they are the same ones.
    """
    around: list[dict[str, Any]] = []
    innermost = inner
    for holder in reversed(holders):
        if any(object_of(value) is innermost for value in holder.values()):
            around.insert(0, holder)
            innermost = holder
    return around


def _with_plain_columns(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row with the values of columns that tables and journald write otherwise."""
    if row.keys() >= TRACING:
        spans = row["spans"] if isinstance(row["spans"], list) else []
        merged: dict[str, Any] = {}
        for holder in (*spans, row["span"], row["fields"]):
            merged |= holder if isinstance(holder, dict) else {}
        return {**{key: row[key] for key in row if key not in TRACING}, **merged}
    if isinstance(row.get(JOURNALD), list):
        return {**row, JOURNALD: text_of_bytes(row[JOURNALD])}
    names = row.get("metadata.key")
    values = row.get("metadata.value")
    if isinstance(names, list) and isinstance(values, list) and len(names) == len(values):
        return {**row, "metadata": dict(zip(map(str, names), values, strict=True))}  # Portkey
    translated = translate_tensorzero(row) or with_chunks(row)
    if translated is not None:
        return translated
    row = _with_nested_messages(row)
    lists = {key: value for key, value in row.items() if isinstance(value, list)}
    columns = {key: of_typed_pairs(value) for key, value in lists.items()}
    if not any(columns.values()):
        return row
    merged = {key: value for key, value in row.items() if not columns.get(key)}
    for column in columns.values():
        merged |= column or {}
    return merged


def _with_nested_messages(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row with messages that ClickHouse keeps as arrays of their fields.

    Its type Nested has a column for each field, such as `msg.role` and `msg.content`.
    """
    names = [key.removesuffix(ROLE_COLUMN) for key in row if key.endswith(ROLE_COLUMN)]
    for name in names:
        columns = {
            key.removeprefix(f"{name}."): value
            for key, value in row.items()
            if key.startswith(f"{name}.")
        }
        arrays = [value for value in columns.values() if isinstance(value, list)]
        is_nested = "content" in columns and len(arrays) == len(columns)
        if is_nested and len({len(array) for array in arrays}) == 1:
            rest = {key: row[key] for key in row if not key.startswith(f"{name}.")}
            members = zip(*arrays, strict=True)
            row = {**rest, name: [dict(zip(columns, member, strict=True)) for member in members]}
    return row


def _of_engine(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a gateway's row without messages that are not the engine's."""
    if any(map(OF_ENGINE.fullmatch, map(normalize_key, row))):
        return {key: row[key] for key in row if not OF_CLIENT.fullmatch(normalize_key(key))}
    asked = row.get(APISIX)
    if isinstance(asked, dict):
        # Its `request` and `response` are HTTP messages, the former with the body that the client
        # sent if the logger has `include_req_body`: `llm_request` lacks the sampling.
        http = row.get("request")
        sent = object_of(http.get("body")) if isinstance(http, dict) else None
        rest = {key: value for key, value in row.items() if key not in PAIR}
        return {**rest, APISIX: {**(sent or {}), **asked}}
    return row


def _event(row: dict[str, Any]) -> dict[str, Any] | None:
    """Returns an event's content with the id of its request; None for any other row."""
    names = set(map(normalize_key, row))
    keys = next((keys for attributes, keys in EVENTS.items() if names >= attributes), ())
    data = plain_text(first_value(*(row.get(key) for key in keys)))
    content = {"response": data} if is_stream(data) else object_of(data)
    if content is None:
        return None
    of_call = _valid_call_id(content) if content.keys().isdisjoint(HALF) else None
    event_id = first_value(of_call, *(row.get(key) for key in EVENT_IDS))
    return _within({**_inherited(row), "request_id": event_id}, unwrap_row(content))


def _failure(holders: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the error, or the status of a failure, that is next to half of an exchange."""
    for holder in holders:
        if is_error(holder):
            return {"error": holder.get("error") or holder}
        states = [holder.get(key) for key in ("status", "status_code")]
        state = next((state for state in states if str(state).lower() in FAILURES), None)
        if state is not None:
            return {"status": state}
        code = failed_status(holder)
        if code is not None:
            return {"status_code": code}
    return {}


def _inherited(row: dict[str, Any]) -> dict[str, Any]:
    around = fields(row)
    configured = field_paths()
    inherited = {
        name: around[field]
        for name, field in INHERITED.items()
        if field not in configured and around[field] is not None
    }
    return {**inherited, **inherited_fields(row)}


def _within(outer: dict[str, Any], inner: dict[str, Any]) -> dict[str, Any]:
    """Returns a row with the fields of those around it; the recipe's names count outermost."""
    values = {**stored_inherited_fields(inner), **stored_inherited_fields(outer)}
    return {**outer, **inner, **({CARRIED: values} if values else {})}


def is_chat_export(row: dict[str, Any]) -> bool:
    """Whether a row is a conversation as a chat interface exports it."""
    if str(row.get("object")) in CHAT_MESSAGES:
        return True
    messages = row.get("messages")
    message = messages[0] if isinstance(messages, list) and messages else None
    # chat-ui's export has no sampling, and not the system message that was sent.
    if isinstance(message, dict) and message.keys() >= {"from", "content"}:
        return True
    return any(
        other in row and isinstance(row.get(key), dict | list)
        for key, other in CHAT_EXPORTS.items()
    )


def calls_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the calls in a row of several, with its fields; else the row, unwrapped."""
    row = unwrap_row(row)
    listed = _listed_calls(row)
    if listed is None:
        return [row]
    around = _inherited(row)
    trace = row.get("trace")  # Opik's, next to its spans
    if isinstance(trace, dict):
        around = _within(around, {**_inherited(trace), **around})
    calls = []
    for call in mark_outer_spans(listed):
        outer = dict(around)
        if fields(call)["time"] is not None:
            outer.pop("timestamp", None)
        # Each call of a list is a row of its own, whose values count before those around the list.
        values = {
            **stored_inherited_fields(around),
            **stored_inherited_fields(inherited_fields(call)),
        }
        call_row = {**outer, **call, **({CARRIED: values} if values else {})}
        calls += calls_of(call_row)  # pages list traces, which list spans
    return calls


def _listed_calls(row: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Returns the first list in a row whose members are calls, or the calls in its lines."""
    for path in LISTS:
        where = find_field(row, path)
        if where and _are_calls(where.holder.get(where.key)):
            return list(where.holder[where.key])
    if row.keys() >= SAMPLE and _are_calls(row["events"]):
        events = with_attachments(row["events"], row.get("attachments"))
        return [_with_raw_bodies(call) for call in events if _is_call(unwrap_row(call))]
    if is_otlp(row):
        return None if _has_objects_as_bodies(row) else _calls_in_lines(row) or None
    rows = query_result_rows(row)
    if rows and _are_calls(rows):
        return rows
    if is_chat_export(row) or _is_call(row):
        return None
    lines = _calls_in_lines(row)
    if any(_is_call(unwrap_row(line)) for line in lines):
        return lines
    lists = (_list_of(value) for value in values_in(row))
    return next((value for value in lists if _are_calls(value)), lines or None)


def _list_of(value: Any) -> Any:
    """Returns a list of objects that is written as text; any other value as it is."""
    is_list = isinstance(value, str) and value.lstrip().startswith("[{") and not is_stream(value)
    return json_of(value) if is_list else value


def _has_objects_as_bodies(batch: dict[str, Any]) -> bool:
    """Whether a batch of OTLP has log records whose body is no line."""
    try:
        bodies = [span.get("body") for span in spans_of(batch)]
    except Reject:  # by the format that reads the batch
        return True
    kinds = [normalize_key(next(iter(body), "")) for body in bodies if isinstance(body, dict)]
    return any(kind != STRING for kind in kinds)


def _with_raw_bodies(call: dict[str, Any]) -> dict[str, Any]:
    """Returns a call with the API's bodies alone, if it has them apart from others."""
    raw = call.get(RAW)
    return {**_inherited(call), **raw} if isinstance(raw, dict) and raw.keys() >= PAIR else call


def _calls_in_lines(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the calls that are lines of a document: Loki's API, OTLP's log records."""
    calls = []
    for line in lines_in(row):
        call = object_of(line.text) if len(line.holders) > 1 else None
        if call is None and is_cut(line.text) and len(line.holders) > 1:
            calls.append({"message": line.text})  # rejected as such
            continue
        if call is None or not (_is_call(unwrap_row(call)) or _is_half(call)):
            continue
        if fields(call)["time"] is None:
            times = (fields(holder)["time"] for holder in reversed(line.holders))
            call = {"timestamp": next((time for time in times if time is not None), None), **call}
        calls.append(call)
    return calls


def _is_half(row: dict[str, Any]) -> bool:
    """Whether a row has a request and no response: a call that failed, next to others."""
    request, response = sides(row)
    return request is not None and response is None


def _are_calls(value: Any) -> bool:
    if not isinstance(value, list) or not all(isinstance(member, dict) for member in value):
        return False
    tried = [unwrap_row(member) for member in value[:TRIED]]
    return any(_is_call(member) or _listed_calls(member) is not None for member in tried)


def _is_call(row: dict[str, Any]) -> bool:
    return _is_produced(row) or None not in sides(row) or message_sides(row) is not None


def check_call(row: dict[str, Any]) -> None:
    """Raises a `Reject` if a row is a span of another kind than a call; the first path decides."""
    for path in SPAN_KINDS:
        where = find_field(row, path)
        kind = where.holder.get(where.key) if where else None
        if isinstance(kind, str):
            if kind.strip('"').upper() in OTHER_KINDS:
                reject = Reject("not_a_generation", "the span is not a call")
                reject.is_request = False
                raise reject
            return


def _is_produced(row: dict[str, Any]) -> bool:
    if any(row.keys() >= keys for keys in PRODUCERS):
        return True
    return is_observation(row) or is_otlp(row) or has_genai_attributes(row)


def is_observation(row: Any) -> bool:
    """Whether a row is Langfuse's; MLflow's table has types and traces, too, and names spans."""
    if not isinstance(row, dict) or str(row.get("type")) not in OBSERVATIONS:
        return False
    return ("trace_id" in row or "traceId" in row) and "span_id" not in row


def pair_fields(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a row with both sides, those next to the sides first."""
    holders = [row]
    while True:
        inner = (object_of(value) for value in holders[-1].values())
        pairs = (holder for holder in inner if holder is not None and None not in sides(holder))
        holder = next(pairs, None)
        if holder is None:
            break
        holders.append(holder)
    return fields_of(holders)


def fields_of(holders: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the fields of objects inside each other; the innermost counts.

    Where the recipe names a field, it is the outermost: paths are from the top of a row.
    """
    values: dict[str, Any] = {}
    for holder in holders:
        values |= {name: value for name, value in fields(holder).items() if value is not None}
    return values | {
        name: value for name, value in field_values(*holders).items() if value is not None
    }
