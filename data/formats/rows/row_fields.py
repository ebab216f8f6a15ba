"""Finds the session, user, tenant, route, time and id of a row under any producer's names.

    fields({"createdAt": "2026-07-01T10:00:00Z", "user": {"externalId": "ada"}})
    # {"time": 1782900000.0, "user": "ada", "session": None, "seconds": None, ...}

Names are compared in snake case, without the marks that begin them: `startTime`, `START_TIME` and
`@timestamp` are `start_time` and `timestamp`. DynamoDB's and MongoDB's typed values are unwrapped.

Names of the recipe's `traffic.fields` replace the known ones of a field:

    with naming({"user": ("author_id",)}):
        fields({"author_id": "ada", "user_id": "bot"})["user"]      # "ada"
"""

import contextlib
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from outrider.common.redaction import has_credentials
from outrider.data.exchange import Exchange, Reject
from outrider.data.formats.fields import number, take_text, take_time
from outrider.data.formats.rows.embedded import object_of

FIRST_SECOND = 1e9
"""Smaller numbers are no Unix times but, for instance, milliseconds since a process started
(Dynamo's audit file) or a latency; as seconds, they would be before September 2001."""

FIELDS = {
    # LangSmith's `session_id` is a project, and a conversation is the thread in `extra.metadata`.
    "session": (
        *("extra.metadata.session_id", "extra.metadata.thread_id"),
        *("extra.metadata.conversation_id", "session_id", "conversation_id", "thread_id"),
        *("metadata.session_id", "metadata.thread_id", "metadata.conversation_id"),
        *("request.metadata.session_id", "headers.x-session-id", "session.id"),
        *("gen_ai.conversation.id", "traceloop.association.properties.session_id"),
        "attributes.session.id",  # a column
        "info.trace_metadata.mlflow.trace.session",
        *("thread_identifier", "episode_id"),  # Respan, TensorZero
        *("tags.session_id", "parent_request_id"),  # Datadog, Bifrost
        *("session", "conversation", "chat_id", "dialog_id", "conv", "conv_id"),
        "metadata.session",  # Portkey
        "request_metadata.session_id",  # Bedrock
        "extra.session",  # loguru
        "trace_metadata.mlflow.trace.session",
    ),
    # Databricks; LiteLLM; Kong, APISIX; Portkey; Phoenix; MLflow; Lunary; PostHog; others
    "user": (
        *("user_id", "end_user", "requester", "consumer.username", "consumer.id"),
        *("metadata._user", "metadata.user_id", "user.external_id", "user.id"),
        *("attributes.user.id", "info.trace_metadata.mlflow.trace.user", "distinct_id"),
        *("extra.metadata.user_id", "traceloop.association.properties.user_id"),
        *("metadata.user", "customer_identifier", "user", "tags.user_id"),
        *("user_properties.user_id", "request_data.user"),  # HoneyHive, Logfire
        *("usr.id", "attributes.usr.id"),  # Datadog's standard attributes
        "trace_metadata.mlflow.trace.user",
        "consumer",  # Higress
        *("uid", "extra.uid", "from_end_user_id"),  # loguru; Dify
        "request_metadata.user_id",  # Bedrock
        *("user_email", "username", "enduser"),
    ),
    "tenant": ("tenant", "tenant_id", "metadata.tenant", "workspace_id"),
    "route": ("route", "route.name", "metadata.route", "model_group", "prompt_slug"),
    "time": (
        "start_timestamp",
        "ts_ns",  # Grafana's CSV, whose Time is the browser's
        *("timestamp", "time", "ts", "request_time", "timestamp_ms", "event_timestamp"),
        *("started_at", "start_time", "start_ns", "created_at", "timestamps.started_at"),
        *("time_of_generation", "msec", "time_local", "time_iso8601", "logged_at"),
        *("time_generated", "date", "datetime", "metrics.start", "created", "event_time"),
        # HAR; MLflow; Vertex AI; SageMaker
        *("started_date_time", "start_time_unix_nano", "info.request_time", "logging_time"),
        "event_metadata.inference_time",
        # journald; OTLP
        *("realtime_timestamp", "source_realtime_timestamp", "time_unix_nano"),
        *("observed_time_unix_nano", "asctime", "datetime_utc"),
        *("received_at", "requested_at", "request_at", "arrival_time", "request_start_time"),
        *("log_time", "occurred_at", "inserted_at", "time_stamp"),
        "approximate_arrival_timestamp",  # Kinesis
        # WireMock; Charles; AIPerf
        *("request.logged_date", "times.start", "metadata.request_start_ns"),
    ),
    "log_id": ("databricks_request_id", "request_id", "rid", "id"),
}
"""Paths of each field of an exchange, in order of preference; keys may have dots, too."""

ENDS = (
    *("end_time", "ended_at", "completed_at", "finished_at", "end_time_unix_nano", "end_ns"),
    *("response_created_at", "metrics.end", "timestamps.completed_at"),
)
"""Paths of the time at which a response ended."""

DURATIONS = {
    1.0: ("e2e_latency", "latency_seconds", "latency_s", "duration_seconds", "duration_s"),
    0.001: (
        *("latency_ms", "duration_ms", "delay_ms", "response_time_ms", "elapsed_ms"),
        *("execution_duration_ms", "total_time_ms"),
    ),
}
"""Paths of a request's duration, by their unit in seconds. Names without a unit (`latency`) are
seconds for some producers and milliseconds for others, so they are not read."""

NGINX_ENDS = ("msec", "time_iso8601", "time_local")
"""nginx's times, the most exact first, of the moment at which it writes a request's line: its end.
`request_time` is the duration in seconds (ngx_http_core_module), and for others a time."""

STARTS = ("started_at", "start_time", "start_ns")
"""Names of a call's start. Next to them, `timestamp` is when the row was written, if that is less
than `LONGEST_CALL_S` later; otherwise they are of something else, such as a session or a clock that
began with the process."""

LONGEST_CALL_S = 900

LONGEST_S = 86_400
"""Larger differences of times are no durations of requests."""

PROJECT = ("run_type", "session_id")
"""Keys of a LangSmith run, whose `session_id` is the project of all of its runs."""

HEADERS = {
    "session": (
        *("x_session_id", "x_conversation_id", "x_thread_id", "helicone_session_id"),
        *("x_dynamo_session_id", "x_openwebui_chat_id"),
    ),
    "user": ("x_user_id", "x_user", "helicone_user_id", "x_openwebui_user_id"),
}
"""Names of a request's headers that have a field which the row lacks."""

HEADER_HOLDERS = (
    *("headers", "request_headers", "request.headers", "http.request.headers"),
    "provider_request.meta",  # Helicone's logger for other clients
    *("http_request_headers", "payload.http_request_headers"),  # Dynamo
)

LARGEST_ID = 2**53
"""Larger integers are not exact as floats."""

LONGEST_ID = 100
"""Characters of the longest text that `names_in` takes for an id or a time."""

LONGEST_NAME = 60
MOST_NAMES = 40
"""Characters of the longest path, and number of paths, that `names_in` returns."""

_CALL = frozenset({"messages", "prompt", "choices"})
"""Keys of a request's or a response's body, whose other values are not ids of the application."""

_PLAIN_NAME = re.compile(r"[A-Za-z_@$][\w$-]*(?:\.[A-Za-z_@$][\w$-]*)*")

NGINX = "http_"
"""How nginx's variables of a request's headers begin: $http_x_user_id."""

NOT_SENT = "-"
"""What nginx logs for a header that was not sent."""

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
TYPED = frozenset({"S", "N", "$oid"})
"""Keys around a value in DynamoDB's and MongoDB's JSON."""

_NAMED: ContextVar[Mapping[str, tuple[str, ...]]] = ContextVar(
    "traffic.fields", default=MappingProxyType({})
)


CARRIED = "outrider.fields"
"""Key of a row that has the values which the recipe's names have in the rows around it."""


@contextlib.contextmanager
def naming(paths: Mapping[str, tuple[str, ...]]) -> Iterator[None]:
    """Reads the fields in `paths` from there alone, in this process, within the context."""
    token = _NAMED.set(paths)
    try:
        yield
    finally:
        _NAMED.reset(token)


def named_paths() -> Mapping[str, tuple[str, ...]]:
    """Returns the paths of the recipe's `traffic.fields`, by the name of the field."""
    return _NAMED.get()


def named(*rows: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of the recipe's fields in the first row that has each; None elsewhere.

    What rows around a row had (`carried`) counts before its own values.
    """
    values: dict[str, Any] = {}
    for name, paths in named_paths().items():
        logged = (_named_value(row, name, paths) for row in rows)
        values[name] = next((value for value in logged if value is not None), None)
    return values


def _named_value(row: dict[str, Any], name: str, paths: tuple[str, ...]) -> Any:
    """Returns the value at the first path that a row has."""
    around = carried_in(row)
    if around.get(name) is not None:
        return around[name]
    places = (_exact(row, path.split(".")) or find(row, path) for path in paths)
    values = (_value(place, is_time=name == "time") for place in places if place)
    return next((value for value in values if value is not None), None)


def _exact(row: dict[str, Any], parts: list[str]) -> "Field | None":
    """Returns the place of a path as it is written; keys may have dots themselves."""
    whole = ".".join(parts)
    if whole in row:
        return Field(row, whole)
    for end in range(1, len(parts)):
        inner = object_of(row.get(".".join(parts[:end])))
        place = None if inner is None else _exact(inner, parts[end:])
        if place is not None:
            return place
    return None


def carried(row: dict[str, Any]) -> dict[str, Any]:
    """Returns what the rows inside a row take from it.

    Names of the recipe are paths from the top of a row, and what is inside may have the same keys.
    """
    values = {name: value for name, value in named(row).items() if value is not None}
    return {CARRIED: values} if values else {}


def carried_in(row: dict[str, Any]) -> dict[str, Any]:
    """Returns what a row has taken from those around it; a log may have anything under the key."""
    values = row.get(CARRIED)
    return values if isinstance(values, dict) and named_paths() else {}


def with_named(
    outcomes: Iterable[Exchange | Reject], *rows: dict[str, Any], are_joined: bool = False
) -> list[Exchange | Reject]:
    """Returns outcomes with the values of the recipe's fields instead of their own.

    `rows` are a call and those around it or, if they are joined, the rows of one exchange, of which
    the earliest time counts.
    """
    outcomes = list(outcomes)
    if not named_paths():
        return outcomes
    values = named(*rows)
    if are_joined and values.get("time") is not None:
        times = (named(row)["time"] for row in rows)
        values["time"] = min(time for time in times if time is not None)
    if "session" in values:
        values["trace"] = None
    return [
        replace(outcome, **values) if isinstance(outcome, Exchange) else outcome
        for outcome in outcomes
    ]


@functools.lru_cache(4096)
def normal_name(key: str) -> str:
    """Returns a name in snake case, without `@`, `$`, PostHog's `$ai_`, or `_` before it."""
    name = _HUMP.sub("_", key).lower().replace("-", "_").removeprefix("$ai_").lstrip("@$_")
    return name.removesuffix(" [utc]")  # Azure's portal


def fields(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of `FIELDS`; None for a field that was not logged."""
    values: dict[str, Any] = {}
    is_run = all(key in row for key in PROJECT)
    names = _names(row)
    configured = named(row)
    for name, paths in FIELDS.items():
        values[name] = configured.get(name)
        if name in configured:
            continue
        for path in paths:
            if is_run and path == "session_id":
                continue
            where = _find(row, names, _normal_path(path))
            value = None if where is None else _value(where, is_time=name == "time")
            if value is not None:
                values[name] = value
                break
    if "time" not in configured:
        values["time"] = _start_of(row, names, values["time"])
    values["seconds"] = _seconds_of(row, names, values["time"])
    if values["session"] is None or values["user"] is None:
        sent = _headers(row, names)
        for name, keys in HEADERS.items():
            if values[name] is None and name not in configured:
                values[name] = next((sent[key] for key in keys if sent.get(key)), None)
    return values


def names_in(row: dict[str, Any]) -> tuple[str, ...]:
    """Returns the paths of a row's short values that no field has: ids, times, labels.

    They are those of two levels.

    A key may be a customer's data, such as an address or a key of an API: only plain names are
    listed, and of an object of numbers, which may count something by customer, none.
    """
    paths: list[str] = []
    for key, value in itertools.islice(row.items(), MOST_NAMES):
        inner = object_of(value)
        if _is_short(value):
            paths.append(key)
        elif inner is not None and _CALL.isdisjoint(inner) and not _is_table(inner):
            members = itertools.islice(inner.items(), MOST_NAMES)
            paths += [f"{key}.{name}" for name, of_name in members if _is_short(of_name)]
    plain = (path for path in paths if len(path) <= LONGEST_NAME and _PLAIN_NAME.fullmatch(path))
    listed = (path for path in plain if _normal_path(path) not in _known_paths())
    return tuple(path for path in listed if not has_credentials(path))[:MOST_NAMES]


@functools.cache
def _known_paths() -> frozenset[str]:
    """Returns the paths that are read without being named."""
    return frozenset(map(_normal_path, itertools.chain.from_iterable(FIELDS.values())))


def _is_table(holder: dict[str, Any]) -> bool:
    """Whether an object has numbers alone."""
    return all(type(value) in (int, float) for value in holder.values())


def _is_short(value: Any) -> bool:
    """Whether a value may be an id, a label or a time."""
    if isinstance(value, dict) and len(value) == 1 and TYPED & value.keys():
        (value,) = value.values()
    if not isinstance(value, str):
        return type(value) in (int, float, datetime)
    is_id = 0 < len(value) <= LONGEST_ID and " " not in value.strip()
    return is_id or (len(value) <= LONGEST_ID and take_time({"time": value}, "time") is not None)


def _start_of(row: dict[str, Any], names: dict[str, str], time: float | None) -> float | None:
    """Returns the time at which a call started, if the row has it besides `time`."""
    if time is None:
        return None
    for path in STARTS:
        where = _find(row, names, path)
        start = None if where is None else _value(where, is_time=True)
        if isinstance(start, float) and 0 <= time - start <= LONGEST_CALL_S:
            return start
    ended = _end_of_nginx(row, names)
    took = _seconds_of_nginx(row, names)
    return time if ended is None or took is None else round(ended - took, 6)


def _end_of_nginx(row: dict[str, Any], names: dict[str, str]) -> float | None:
    """Returns the time at which nginx has written a line; None for any other row."""
    places = (Field(row, names[name]) for name in NGINX_ENDS if name in names)
    times = (_value(place, is_time=True) for place in places)
    return next((time for time in times if time is not None), None)


def _seconds_of_nginx(row: dict[str, Any], names: dict[str, str]) -> float | None:
    """Returns the duration in a line of nginx's log; None for any other row."""
    if "request_time" not in names or _end_of_nginx(row, names) is None:
        return None
    took = number(row, names["request_time"])
    return took if took is not None and 0 < took < LONGEST_CALL_S else None


def _headers(row: dict[str, Any], names: dict[str, str]) -> dict[str, str]:
    """Returns a request's headers, logged as an object (nginx, Kong) or as pairs (Envoy, HAR)."""
    for path in HEADER_HOLDERS:
        where = _find(row, names, path)
        logged = where.holder[where.key] if where else None
        pairs: list[tuple[Any, Any]] = []
        if isinstance(logged, dict):
            pairs = list(logged.items())
        elif isinstance(logged, list):
            members = [member for member in logged if isinstance(member, dict)]
            pairs = [(one.get("key", one.get("name")), one.get("value")) for one in members]
        sent = {}
        for key, value in pairs:
            # A header may be there several times.
            text = value[0] if isinstance(value, list) and value else value
            if isinstance(key, str) and isinstance(text, str) and text.isprintable():
                sent[key.lower().replace("-", "_")] = text
        if sent:
            return sent
    texts = ((name, row[key]) for name, key in names.items() if name.startswith(NGINX))
    return {
        name.removeprefix(NGINX): text
        for name, text in texts
        if isinstance(text, str) and text.isprintable() and text not in ("", NOT_SENT)
    }


def seconds_of(row: dict[str, Any], time: float | None) -> float | None:
    """Returns the logged duration of a request that arrived at `time`; None if there is none."""
    return _seconds_of(row, _names(row), time)


def _seconds_of(row: dict[str, Any], names: dict[str, str], time: float | None) -> float | None:
    if took := _seconds_of_nginx(row, names):
        return took
    for unit, paths in DURATIONS.items():
        for path in paths:
            where = _find(row, names, path)
            duration = None if where is None else number(*where)
            if duration is not None and 0 < duration * unit < LONGEST_S:
                return duration * unit
    if time is None:
        return None
    for path in ENDS:
        where = _find(row, names, path)
        ended = None if where is None else take_time(*where)
        if ended is not None and 0 < ended - time < LONGEST_S:
            return round(ended - time, 6)  # times have microseconds
    return None


def _value(where: "Field", is_time: bool) -> Any:
    """The text, number or time at a key; None for anything else."""
    holder, key = where
    if is_time:
        time = take_time(holder, key)
        return time if time is not None and time >= FIRST_SECOND else None
    value = holder.get(key)
    if isinstance(value, dict) and len(value) == 1 and TYPED & value.keys():
        (value,) = value.values()
    # pandas writes a column of integers with gaps as floats.
    if isinstance(value, float) and value.is_integer() and abs(value) < LARGEST_ID:
        value = int(value)
    is_id = isinstance(value, str) or type(value) is int
    return (take_text({key: value}, key, "row") or None) if is_id else None


class Field(NamedTuple):
    """An object and one of its keys."""

    holder: dict[str, Any]
    key: str


def find(row: dict[str, Any], path: str) -> Field | None:
    """Returns the object and key at a path; OpenTelemetry's keys have dots themselves."""
    return _find(row, _names(row), _normal_path(path))


@functools.lru_cache(4096)
def _normal_path(path: str) -> str:
    """A path in snake case."""
    return ".".join(map(normal_name, path.split(".")))


def _names(row: dict[str, Any]) -> dict[str, str]:
    """Key of a row by its `normal_name`; the first of several."""
    names: dict[str, str] = {}
    for key in row:
        names.setdefault(normal_name(key), key)
    return names


def _find(row: dict[str, Any], names: dict[str, str], path: str) -> Field | None:
    if path in names:
        return Field(row, names[path])
    name, _, rest = path.partition(".")
    inner = _holder(name, row[names[name]]) if rest and name in names else None
    return None if inner is None else _find(inner, _names(inner), rest)


def _holder(name: str, value: Any) -> dict[str, Any] | None:
    """Returns a row's object, or tags that are a list of names with their values (Datadog)."""
    if name != "tags" or not isinstance(value, list):
        return object_of(value)
    pairs = (tag.partition(":") for tag in value if isinstance(tag, str) and ":" in tag)
    return {key: text for key, _, text in pairs}
