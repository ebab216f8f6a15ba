"""JSON inside text fields, as trace stores and tables write it; empty text means unset.

unpacked({"input": '[{"role": "user"}]'}, "input", "row")           # [{"role": "user"}]
mapping({"metadata": [("tenant", "acme")]}, "metadata", "row")      # {"tenant": "acme"}: Parquet
"""

from typing import Any

from outrider.data.exchange import Reject
from outrider.data.formats.fields import take
from outrider.data.formats.rows import decode, kind_of

LARGEST = 1e300
"""Larger numbers are ignored; leaves room for sums."""


def unpacked(holder: dict[str, Any], key: str, where: str) -> Any:
    """`holder[key]`, decoded where it begins like a JSON object or list; None where unset."""
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
            f"{where}.{key} ends within its JSON, as under a limit on the length of values",
        )
    try:
        return decode(text.encode())
    except Reject as reject:
        raise Reject(reject.reason, f"{where}.{key}: {reject.detail}") from None


def unpacked_or_text(holder: dict[str, Any], key: str, where: str) -> Any:
    """Like `unpacked`, but invalid JSON stays text: an answer may begin with a bracket."""
    try:
        return unpacked(holder, key, where)
    except Reject:
        return take(holder, key, str, where)


def mapping(holder: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """`holder[key]` as a dict, from an object, its JSON or a list of pairs; empty where unset."""
    value = unpacked(holder, key, where)
    if isinstance(value, list) and all(
        isinstance(pair, tuple) and isinstance(pair[0], str) for pair in value
    ):
        value = dict(value)
    if value is not None and not isinstance(value, dict):
        raise Reject("wrong_type", f"{where}.{key} is {kind_of(value)}")
    return value or {}


def number(holder: dict[str, Any], key: str) -> float | None:
    """A number, also from text; None for anything else (`"Infinity"` for no limit)."""
    value = holder.get(key)
    try:
        value = (
            float(value)
            if isinstance(value, str | int | float) and not isinstance(value, bool)
            else None
        )
    except (ValueError, OverflowError):
        return None
    return value if value is not None and abs(value) < LARGEST else None
