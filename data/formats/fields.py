"""Reads typed fields of JSON objects; a wrong type raises a `Reject`.

take(request, "messages", list, "request")      # None if it is missing or null

Trace stores and tables write JSON into text fields, where an empty string means unset:

take_json({"input": '[{"role": "user"}]'}, "input", "row")           # [{"role": "user"}]
take_mapping({"metadata": '{"tenant": "acme"}'}, "metadata", "row")      # {"tenant": "acme"}
"""

import functools
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Any

from outrider.data.exchange import Reject
from outrider.data.files.rows import json_type_name, parse_value

LARGEST = 1e300
"""Larger numbers are rejected, so that sums stay finite."""

LAST_SECOND = 1e11
"""Larger Unix times are in milliseconds; as seconds, they would be after the year 5000."""

OTHER_TIMES = (
    "%d/%b/%Y:%H:%M:%S %z",  # nginx's and Apache's access logs: 01/Jul/2026:10:00:00 +0000
    "%m/%d/%Y, %I:%M:%S.%f %p",  # Azure's portal: 7/1/2026, 10:00:00.250 AM
)
"""Times that are not ISO 8601."""

_ZONE_NAME = re.compile(r"\s*(?:UTC|GMT|Z|\[[\w/+-]+\])$")
_ZONE_OFFSET = re.compile(r"\s+(?=[+-]\d\d:?\d\d$)")


def take(holder: dict[str, Any], key: str, kind: type | tuple[type, ...], where: str) -> Any:
    """Returns `holder[key]`, or None if it is missing or null.

    Raises:
        Reject: If the value is not of type `kind`, or cannot be encoded as UTF-8.
    """
    value = holder.get(key)
    if value is None:
        return None
    # In Python, booleans are integers.
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Reject("wrong_type", f"{where}.{key} is {json_type_name(value)}")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Reject("not_utf8", f"{where}.{key} has a lone surrogate") from None
    return value


_DECIMAL_COMMA = re.compile(r"-?\d+,\d{1,2}")
"""A number as a spreadsheet writes it where the comma is the decimal separator, such as 0,95."""


def take_number(holder: dict[str, Any], key: str, where: str) -> float | None:
    """Returns a finite number, also one written as text, or None."""
    value = holder.get(key)
    if value is None or value == "":
        return None
    if not isinstance(value, str | Decimal):
        take(holder, key, (int, float), where)
    parsed = parse_number(holder, key)
    if parsed is None:
        raise Reject("wrong_type", f"{where}.{key} is not a finite number")
    return parsed


def take_count(holder: dict[str, Any], key: str) -> int | None:
    """Returns a number of tokens; None if it is missing or no count.

    BigQuery writes integers as text, and JavaScript as `16.0`. A count only confirms a reading, so
    an unreadable one does not cost the row.
    """
    count = parse_number(holder, key)
    return int(count) if count is not None and count.is_integer() and count >= 0 else None


def take_ids(holder: dict[str, Any], key: str, where: str) -> list[int] | None:
    """Returns a list of token ids, or None."""
    values = take_json(holder, key, where)
    if values is not None and not isinstance(values, list):
        raise Reject("wrong_type", f"{where}.{key} is {json_type_name(values)}")
    if values is not None and not all(
        type(value) is int and 0 <= value < 2**31 for value in values
    ):
        raise Reject("wrong_type", f"{where}.{key} is not a list of token ids")
    return values


def take_time(holder: dict[str, Any], key: str) -> float | None:
    """Returns Unix seconds; None if the time is missing or unreadable.

    The value is a number of seconds, milli-, micro- or nanoseconds, also as text (Envoy, nginx),
    ISO 8601 or BigQuery's form of it, a time of an HTTP header or access log, a table's timestamp,
    or one of these in an object such as MongoDB's `$date`.
    """
    value = holder.get(key)
    while isinstance(value, dict) and value:
        value = next(iter(value.values()))
    if isinstance(value, datetime):
        return _seconds(value)
    seconds = parse_number({key: value}, key)
    if seconds is None:
        return _seconds(_parsed_time(value)) if isinstance(value, str) else None
    unit = 1.0
    while seconds / unit > LAST_SECOND:
        unit *= 1000
    # A float has no nanoseconds at today's times, and microseconds must not depend on the unit.
    return seconds if unit == 1.0 else round(seconds / unit, 6)


def _parsed_time(text: str) -> datetime | None:
    # An access log's is in brackets; Langfuse's CSV has JSON in its cells, with its quotes.
    plain = text.strip().strip('[]"')
    iso = _ZONE_OFFSET.sub("", _ZONE_NAME.sub("", plain))
    readers: tuple[Callable[[], datetime], ...] = (
        lambda: datetime.fromisoformat(iso.replace("/", "-", 2)),
        *(functools.partial(datetime.strptime, plain, other) for other in OTHER_TIMES),
        lambda: parsedate_to_datetime(plain),
    )
    for read in readers:
        try:
            return read()
        except ValueError:
            continue
    return None


def _seconds(moment: datetime | None) -> float | None:
    """Returns a moment as Unix seconds; without a zone it is UTC."""
    if moment is None:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def take_text(holder: dict[str, Any], key: str, where: str) -> str | None:
    """Returns text or None; integers become text, since ids may be either."""
    value = holder.get(key)
    return str(value) if type(value) is int else take(holder, key, str, where)


def take_names(
    holder: dict[str, Any], keys: Mapping[str, tuple[str, ...]], where: str
) -> dict[str, Any]:
    """Maps each name to its keys' first non-empty text value, or None."""
    return {
        name: next(filter(None, (take_text(holder, key, where) for key in its_keys)), None)
        for name, its_keys in keys.items()
    }


def first_value(*values: Any) -> Any:
    """Returns the first value that is not None, or None."""
    return next((value for value in values if value is not None), None)


def take_json(holder: dict[str, Any], key: str, where: str) -> Any:
    """Returns `holder[key]`, decoded if it begins with a bracket; None if unset."""
    value = holder.get(key)
    if not isinstance(value, str):
        return value
    text = take(holder, key, str, where).strip()
    if not text or text == "null":
        return None
    if text[0] not in "[{":
        return value
    if text[-1] not in "]}":
        raise Reject(
            "truncated",
            f"{where}.{key} is incomplete JSON, probably cut by a limit on the length of values",
        )
    try:
        return parse_value(text.encode())
    except Reject as reject:
        raise Reject(reject.reason, f"{where}.{key}: {reject.detail}") from None


def take_json_or_text(holder: dict[str, Any], key: str, where: str) -> Any:
    """Like `take_json`, but keeps invalid JSON, which may be ordinary text."""
    try:
        return take_json(holder, key, where)
    except Reject:
        return take(holder, key, str, where)


def take_mapping(holder: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """Returns `holder[key]` (object or JSON) as a dict; empty if unset."""
    value = take_json(holder, key, where)
    if value is not None and not isinstance(value, dict):
        raise Reject("wrong_type", f"{where}.{key} is {json_type_name(value)}")
    return value or {}


def parse_number(holder: dict[str, Any], key: str) -> float | None:
    """Returns a finite number, parsed if it is text; None for anything else."""
    value = holder.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        return None
    if isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value):
        value = value.replace(",", ".")
    try:
        value = float(value)
    except (ValueError, OverflowError):
        return None
    return value if abs(value) < LARGEST else None
