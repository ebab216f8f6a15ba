"""Names in a row that no field is read from, for advice about `traffic.fields`."""

import functools
import itertools
import re
from datetime import datetime
from typing import Any

from outrider.common.redaction import has_credentials
from outrider.data.formats.fields import take_time
from outrider.data.formats.rows.embedded import object_of
from outrider.data.formats.rows.paths import TYPED, normalize_path
from outrider.data.formats.rows.row_fields import FIELDS

LONGEST_ID = 100
"""Characters of the longest text that `names_in` takes for an id or a time."""

LONGEST_NAME = 60
MOST_NAMES = 40
"""Characters of the longest path, and number of paths, that `names_in` returns."""

_CALL = frozenset({"messages", "prompt", "choices"})
"""Keys of a request's or a response's body, whose other values are not ids of the application."""

_PLAIN_NAME = re.compile(r"[A-Za-z_@$][\w$-]*(?:\.[A-Za-z_@$][\w$-]*)*")


def names_in(row: dict[str, Any]) -> tuple[str, ...]:
    """Returns the paths of a row's short values that no field has: ids, times, labels.

    They are those of two levels.

    A key may be customer data, such as an address or an API key, so only plain names are listed. An
    object of numbers may have counts by customer, so none of its keys are.
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
    listed = (path for path in plain if normalize_path(path) not in _known_paths())
    return tuple(path for path in listed if not has_credentials(path))[:MOST_NAMES]


@functools.cache
def _known_paths() -> frozenset[str]:
    """Returns the paths that are read without being named."""
    return frozenset(map(normalize_path, itertools.chain.from_iterable(FIELDS.values())))


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
