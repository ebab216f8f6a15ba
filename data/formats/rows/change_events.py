"""Events of changes to a table's rows, as Debezium and other replication tools write them.

    row_after_change({"before": {...}, "after": {...}, "op": "u", "ts_ms": 1782900000400})       #
    the after check_not_deleted(row)     # a `Reject` if the row was deleted where it was logged

- Debezium: `op` is r (snapshot), c, u or d, between the row before and after; also as `payload`
- its flattened events (`ExtractNewRecordState`) have `__deleted`, AWS DMS' files `Op`
- Maxwell and Canal: `type` is delete, next to `data`; DynamoDB's streams: `eventName` is REMOVE
- Langfuse's tables in ClickHouse, read without FINAL: a version of a row with `is_deleted`
- Fivetran, Stitch and Airbyte mark the deleted row itself

Rows are deleted on request of the people that they are about. An event that deletes a row does not
say where the log has its text, so a log with one is refused as a whole (ingest/damage.py).
"""

import re
from typing import Any

from outrider.data.exchange import DELETES, Reject
from outrider.data.formats.rows.paths import normalize_key

OPERATIONS = frozenset({"r", "c", "u", "d", "t", "m"})
"""Values of Debezium's `op`: read, create, update, delete, truncate, message."""

IMAGES = frozenset({"before", "after"})

DELETING = {
    "op": ("d", "t"),
    "__op": ("d", "t"),
    "Op": ("D",),
    "__deleted": ("true", "True"),
    "eventName": ("REMOVE",),
}
"""Keys of an event, and their values if it deletes a row."""

MARKS = ("_fivetran_deleted", "_sdc_deleted_at", "_ab_cdc_deleted_at")
"""Keys that are set in a row that was deleted at its source."""

UNAVAILABLE = "__debezium_unavailable_value"
"""What Debezium writes for a value that PostgreSQL stores apart and that did not change."""

_OF_TEXT = re.compile(
    "prompt|message|input|request|response|output|completion|content|answer|question|query|system"
    "|text|body|reason|thinking"
)
"""What the name of a column with texts of a call has a part of."""

EXPORT = "export the current rows of the table instead of its changes"


def event_of(row: dict[str, Any]) -> dict[str, Any] | None:
    """Returns Debezium's event that a row is, or has as `payload`; None for any other row."""
    for event in (row, row.get("payload")):
        if isinstance(event, dict) and event.get("op") in OPERATIONS and IMAGES & event.keys():
            return event
    return None


def row_after_change(row: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the row after a change; None if it is no event, or the row was deleted."""
    event = event_of(row)
    after = None if event is None else event.get("after")
    return after if isinstance(after, dict) else None


def check_not_deleted(row: dict[str, Any]) -> None:
    """Raises a `Reject` if a row was deleted, or is the event of a deletion."""
    event = event_of(row) or row
    is_event = event is not row or IMAGES & row.keys()
    for key, values in DELETING.items():
        # Other rows may have an `op` of their own.
        if str(event.get(key)) in values and (key != "op" or is_event):
            raise Reject(DELETES, f"{key} = {event[key]}: a row was deleted; {EXPORT}")
    if str(event.get("type")).lower() == "delete" and {"database", "table"} <= event.keys():
        raise Reject(DELETES, f"type = {event['type']}: a row was deleted; {EXPORT}")
    if "event_ts" in row and str(row.get("is_deleted")) in ("1", "true", "True"):
        raise Reject(DELETES, "is_deleted = 1: a row was deleted; export the table with FINAL")
    after = event.get("after")
    columns = after if isinstance(after, dict) else event
    lacking = [normalize_key(key) for key, value in columns.items() if value == UNAVAILABLE]
    if any(map(_OF_TEXT.search, lacking)):
        raise Reject(
            "content_not_logged",
            "Debezium has no value for an unchanged column of this event; where no other event has"
            " it, set REPLICA IDENTITY FULL for the table",
        )
    mark = next((key for key in MARKS if row.get(key)), None)
    if mark is not None:
        raise Reject("deleted", f"{mark} is set: the row was deleted at its source")
