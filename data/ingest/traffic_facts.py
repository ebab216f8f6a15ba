"""Traffic summary in words, for the terminal and the report.

summary = read_json(run / "traffic" / "summary.json")
for name, text in traffic_facts(summary): print(name, text)
"""

import datetime
from collections.abc import Mapping
from typing import Any

from outrider.common.inert import printable
from outrider.data.ingest.load import load_in_words

LONGEST_NAME = 60


def traffic_facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the name and text of each non-empty fact."""
    sampling = summary["sampling"]
    total = sum(summary["fidelity"].values())
    shares = (f"{name} {n:,} ({n / total:.1%})" for name, n in summary["fidelity"].items())
    texts = {"rows": _rows(summary)}
    for name in ("formats", "models", "tenants", "routes"):
        texts[name] = _counts(summary[name])
    texts["fidelity"] = ", ".join(shares)
    texts["token counts"] = _token_counts(summary["retokenized_against_usage"])
    for name in ("temperature", "top_p", "top_k"):
        texts[name] = _counts(sampling[name])
    texts["constraints"] = _constraints(summary)
    texts["time"] = _time(summary)
    texts["concurrency"] = load_in_words(summary.get("load"))
    texts["sessions"] = _sessions(summary["sessions"])
    # Summaries written before users were counted do not have them.
    if "users" in summary:
        texts["users"] = f"{summary['users']['distinct'] or 'none'} logged"
    texts["duplicates"] = _duplicates(summary["duplicates"])
    return [(name, text) for name, text in texts.items() if text]


def _token_counts(counts: Mapping[str, int]) -> str:
    """How many retokenized completions have the logged count; empty if none was logged."""
    if not counts:
        return ""
    equal = counts.get("equal", 0)
    total = sum(counts.values())
    return f"{equal:,} of {total:,} retokenized completions have the engine's token count"


def _sessions(sessions: Mapping[str, Any]) -> str:
    longest = pluralize(sessions["most_exchanges"], "exchange")
    kinds = _counts(sessions.get("exchanges", {})) or "unknown"
    return (
        f"{sessions['distinct']:,} logged, the longest with {longest};"
        f" exchanges by kind of id: {kinds}"
    )


def _duplicates(duplicates: Mapping[str, int]) -> str:
    identical = duplicates["identical"]
    text = f"{identical:,} of {duplicates['prompts']:,} prompts repeat an earlier one"
    if identical:
        text += f" (the most frequent occurs {duplicates['most_copies']:,} times)"
    return text


def date(time: float) -> str:
    """Formats Unix seconds as UTC, to the minute."""
    return datetime.datetime.fromtimestamp(time, datetime.UTC).strftime("%Y-%m-%d %H:%M")


def pluralize(count: int, what: str) -> str:
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
        f"{pluralize(total, 'exchange')} sampled otherwise ({_counts(constraints)}):"
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
