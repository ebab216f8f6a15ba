"""Finds a row's request and response inside what gateways, collectors and databases wrap around.

    open_row(payload)       # the object that a format reads
    sides(row)              # request and response, wherever they are

One rule: what an object is, its own keys decide, not the keys around it. A request has `messages`
or a `prompt`, a response `choices` or an event stream, and other producers' rows have the keys of
`PRODUCERS`. They are looked for breadth first through objects, and through text that holds a JSON
object, also in base64, never through lists, so that a customer's text is not searched. `LISTS` are
the exceptions: rows of several calls. `FIELDS` lists where the session, user, tenant, route, time
and id of a row are.
"""

import base64
import binascii
import functools
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from outrider.data.exchange import Reject
from outrider.data.files.rows import Row, decode, parse_row
from outrider.data.formats.fields import first, take_text, take_time

DEEPEST = 6
"""Levels that are searched; Kong's `ai.proxy.payload.request` in a collector's record is at 5."""

FIRST_SECOND = 1e9
"""Smaller numbers are no Unix times but, for instance, milliseconds since a process started
(Dynamo's audit file) or a latency; as seconds, they would be before September 2001."""

PRODUCERS = tuple(
    frozenset(keys.split())
    for keys in (
        "call_type model_parameters response",  # LiteLLM's StandardLoggingPayload
        "call_type proxy_server_request response",  # LiteLLM's spend logs
        "custom_id body",  # OpenAI Batch
        "custom_id response",
        "request_created_at request_body",  # Helicone
        "observations",  # Langfuse's traces
        "resourceSpans",  # OpenTelemetry
        "resourceLogs",
        "prompt_token_ids completion_token_ids",
    )
)
"""Keys of rows that a format other than pairs reads."""

LISTS = (
    "log.entries",  # HAR 1.2
    "data.spans",  # MLflow's traces
)
"""Paths of the calls in a row that has several."""

CLOUD_EVENT = frozenset({"specversion", "type", "source", "id"})
"""Attributes that every event has (CloudEvents 1.0): KServe's and Seldon's loggers."""

CHAT_EXPORTS = (
    frozenset({"title", "chat"}),  # Open WebUI
    frozenset({"title", "mapping"}),  # ChatGPT
)
"""Keys of what chat interfaces export: texts as displayed, without requests."""

SPAN_KINDS = ("attributes.mlflow.spanType", "attributes.openinference.span.kind", "span_kind")
OTHER_KINDS = frozenset(
    {
        *("CHAIN", "AGENT", "TOOL", "RETRIEVER", "RERANKER", "EMBEDDING", "GUARDRAIL"),
        *("EVALUATOR", "PROMPT", "PARSER", "MEMORY", "WORKFLOW", "TASK"),
    }
)
"""Kinds of spans around calls, whose inputs and outputs they may repeat: OpenInference, MLflow."""

BASE64 = ("eyJ", "eyA", "ewo", "ew0", "ZGF0YT")
"""How base64 of an object (`{"`, `{ `, `{` and a newline) or an event stream (`data`) begins."""

OBSERVATIONS = frozenset(
    {
        *("SPAN", "GENERATION", "EVENT", "AGENT", "TOOL", "CHAIN"),
        *("RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL"),
    }
)
"""Types of Langfuse's observations."""

ATTRIBUTES = ("attributes", "SpanAttributes", "LogAttributes")
"""Keys of OpenTelemetry's attributes."""

PARAMETERS = frozenset({"model", "max_tokens", "temperature", "stream", "n", "top_p"})
"""Keys of which a text completion's request has at least one."""

HALF = frozenset({"messages", "prompt", "choices", "request", "response", "conversations"})
"""Keys of a request, a response, or a conversation."""

FIELDS = {
    "session": (
        *("session_id", "sessionId", "conversation_id", "metadata.session_id"),
        *("request.metadata.session_id", "headers.x-session-id", "session.id"),
        "attributes.session.id",  # a column
        "info.trace_metadata.mlflow.trace.session",
    ),
    # Databricks; LiteLLM; Kong; Portkey; Phoenix; MLflow; others
    "user": (
        *("user_id", "userId", "end_user", "requester", "consumer.username", "consumer.id"),
        *("metadata._user", "metadata.user_id", "user.id", "attributes.user.id"),
        "info.trace_metadata.mlflow.trace.user",
    ),
    "tenant": ("tenant", "tenant_id", "metadata.tenant", "workspace_id"),
    "route": ("route", "route.name", "metadata.route", "model_group", "prompt_slug"),
    "time": (
        *("timestamp", "@timestamp", "time", "ts", "request_time", "timestamp_ms"),
        "event_timestamp",
        *("started_at", "startTime", "start_time", "created_at", "createdAt", "time_of_generation"),
        *(
            "time_local",
            "time_iso8601",
            "msec",
            "logged_at",
            "TimeGenerated",
            "_time",
            "date",
            "datetime",
        ),
        # HAR; MLflow; Vertex AI; SageMaker
        *("startedDateTime", "start_time_unix_nano", "info.request_time", "logging_time"),
        "eventMetadata.inferenceTime",
    ),
    "log_id": ("databricks_request_id", "request_id", "requestId", "rid", "id"),
}
"""Paths of each field of an exchange, in order of preference; keys may have dots, too."""


INHERITED = {
    "session_id": "session",
    "user_id": "user",
    "tenant": "tenant",
    "route": "route",
    "timestamp": "time",
}
"""Keys under which an inner row gets the fields of the rows around it, unless it has them."""


class Sides(NamedTuple):
    """A row's request and response as logged; None if not there."""

    request: dict[str, Any] | None
    response: Any


def open_row(payload: Row | None) -> dict[str, Any]:
    """Parses a row and returns the object that its format reads."""
    return unwrapped(parse_row(payload))


def unwrapped(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the innermost row of a known producer, with the fields of the rows around it."""
    # The search for the kind, the sides and the fields of a row reads a text up to 25 times, so it
    # is decoded once. Nothing is kept for the next row: a row may have 64 MB.
    _decoded.cache_clear()
    if _is_produced(row) or is_chat_export(row):
        return row
    if row.keys() >= CLOUD_EVENT:
        data = _plain(first(row.get("data"), row.get("data_base64")))
        content = {"response": data} if _is_stream(data) else object_of(data)
        if content is not None:
            # Both halves have the request's id, which Seldon's logger writes as `requestid`.
            event_id = first(row.get("requestid"), row["id"])
            return {**_inherited(row), "request_id": event_id, **unwrapped(content)}
    holders = list(_objects(row))
    inner = next((holder for holder in holders if _is_produced(holder)), None)
    if inner is None and not HALF & row.keys() and None in sides(row):
        inner = next((holder for holder in holders if HALF & holder.keys()), None)
    if inner is None:
        return row
    outer = _inherited(row)
    if "request_id" in row:
        outer["request_id"] = row["request_id"]  # joins the halves of an exchange
    return {**outer, **inner}


def _inherited(row: dict[str, Any]) -> dict[str, Any]:
    around = fields(row)
    return {name: around[field] for name, field in INHERITED.items() if around[field] is not None}


def is_chat_export(row: dict[str, Any]) -> bool:
    """Whether a row is a conversation as a chat interface exports it."""
    return any(
        row.keys() >= keys and isinstance(row[key], dict)
        for keys in CHAT_EXPORTS
        for key in keys - {"title"}
    )


def calls_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the calls in a row of several, with its fields; else the row itself."""
    listed = _listed_calls(row)
    if listed is None:
        return [row]
    around = _inherited(row)
    calls = []
    for call in listed:
        outer = dict(around)
        if fields(call)["time"] is not None:
            outer.pop("timestamp", None)
        calls.append({**outer, **call})
    return calls


def _listed_calls(row: dict[str, Any]) -> list[dict[str, Any]] | None:
    for path in LISTS:
        key, inner_key = path.split(".")
        holder = row.get(key)
        calls = holder.get(inner_key) if isinstance(holder, dict) else None
        if isinstance(calls, list) and calls and all(isinstance(call, dict) for call in calls):
            return calls
    return None


def check_call(row: dict[str, Any]) -> None:
    """Raises a `Reject` if a row is a span of another kind than a call."""
    for path in SPAN_KINDS:
        where = _find(row, path)
        kind = where.holder.get(where.key) if where else None
        if isinstance(kind, str) and kind.strip('"').upper() in OTHER_KINDS:
            raise Reject("not_a_generation", "the span is not a call")


def _is_produced(row: dict[str, Any]) -> bool:
    if any(row.keys() >= keys for keys in PRODUCERS) or _listed_calls(row) is not None:
        return True
    if row.get("type") in OBSERVATIONS and ("trace_id" in row or "traceId" in row):
        return True
    attributes = next((row[key] for key in ATTRIBUTES if row.get(key)), None)
    return isinstance(attributes, dict) and any(key.startswith("gen_ai.") for key in attributes)


def fields(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of `FIELDS`; None for a field that was not logged."""
    values: dict[str, Any] = {}
    for name, paths in FIELDS.items():
        values[name] = None
        for path in paths:
            value = _at(row, path, is_time=name == "time")
            if value is not None:
                values[name] = value
                break
    return values


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
    values: dict[str, Any] = {}
    for holder in holders:
        values |= {name: value for name, value in fields(holder).items() if value is not None}
    return values


def _at(row: dict[str, Any], path: str, is_time: bool) -> Any:
    where = _find(row, path)
    if where is None:
        return None
    holder, key = where
    if is_time:
        time = take_time(holder, key)
        return time if time is not None and time >= FIRST_SECOND else None
    value = holder.get(key)
    is_id = isinstance(value, str) or type(value) is int
    return (take_text(holder, key, "row") or None) if is_id else None


class _Field(NamedTuple):
    holder: dict[str, Any]
    key: str


def _find(row: dict[str, Any], path: str) -> _Field | None:
    """Returns the object and key at a path; OpenTelemetry's keys have dots themselves."""
    if path in row:
        return _Field(row, path)
    key, _, rest = path.partition(".")
    inner = object_of(row.get(key)) if rest else None
    return None if inner is None else _find(inner, rest)


def sides(row: dict[str, Any]) -> Sides:
    """Returns the request and response in a row.

    The row itself is a request only if none is inside it: LiteLLM's spend logs have the messages,
    and next to them the request with its sampling.
    """
    flat = row if _is_request(row) else None
    requests: list[dict[str, Any]] = []
    responses: list[Any] = []
    for value in _values(row):
        holder = object_of(value)
        if holder is not None and isinstance(holder.get("choices"), list):
            responses.append(holder)
        elif holder is not None and _is_request(holder):
            requests.append(holder)
        elif _is_stream(value):
            responses.append(value)
    requests.sort(key=lambda request: "messages" not in request)
    request = requests[0] if requests else flat
    if isinstance(row.get("choices"), list):
        responses.append(row)
    return Sides(request, responses[0] if responses else None)


def _is_request(holder: dict[str, Any]) -> bool:
    if isinstance(holder.get("choices"), list):
        return False
    messages = holder.get("messages")
    if isinstance(messages, str):
        return messages.lstrip().startswith("[")
    if isinstance(messages, list):
        return True
    # Metadata may name a prompt; a request has parameters, too.
    is_prompt = isinstance(holder.get("prompt"), str | list)
    return is_prompt and not PARAMETERS.isdisjoint(holder)


def _is_stream(value: Any) -> bool:
    """Whether a value is an event stream's text, its lines, or a list of its chunks."""
    if isinstance(value, str):
        return value.lstrip()[:200].startswith(("data:", "event:", ":", "id:")) and "data:" in value
    if not isinstance(value, list) or not value:
        return False
    if all(isinstance(chunk, str) for chunk in value):
        return any(chunk.startswith("data:") for chunk in value)
    return any(isinstance(chunk, dict) and "choices" in chunk for chunk in value)


def _objects(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the objects inside a row, outermost first."""
    for value in _values(row):
        holder = object_of(value)
        if holder is not None:
            yield holder


def _values(row: dict[str, Any]) -> Iterator[Any]:
    """Yields the values inside a row, breadth first, but not those inside a body."""
    waiting = deque([(row, 0)])
    while waiting:
        holder, depth = waiting.popleft()
        for key, value in holder.items():
            if value is None or key in ("messages", "choices", "tools"):
                continue
            value = _plain(value)
            yield value
            inner = object_of(value)
            if inner is None or depth == DEEPEST:
                continue
            if not _is_request(inner) and not isinstance(inner.get("choices"), list):
                waiting.append((inner, depth + 1))


def _plain(value: Any) -> Any:
    """Returns text without base64, and the only text of a list (Vertex AI's repeated columns)."""
    if isinstance(value, str) and value.startswith('["'):
        decoded = _decoded(value)
        if decoded is None:
            return value
        value = decoded
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        (value,) = value
    if not isinstance(value, str) or not value.startswith(BASE64):
        return value
    try:
        return base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return value


def object_of(value: Any) -> dict[str, Any] | None:
    """Returns an object, also one written as text; None for anything else."""
    if isinstance(value, dict):
        return value
    value = _plain(value)
    if isinstance(value, bytes):  # a table's binary column
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return None
    decoded = _decoded(value)
    return decoded if isinstance(decoded, dict) else None


@functools.cache
def _decoded(text: str) -> Any:
    """Returns the value of JSON text; None if it is invalid. Callers must not change it."""
    try:
        return decode(text.encode("utf-8", "surrogatepass"))
    except Reject:
        return None
