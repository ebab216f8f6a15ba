"""Values under the names that the recipe's `traffic.fields` gives to fields of an exchange.

    with use_field_paths({"user": ("author_id",)}):
        field_values({"author_id": "ada"})         # {"user": "ada"}

Names are paths from the top of a row. What is inside a row, such as a call of a list, takes its
values (`inherited_fields`).
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from outrider.data.exchange import Exchange, Reject
from outrider.data.formats.rows.embedded import object_of
from outrider.data.formats.rows.paths import Field, find_field, value_at

_NAMED: ContextVar[Mapping[str, tuple[str, ...]]] = ContextVar(
    "traffic.fields", default=MappingProxyType({})
)

CARRIED = "outrider.fields"
"""Key of a row that has the values which the recipe's names have in the rows around it."""


@contextlib.contextmanager
def use_field_paths(paths: Mapping[str, tuple[str, ...]]) -> Iterator[None]:
    """Reads the fields in `paths` from there alone, in this process, within the context."""
    token = _NAMED.set(paths)
    try:
        yield
    finally:
        _NAMED.reset(token)


def field_paths() -> Mapping[str, tuple[str, ...]]:
    """Returns the paths of the recipe's `traffic.fields`, by the name of the field."""
    return _NAMED.get()


def field_values(*rows: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of the recipe's fields in the first row that has each; None elsewhere.

    What rows around a row had (`inherited_fields`) counts before its own values.
    """
    values: dict[str, Any] = {}
    for name, paths in field_paths().items():
        logged = (_named_value(row, name, paths) for row in rows)
        values[name] = next((value for value in logged if value is not None), None)
    return values


def _named_value(row: dict[str, Any], name: str, paths: tuple[str, ...]) -> Any:
    """Returns the value at the first path that a row has."""
    around = stored_inherited_fields(row)
    if around.get(name) is not None:
        return around[name]
    places = (_exact(row, path.split(".")) or find_field(row, path) for path in paths)
    values = (value_at(place, is_time=name == "time") for place in places if place)
    return next((value for value in values if value is not None), None)


def _exact(row: dict[str, Any], parts: list[str]) -> Field | None:
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


def inherited_fields(row: dict[str, Any]) -> dict[str, Any]:
    """Returns what the rows inside a row take from it.

    Names of the recipe are paths from the top of a row, and what is inside may have the same keys.
    """
    values = {name: value for name, value in field_values(row).items() if value is not None}
    return {CARRIED: values} if values else {}


def stored_inherited_fields(row: dict[str, Any]) -> dict[str, Any]:
    """Returns what a row has taken from those around it; a log may have anything under the key."""
    values = row.get(CARRIED)
    return values if isinstance(values, dict) and field_paths() else {}


def with_named(
    outcomes: Iterable[Exchange | Reject], *rows: dict[str, Any], are_joined: bool = False
) -> list[Exchange | Reject]:
    """Returns outcomes with the values of the recipe's fields instead of their own.

    `rows` are a call and those around it or, if they are joined, the rows of one exchange, of which
    the earliest time counts.
    """
    outcomes = list(outcomes)
    if not field_paths():
        return outcomes
    values = field_values(*rows)
    if are_joined and values.get("time") is not None:
        times = (field_values(row)["time"] for row in rows)
        values["time"] = min(time for time in times if time is not None)
    if "session" in values:
        values["trace"] = None
    return [
        replace(outcome, **values) if isinstance(outcome, Exchange) else outcome
        for outcome in outcomes
    ]
