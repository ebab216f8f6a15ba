"""Says which fields of a log are missing, and which of its names may have them.

    unread_fields({"user": ("authr",)}, summary)
    # ["traffic.fields.user = authr: no row has a text or whole number there; the first row has
    #  author"]

Summaries have the names of the first row (`row_fields.names_in`), never its values.
"""

from collections.abc import Mapping
from typing import Any

from outrider.common.inert import printable
from outrider.data.exchange import CONVERSATION
from outrider.data.ingest.chunks import NOT_LOGGED

MOST_NAMES = 16
"""Largest number of names in a message."""

WORDS = {"session": "conversation ids", "user": "users", "time": "times"}
"""Fields that split and intervals need, in words."""


def missing_fields(summary: Mapping[str, Any]) -> list[str]:
    """Returns the fields that no exchange of an ingested log has."""
    lacks = {
        "session": not summary["sessions"]["exchanges"].get(CONVERSATION),
        "user": not summary["with_user"],
        "tenant": not summary["tenants"].keys() - {NOT_LOGGED},
        "route": not summary["routes"].keys() - {NOT_LOGGED},
        "time": summary["time"] is None,
    }
    return [name for name, is_missing in lacks.items() if is_missing]


def unread_fields(paths: Mapping[str, tuple[str, ...]], summary: Mapping[str, Any]) -> list[str]:
    """Returns an error for each of `traffic.fields` that no exchange has."""
    return [
        f"traffic.fields.{name} = {' or '.join(map(printable, paths[name]))}: no row has"
        f" {'a time' if name == 'time' else 'a text or whole number'} there{_first_row(summary)}"
        for name in missing_fields(summary)
        if name in paths
    ]


def naming_advice(summary: Mapping[str, Any]) -> list[str]:
    """Advises on naming conversations, users and times, if the log seems to have none."""
    if not summary.get("names"):  # summaries of earlier releases have none
        return []
    names = [name for name in missing_fields(summary) if name in WORDS]
    if not names:
        return []
    words = [WORDS[name] for name in names]
    listed = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
    return [
        f"the log has no {listed} under names that Outrider knows{_first_row(summary)}; if one of"
        f" these is it, set traffic.fields.{names[0]}=NAME"
    ]


def _first_row(summary: Mapping[str, Any]) -> str:
    names = [printable(name) for name in summary.get("names", ())]
    if not names:
        return ""
    more = ", ..." if len(names) > MOST_NAMES else ""
    return f"; the first row has {', '.join(names[:MOST_NAMES])}{more}"
