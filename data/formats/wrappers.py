"""Finds a row's request and response inside what gateways, collectors and databases wrap around.

    open_row(payload)       # the object that a format reads
    sides(row)              # request and response, wherever they are

One rule: what an object is, its own keys decide, not the keys around it. A request has `messages`
or a `prompt`, a response `choices` or an event stream, and other producers' rows have the keys of
`PRODUCERS`. They are looked for breadth first through objects, and through text that holds a JSON
object, never through lists, so that a customer's text is not searched. `FIELDS` lists where the
session, user, tenant, route, time and id of a row are.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from outrider.data.exchange import Reject
from outrider.data.formats.fields import take_text, take_time
from outrider.data.formats.rows import Row, decode, parse_row

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
        *("request.metadata.session_id", "headers.x-session-id"),
    ),
    # Databricks; LiteLLM; Kong; Portkey; others
    "user": (
        *("user_id", "userId", "end_user", "requester", "consumer.username", "consumer.id"),
        *("metadata._user", "metadata.user_id"),
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
    ),
    "log_id": ("databricks_request_id", "request_id", "requestId", "rid", "id"),
}
"""Paths of each field of an exchange, in order of preference; a part without keys is a leaf."""


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
    if _is_produced(row):
        return row
    holders = list(_objects(row))
    inner = next((holder for holder in holders if _is_produced(holder)), None)
    if inner is None and not HALF & row.keys() and None in sides(row):
        inner = next((holder for holder in holders if HALF & holder.keys()), None)
    if inner is None:
        return row
    around = fields(row)
    outer = {name: around[field] for name, field in INHERITED.items() if around[field] is not None}
    if "request_id" in row:
        outer["request_id"] = row["request_id"]  # joins the halves of an exchange
    return {**outer, **inner}


def _is_produced(row: dict[str, Any]) -> bool:
    if any(row.keys() >= keys for keys in PRODUCERS):
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
    *holders, key = path.split(".")
    holder: Any = row
    for level in holders:
        holder = object_of(holder.get(level))
        if holder is None:
            return None
    if is_time:
        time = take_time(holder, key)
        return time if time is not None and time >= FIRST_SECOND else None
    value = holder.get(key)
    is_id = isinstance(value, str) or type(value) is int
    return (take_text(holder, key, "row") or None) if is_id else None


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
            yield value
            inner = object_of(value)
            if inner is None or depth == DEEPEST:
                continue
            if not _is_request(inner) and not isinstance(inner.get("choices"), list):
                waiting.append((inner, depth + 1))


def object_of(value: Any) -> dict[str, Any] | None:
    """Returns an object, also one written as text; None for anything else."""
    if isinstance(value, dict):
        return value
    if isinstance(value, bytes):  # a table's binary column
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return None
    try:
        decoded = decode(value.encode("utf-8", "surrogatepass"))
    except Reject:
        return None
    return decoded if isinstance(decoded, dict) else None
