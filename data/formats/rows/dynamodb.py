"""Items of DynamoDB, in which each value is an object of its type and itself.

    item_of({"Item": {"model": {"S": "r1"}, "n": {"N": "1"}}})      # {"model": "r1", "n": 1}

Exports to S3, `aws dynamodb scan` and the stream's records have them ("DynamoDB JSON"; types in the
API reference, AttributeValue).
"""

import json
from typing import Any

HOLDERS = ("Item", "NewImage", "dynamodb")
"""Keys of an item: an export's line, a stream's record, and the object around the record's."""

TYPES = frozenset({"S", "N", "B", "BOOL", "NULL", "M", "L", "SS", "NS", "BS"})


def item_of(row: dict[str, Any]) -> dict[str, Any] | None:
    """Returns an item as plain values, from a row that has one or is one; else None.

    A scan's answer becomes an object with a list of plain items.
    """
    scanned = row.get("Items")
    if isinstance(scanned, list) and scanned and all(map(_is_item, scanned)):
        return {"items": list(map(_plain_map, scanned))}
    for key in HOLDERS:
        inner = row.get(key)
        if isinstance(inner, dict):
            return item_of(inner)
    return _plain_map(row) if _is_item(row) else None


def _is_item(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(map(_is_typed, value.values()))


def _is_typed(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and not TYPES.isdisjoint(value)


def _plain_map(holder: dict[str, Any]) -> dict[str, Any]:
    return {key: _plain(value) for key, value in holder.items()}


def _plain(typed: Any) -> Any:
    """Returns a typed value without its type; anything else unchanged."""
    if not _is_typed(typed):
        return typed
    ((kind, value),) = typed.items()
    if kind == "M" and isinstance(value, dict):
        return _plain_map(value)
    if kind == "L" and isinstance(value, list):
        return list(map(_plain, value))
    if kind == "N" and isinstance(value, str):
        return _number(value)
    return None if kind == "NULL" else value


def _number(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
