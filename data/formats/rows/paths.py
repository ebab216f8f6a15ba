"""Places in rows by the paths of their keys, whatever spelling the keys have.

    find_field({"userProperties": {"user-id": "ada"}}, "user_properties.user_id")
    # Field({"user-id": "ada"}, "user-id")

Names are compared in snake case, without the marks that begin them: `startTime`, `START_TIME` and
`@timestamp` are `start_time` and `timestamp`. DynamoDB's and MongoDB's typed values are unwrapped.
"""

import functools
import re
from typing import Any, NamedTuple

from outrider.data.formats.fields import take_text, take_time
from outrider.data.formats.rows.embedded import object_of

FIRST_SECOND = 1e9
"""Smaller numbers are no Unix times but, for instance, milliseconds since a process started
(Dynamo's audit file) or a latency; as seconds, they would be before September 2001."""

LARGEST_ID = 2**53
"""Larger integers are not exact as floats."""

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
TYPED = frozenset({"S", "N", "$oid"})
"""Keys around a value in DynamoDB's and MongoDB's JSON."""


class Field(NamedTuple):
    """An object and one of its keys."""

    holder: dict[str, Any]
    key: str


@functools.lru_cache(4096)
def normalize_key(key: str) -> str:
    """Returns a name in snake case, without `@`, `$`, PostHog's `$ai_`, or `_` before it."""
    name = _HUMP.sub("_", key).lower().replace("-", "_").removeprefix("$ai_").lstrip("@$_")
    return name.removesuffix(" [utc]")  # Azure's portal


def find_field(row: dict[str, Any], path: str) -> Field | None:
    """Returns the object and key at a path; OpenTelemetry's keys have dots themselves."""
    return find_in(row, names_of(row), normalize_path(path))


@functools.lru_cache(4096)
def normalize_path(path: str) -> str:
    """A path in snake case."""
    return ".".join(map(normalize_key, path.split(".")))


def names_of(row: dict[str, Any]) -> dict[str, str]:
    """Key of a row by its `normalize_key`; the first of several."""
    names: dict[str, str] = {}
    for key in row:
        names.setdefault(normalize_key(key), key)
    return names


def find_in(row: dict[str, Any], names: dict[str, str], path: str) -> Field | None:
    if path in names:
        return Field(row, names[path])
    name, _, rest = path.partition(".")
    inner = _holder(name, row[names[name]]) if rest and name in names else None
    return None if inner is None else find_in(inner, names_of(inner), rest)


def _holder(name: str, value: Any) -> dict[str, Any] | None:
    """Returns a row's object, or tags that are a list of names with their values (Datadog)."""
    if name != "tags" or not isinstance(value, list):
        return object_of(value)
    pairs = (tag.partition(":") for tag in value if isinstance(tag, str) and ":" in tag)
    return {key: text for key, _, text in pairs}


def value_at(where: Field, is_time: bool) -> Any:
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
