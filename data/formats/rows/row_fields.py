"""Finds the session, user, tenant, route, time and id of a row under any producer's names.

    fields({"createdAt": "2026-07-01T10:00:00Z", "user": {"externalId": "ada"}})
    # {"time": 1782900000.0, "user": "ada", "session": None, "seconds": None, ...}

Names are compared in any spelling (paths.py). Those of the recipe's `traffic.fields` replace the
known ones of a field:

    with use_field_paths({"user": ("author_id",)}):
        fields({"author_id": "ada", "user_id": "bot"})["user"]      # "ada"
"""

import re
from typing import Any

from outrider.data.formats.fields import parse_number, take_time
from outrider.data.formats.rows.named_fields import field_values
from outrider.data.formats.rows.paths import (
    Field,
    find_in,
    names_of,
    normalize_path,
    value_at,
)
from outrider.data.formats.rows.usual_names import (
    THREAD_ID,
    USUAL,
    has_process_thread,
    usual_value,
)

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
        "thread_identifier",  # Respan
        *("tags.session_id", "parent_request_id"),  # Datadog, Bifrost
        # TensorZero's own id is of one call if the application sends none with the next.
        *("tags.conversation_id", "tags.thread_id", "tags.chat_id", "episode_id"),
        *("session", "conversation", "chat_id", "dialog_id", "conv", "conv_id"),
        "metadata.session",  # Portkey
        *("request_metadata.session_id", "request_metadata.conversation_id"),  # Bedrock
        "extra.session",  # loguru
        "trace_metadata.mlflow.trace.session",
    ),
    # Databricks; LiteLLM; Kong, APISIX; Portkey; Phoenix; MLflow; Lunary; PostHog; others
    "user": (
        *("user_id", "end_user"),
        *("usage_context.end_user_to_charge", "request.usage_context.end_user_to_charge"),
        *("requester", "consumer.username", "consumer.id"),
        *("metadata._user", "metadata.user_id", "user.external_id", "user.id"),
        *("attributes.user.id", "info.trace_metadata.mlflow.trace.user", "distinct_id"),
        *("extra.metadata.user_id", "traceloop.association.properties.user_id"),
        *("metadata.user", "customer_identifier", "user", "tags.user_id"),
        *("user_properties.user_id", "request_data.user"),  # HoneyHive, Logfire
        *("usr.id", "attributes.usr.id", "tags.usr.id"),  # Datadog's standard attributes
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

ANONYMOUS = "properties.trace_id"
"""Path of PostHog's trace, whose id its SDKs and LiteLLM write as `distinct_id` of an event without
a user (posthog-python, ai/utils.py; litellm/integrations/posthog.py)."""

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

POSTHOG = "properties.latency"
"""Path of the seconds that a call took in PostHog's event, whose `timestamp` is when the SDK sent
it, after the call (posthog-python, ai/utils.py)."""

POSTHOG_EVENT = "$ai_"
"""How the names of PostHog's events about calls begin."""

NGINX_ENDS = ("msec", "time_iso8601", "time_local")
"""nginx's times, the most exact first, of the moment at which it writes a request's line: its end.
`request_time` is the duration in seconds (ngx_http_core_module), and for others a time."""

STARTS = ("started_at", "start_time", "start_ns", "started")
"""Names of a call's start. Next to them, `timestamp` is when the row was written, if that is less
than `LONGEST_CALL_S` later; otherwise they are of something else, such as a session or a clock that
began with the process."""

LONGEST_CALL_S = 900

LONGEST_S = 86_400
"""Larger differences of times are no durations of requests."""

UUID_7 = re.compile(r"0[0-9a-f]{7}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.I)
"""A UUID with its time; the first digit is 0 until the year 2527."""

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

NGINX = "http_"
"""How nginx's variables of a request's headers begin: $http_x_user_id."""

NOT_SENT = "-"
"""What nginx logs for a header that was not sent."""


def fields(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of `FIELDS`; None for a field that was not logged."""
    values: dict[str, Any] = {}
    names = names_of(row)
    misleading = _misleading(row, names)
    configured = field_values(row)
    of_trace = find_in(row, names, ANONYMOUS)
    trace = None if of_trace is None else value_at(of_trace, is_time=False)
    for name, paths in FIELDS.items():
        if name in configured:
            values[name] = configured[name]
            continue
        allowed = (path for path in paths if path not in misleading)
        places = (find_in(row, names, normalize_path(path)) for path in allowed)
        read = (value_at(place, is_time=name == "time") for place in places if place is not None)
        unknown = (None, trace) if name == "user" else (None,)
        values[name] = next((value for value in read if value not in unknown), None)
    missing = [name for name, value in values.items() if value is None and name not in configured]
    for name in USUAL & set(missing):
        values[name] = usual_value(row, name)
    if "time" not in configured:
        values["time"] = _start_of(row, names, values["time"])
    values["seconds"] = _seconds_of(row, names, values["time"])
    if not HEADERS.keys().isdisjoint(missing):
        sent = _headers(row, names)
        for name in HEADERS.keys() & set(missing):
            logged = (sent[key] for key in HEADERS[name] if sent.get(key))
            values[name] = values[name] or next(logged, None)
    return values


def time_of_uuid(text: Any) -> float | None:
    """Returns the Unix seconds in a UUID of version 7 (RFC 9562, 5.7); None for any other text."""
    is_timed = isinstance(text, str) and UUID_7.fullmatch(text) is not None
    return int(text[:8] + text[9:13], 16) / 1000 if is_timed else None


def _misleading(row: dict[str, Any], names: dict[str, str]) -> set[str]:
    """Returns the paths of FIELDS that mean something else in this row."""
    misleading = set()
    if all(key in row for key in PROJECT):
        misleading.add("session_id")
    if has_process_thread(names):
        misleading.add(THREAD_ID)
    return misleading


def _start_of(row: dict[str, Any], names: dict[str, str], time: float | None) -> float | None:
    """Returns the time at which a call started, if the row has it besides `time`."""
    if time is None:
        return None
    for path in STARTS:
        where = find_in(row, names, path)
        start = None if where is None else value_at(where, is_time=True)
        if isinstance(start, float) and 0 <= time - start <= LONGEST_CALL_S:
            return start
    took = _seconds_of_posthog(row, names)
    if took is not None:
        return round(time - took, 6)
    ended = _end_of_nginx(row, names)
    took = _seconds_of_nginx(row, names)
    return time if ended is None or took is None else round(ended - took, 6)


def _seconds_of_posthog(row: dict[str, Any], names: dict[str, str]) -> float | None:
    """Returns the duration in an event of PostHog; None for any other row."""
    event = row.get("event")
    if not isinstance(event, str) or not event.startswith(POSTHOG_EVENT):
        return None
    where = find_in(row, names, POSTHOG)
    took = None if where is None else parse_number(*where)
    return took if took is not None and 0 < took < LONGEST_CALL_S else None


def _end_of_nginx(row: dict[str, Any], names: dict[str, str]) -> float | None:
    """Returns the time at which nginx has written a line; None for any other row."""
    places = (Field(row, names[name]) for name in NGINX_ENDS if name in names)
    times = (value_at(place, is_time=True) for place in places)
    return next((time for time in times if time is not None), None)


def _seconds_of_nginx(row: dict[str, Any], names: dict[str, str]) -> float | None:
    """Returns the duration in a line of nginx's log; None for any other row."""
    if "request_time" not in names or _end_of_nginx(row, names) is None:
        return None
    took = parse_number(row, names["request_time"])
    return took if took is not None and 0 < took < LONGEST_CALL_S else None


def _headers(row: dict[str, Any], names: dict[str, str]) -> dict[str, str]:
    """Returns a request's headers, logged as an object (nginx, Kong) or as pairs (Envoy, HAR)."""
    for path in HEADER_HOLDERS:
        where = find_in(row, names, path)
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
    return _seconds_of(row, names_of(row), time)


def _seconds_of(row: dict[str, Any], names: dict[str, str], time: float | None) -> float | None:
    if took := _seconds_of_nginx(row, names) or _seconds_of_posthog(row, names):
        return took
    for unit, paths in DURATIONS.items():
        for path in paths:
            where = find_in(row, names, path)
            duration = None if where is None else parse_number(*where)
            if duration is not None and 0 < duration * unit < LONGEST_S:
                return duration * unit
    if time is None:
        return None
    for path in ENDS:
        where = find_in(row, names, path)
        ended = None if where is None else take_time(*where)
        if ended is not None and 0 < ended - time < LONGEST_S:
            return round(ended - time, 6)  # times have microseconds
    return None
