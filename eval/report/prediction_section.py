"""The report's table of predicted against served speed, for its page, its Markdown and benchmarks/table.py.

rows = predicted_rows(results)      # under HEAD; empty where nothing was predicted
"""

from collections.abc import Mapping
from typing import Any

from outrider.eval.report.formatting import interval

HEAD = (
    "engine, at once",
    "ms a step, none / base / custom: timed",
    "as served",
    "base / none: timed steps",
    "served steps",
    "served",
    "custom / none: timed steps",
    "served steps",
    "served",
    "custom / base: timed steps",
    "served steps",
    "served",
    "tokens/s, none / base / custom: served steps",
)
SINCE = 6
"""The version of evaluations from which on they have both predictions."""


def predicted_rows(results: Mapping[str, Any]) -> list[list[str]]:
    """One row an engine mode and concurrency: speed-ups and, in brackets, how far they are from the served ones; of tokens/s that alone."""
    if results["version"] < SINCE:
        return []
    rows = []
    for mode, table in results["predicted"].items():
        for concurrency, row in table.items():
            cells = [f"{mode}, {concurrency}", _steps(row, "timed"), _steps(row, "as_served")]
            for ratio in (
                row["base"]["over_none"],
                row["custom"]["over_none"],
                row["custom_over_base"],
            ):
                cells += [
                    _cell(ratio["timed"]),
                    _cell(ratio["as_served"]),
                    interval(ratio["served"]),
                ]
            accounts = [
                row[variant]["tokens_per_s"]["as_served"] for variant in ("none", "base", "custom")
            ]
            rows.append(
                [
                    *cells,
                    " / ".join(f"{each['difference']:+.0%}" if each else "-" for each in accounts),
                ]
            )
    return rows


def predicted_lines(results: Mapping[str, Any]) -> list[str]:
    """Markdown: the same; nothing where nothing was predicted."""
    if not (rows := predicted_rows(results)):
        return []
    table = [HEAD, ["---"] * len(HEAD), *rows]
    return ["## Predicted", "", *(f"| {' | '.join(row)} |" for row in table)]


def _cell(prediction: Mapping[str, float] | None) -> str:
    return f"{prediction['value']:.2f} ({prediction['difference']:+.0%})" if prediction else "-"


def _steps(row: Mapping[str, Any], which: str) -> str:
    times = [row[variant]["step_ms"][which] for variant in ("none", "base", "custom")]
    return "-" if None in times else " / ".join(f"{ms:.1f}" for ms in times)
