"""Sessions, users and times under names that an application chose itself, by how people form names.

    usual_value({"chat_uuid": "c-7", "hashed_user_id": "9f2c"}, "session")      # "c-7"
    usual_value({"meta": {"request_ts": 1782900000}}, "time")                   # 1782900000.0

Producers' own names (row_fields.FIELDS) count before these. A name is a subject and a word for an
id: `conversation_key`, `userid`. Looked at are the row and the objects in which services put what
they know about a request. A name that could mean something else is not read: `customer` and
`account` may be a company, `client` a program, and `thread` one of the process.
"""

import functools
import re
from collections.abc import Collection, Iterator
from typing import Any

from outrider.data.formats.rows.embedded import object_of
from outrider.data.formats.rows.paths import Field, names_of, normalize_key, value_at

USUAL = frozenset({"session", "user", "time"})
"""Fields that `usual_value` finds."""

HOLDERS = frozenset(
    {
        *("metadata", "meta", "context", "ctx", "extra", "extras", "labels", "tags"),
        *("attributes", "attrs", "properties", "props", "data", "info", "params"),
        *("custom", "custom_metadata", "request_metadata", "request_context", "audit"),
    }
)
"""Names of objects with facts about a request."""

ABOUT = {
    "session": frozenset({"session", "conversation", "chat", "dialog", "dialogue"}),
    "user": frozenset({"user", "end_user", "enduser", "usr"}),
}
"""Names of objects about a session or a user, whose ids have no subject: `user.email`."""

_SESSION = re.compile(
    r"(?:(?:chat|user|app|ui|web|client|external)_?)*"
    r"(?:session|conversation|convo|conv|thread|chat|dialog|dialogue)_?"
    r"(?:id|uuid|guid|uid|key|identifier|hash|ref)"
)
_USER = re.compile(
    r"(?:(?:hashed|anonymized|pseudonymized|external|internal|client|app|openai|current)_?)*"
    r"(?:user|end_?user|usr|member|employee|student|patient|player|visitor)_?"
    r"(?:id|uuid|guid|uid|name|e?mail|key|identifier|login|handle|sub|hash)(?:_?(?:hash|sha256))?"
)
_OF_SUBJECT = re.compile(r"(?:id|uuid|guid|uid|key|identifier|hash)")
_OF_USER = re.compile(r"(?:id|uuid|guid|uid|name|user_?name|e?mail|key|identifier|login|sub|hash)")
_USERS_ALONE = frozenset({"email", "end_user", "enduser", "hashed_user", "safety_identifier"})

_START = re.compile(r"(?:.*_)?(?:start|started|begin|began|request|requested|req|received)(?:_.*)?")
_TIME = re.compile(
    r"(?:[a-z]+_)*"
    r"(?:(?:request|start|begin|create|created|recorded|received|sent|log|event|unix|epoch)?"
    r"(?:time|timestamp|ts|datetime|date|at|ms)"
    r"|on|epoch|utc|instant|millis|micros|ns|start|started|begin|began)"
    r"|t|when"
)
_OTHER_TIME = re.compile(
    r"(?:.*_)?(?:end|ended|finish|finished|complete|completed|done|response|resp|answer|reply"
    r"|update|updated|modified|changed|expires?|expiry|expiration|due|until|valid|deleted|birth"
    r"|token|first|last|latency|duration|elapsed|took|timeout|model|signup|registered|login"
    r"|user|account|member|session|conversation|thread)(?:_.*)?"
)
"""Names of ends, of durations, and of when something else than the request began."""

LONGEST_NAME = 60
"""Characters of the longest key that is looked at."""

YEARS = (1_420_070_400, 4_102_444_800)
"""Unix seconds of 2015 and 2100: other numbers are counts, offsets or durations."""

THREAD_ID = "thread_id"
PROCESS_NAMES = frozenset(
    {"thread_name", "thread_priority", "process_id", "process_name", "pid", "machine_name"}
)
"""Names next to which THREAD_ID is the process's (Log4j 2's JsonLayout, Serilog, structlog)."""

NOT_ALONE = frozenset({"session_id", THREAD_ID})
"""Names that row_fields.py reads at the top of a row, where it knows what else they may be: a
project of LangSmith, a thread of the process."""


def usual_value(row: dict[str, Any], name: str) -> Any:
    """Returns a row's `session`, `user` or `time`; None if no name of the row is one."""
    if name == "time":
        return _time_of(row)
    values = (value_at(place, is_time=False) for place in _places(row, name))
    return next((value for value in values if value is not None), None)


def has_process_thread(names: Collection[str]) -> bool:
    """Whether THREAD_ID of a row with these names is a thread of the process that logged it."""
    return THREAD_ID in names and not PROCESS_NAMES.isdisjoint(names)


def _places(row: dict[str, Any], name: str) -> Iterator[Field]:
    """Yields the places of a session or a user, the row's own first."""
    for key in row:
        if _names_field(key, name) and normalize_key(key) not in NOT_ALONE:
            yield Field(row, key)
    for key, value in row.items():
        holder = normalize_key(key)
        is_about = holder in ABOUT[name]
        inner = object_of(value) if is_about or holder in HOLDERS else None
        if inner is None:
            continue
        is_process = has_process_thread(names_of(inner))
        for inner_key in inner:
            is_field = _names_field(inner_key, name) or (is_about and _names_part(inner_key, name))
            if is_field and not (is_process and normalize_key(inner_key) == THREAD_ID):
                yield Field(inner, inner_key)


def _time_of(row: dict[str, Any]) -> float | None:
    """Returns the time of the row, a start before any other."""
    holders = [row, *(inner for key in row if (inner := _facts(row, key)))]
    for is_start in (True, False):
        for holder in holders:
            for key in holder:
                if _names_time(key) is not is_start:
                    continue
                time = value_at(Field(holder, key), is_time=True)
                if time is not None and YEARS[0] <= time < YEARS[1]:
                    return time
    return None


def _facts(row: dict[str, Any], key: str) -> dict[str, Any] | None:
    return object_of(row[key]) if normalize_key(key) in HOLDERS else None


def _short_name(key: str) -> str:
    """Returns a key as `normalize_key` does; nothing for one that is too long for a name."""
    return normalize_key(key) if len(key) <= LONGEST_NAME else ""


@functools.lru_cache(4096)
def _names_field(key: str, name: str) -> bool:
    """Whether a key names a session or a user."""
    normal = _short_name(key)
    if name == "session":
        return _SESSION.fullmatch(normal) is not None
    return normal in _USERS_ALONE or _USER.fullmatch(normal) is not None


@functools.lru_cache(4096)
def _names_part(key: str, name: str) -> bool:
    """Whether a key of an object about a session or a user is its id."""
    pattern = _OF_SUBJECT if name == "session" else _OF_USER
    return pattern.fullmatch(_short_name(key)) is not None


@functools.lru_cache(4096)
def _names_time(key: str) -> bool | None:
    """Whether a key names a start; None if it names no time of a request."""
    normal = _short_name(key)
    if _TIME.fullmatch(normal) is None or _OTHER_TIME.fullmatch(normal) is not None:
        return None
    return _START.fullmatch(normal) is not None
