"""Typed fields of a JSON object; a wrong type is a `Reject` that names the field.

take(request, "messages", list, "request")      # None where it is missing or null
"""

import math
from datetime import UTC, datetime
from typing import Any

from outrider.data.exchange import Reject
from outrider.data.formats.rows import kind_of


def take(holder: dict[str, Any], key: str, kind: type | tuple[type, ...], where: str) -> Any:
    """Returns `holder[key]`, or None where it is missing or null.

    Raises:
        Reject: it has another type than `kind`.
    """
    value = holder.get(key)
    if value is None:
        return None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Reject("wrong_type", f"{where}.{key} is {kind_of(value)}")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Reject("not_utf8", f"{where}.{key} holds half a surrogate pair") from None
    return value


def take_number(holder: dict[str, Any], key: str, where: str) -> float | None:
    """A finite number or None."""
    value = take(holder, key, (int, float), where)
    if value is not None and not (abs(value) < 1e308 and math.isfinite(value)):
        raise Reject("wrong_type", f"{where}.{key} is not a finite number")
    return None if value is None else float(value)


def take_ids(holder: dict[str, Any], key: str, where: str) -> list[int] | None:
    """A list of token ids or None."""
    values = take(holder, key, list, where)
    if values is not None and not all(
        type(value) is int and 0 <= value < 2**31 for value in values
    ):
        raise Reject("wrong_type", f"{where}.{key} holds something other than token ids")
    return values


def take_time(holder: dict[str, Any], key: str, where: str) -> float | None:
    """Unix seconds, or None.

    From a number (seconds, or milliseconds where it is too large for seconds), an ISO 8601 text, or
    a table's time.
    """
    value = holder.get(key)
    if not isinstance(value, str | datetime):
        seconds = take_number(holder, key, where)
        return seconds / 1000 if seconds is not None and seconds > 1e11 else seconds
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise Reject("wrong_type", f"{where}.{key} is not a time") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def take_text(holder: dict[str, Any], key: str, where: str) -> str | None:
    """A text or None. Integers become text, since identifiers are logged as either."""
    value = holder.get(key)
    return str(value) if type(value) is int else take(holder, key, str, where)


def first(*values: Any) -> Any:
    """The first value that is not None, or None."""
    return next((value for value in values if value is not None), None)
