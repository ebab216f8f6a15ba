"""Traffic summary in words, for the terminal and the report.

summary = read_json(run / "traffic" / "summary.json")
for name, text in facts(summary): print(name, text)
"""

import datetime
import re
from collections.abc import Mapping
from typing import Any

LONGEST_NAME = 60


def facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the name and text of each non-empty fact."""
    sampling = summary["sampling"]
    sessions = summary["sessions"]
    counts = summary["retokenized_against_usage"]
    total = sum(summary["fidelity"].values())
    shares = (f"{name} {n:,} ({n / total:.1%})" for name, n in summary["fidelity"].items())
    duplicates = summary["duplicates"]
    copies = (
        f" (the most frequent occurs {duplicates['most_copies']:,} times)"
        if duplicates["identical"]
        else ""
    )
    labelled_facts = (
        ("rows", _rows(summary)),
        ("formats", _counts(summary["formats"])),
        ("models", _counts(summary["models"])),
        ("tenants", _counts(summary["tenants"])),
        ("routes", _counts(summary["routes"])),
        ("fidelity", ", ".join(shares)),
        (
            "token counts",
            f"{counts.get('equal', 0):,} of {sum(counts.values()):,} retokenized completions have"
            " the engine's token count"
            if counts
            else "",
        ),
        ("temperature", _counts(sampling["temperature"])),
        ("top_p", _counts(sampling["top_p"])),
        ("top_k", _counts(sampling["top_k"])),
        ("constraints", _constraints(summary)),
        ("time", _time(summary)),
        (
            "sessions",
            f"{sessions['distinct']:,} logged, the longest with "
            f"{counted(sessions['most_exchanges'], 'exchange')}; exchanges by kind of id: "
            f"{_counts(sessions.get('exchanges', {})) or 'unknown'}",
        ),
        (
            "duplicates",
            f"{duplicates['identical']:,} of {duplicates['prompts']:,} prompts repeat an earlier"
            f" one{copies}",
        ),
    )
    return [(name, text) for name, text in labelled_facts if text]


def date(time: float) -> str:
    """Formats Unix seconds as UTC, to the minute."""
    return datetime.datetime.fromtimestamp(time, datetime.UTC).strftime("%Y-%m-%d %H:%M")


def counted(count: int, what: str) -> str:
    """Formats a count with its noun: `1 file`, `2 files`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _rows(summary: Mapping[str, Any]) -> str:
    rows, choices, joined = (summary[key] for key in ("rows", "extra_choices", "joined"))
    text = f"{rows:,}" + (f" + {choices:,} further choices" if choices else "")
    text += f" = {summary['exchanges']:,} exchanges + {sum(summary['rejects'].values()):,} rejects"
    return text + (f" + {joined:,} joined to others" if joined else "")


def _counts(counts: Mapping[str, int]) -> str:
    # summary.json has the rest.
    largest = [f"{_short(name)} {count:,}" for name, count in list(counts.items())[:8]]
    more = len(counts) - len(largest)
    return ", ".join(largest) + (f", and {more} more" if more else "")


def _constraints(summary: Mapping[str, Any]) -> str:
    constraints = summary.get("constraints", {})
    if not constraints:
        return ""
    total = sum(constraints.values())
    return (
        f"{counted(total, 'exchange')} sampled otherwise ({_counts(constraints)}):"
        f" {summary['grammars']:,} with a logged grammar, which masks p; the others are replayed"
        " and trained on by their tokens and not checked for being on-policy"
    )


def _time(summary: Mapping[str, Any]) -> str:
    time = summary["time"]
    if time is None:
        return "not logged: rows are in log order"
    text = f"{date(time['first'])} to {date(time['last'])} UTC, {time['hours']:,} hours; "
    text += f"{time['exchanges_per_minute']:g} exchanges a minute, "
    text += f"{time['busiest_minute']:,} in the busiest"
    without = summary["without_time"]
    if without:
        text += f"; {without:,} without a time keep their place in the log"
    return text


def _short(name: str) -> str:
    name = printable(" ".join(name.split()))
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."


# Escape sequences can move the cursor and rename windows; direction marks reorder text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Replaces control characters with visible symbols; keeps line breaks and tabs."""
    return _CONTROL.sub(
        lambda match: chr(0x2400 + ord(match[0])) if match[0] < " " else "\ufffd", text
    )
