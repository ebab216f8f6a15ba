"""The report's section on the choice of the speculator's kind: a table and a chart.

section = kinds_page(report)           # None where the recipe names one kind
kinds_lines(report.kinds)              # the same as Markdown
"""

from typing import Any, NamedTuple

from outrider.eval.report import charts
from outrider.eval.report.formatting import Interval, count
from outrider.eval.results.kinds import KindForecast, Kinds, KindServed
from outrider.eval.results.report import Report

OTHERS = ("kind-2", "kind-3", "kind-4", "kind-5")
"""Colours (style.css) of the kinds that are not chosen."""

NONE = charts.NO_SPECULATION


class KindRow(NamedTuple):
    """One kind at one concurrency; figures of the kind alone are in its first row."""

    kind: str
    concurrency: str
    k: str
    acceptance: str
    step_ms: str
    predicted: str
    served: list[str]
    """By engine mode"""
    parameters: str
    minutes: str
    megabytes: str


def kinds_page(report: Report) -> dict[str, Any] | None:
    """What the template shows; None where the recipe names one kind."""
    kinds = report.kinds
    if kinds is None:
        return None
    colours = _colours(kinds)
    lines = charts.kind_lines(kinds, report.served[kinds.choice.mode].speed)
    return {
        "kinds": kinds,
        "head": head(kinds),
        "rows": table(kinds),
        "chart": charts.kind_chart(lines, colours),
        "legend": colours,
        "mode": kinds.choice.mode,
    }


def head(kinds: Kinds) -> list[str]:
    """The table's columns."""
    return [
        "kind, concurrency",
        "K",
        "acceptance length, validation",
        "ms per step",
        "tokens/s, predicted",
        *(f"served, {mode}" for mode in _modes(kinds)),
        "parameters",
        "training, min",
        "MB",
    ]


def table(kinds: Kinds) -> list[KindRow]:
    """The rows: no speculation, then each kind, the fastest by forecast first."""
    none, modes = kinds.choice.none_step_ms, _modes(kinds)
    rows: list[KindRow] = []
    for size, step_ms in none.items():
        first = kinds.served[kinds.chosen].none_tokens_per_s
        served = [f"{first[mode][size]:.0f}" for mode in modes]
        speed = f"{1000 * int(size) / step_ms:.0f}"
        cells = KindRow(NONE, size, "", "1", f"{step_ms:.1f}", speed, served, "", "", "")
        rows.append(cells if not rows else cells._replace(acceptance=""))
    for each in kinds.choice.kinds:
        rows += _rows_of(each, kinds.served.get(each.kind), modes, each.kind == kinds.chosen)
    return rows


def kinds_lines(kinds: Kinds) -> list[str]:
    """The section as Markdown."""
    columns = head(kinds)
    lines = ["## Kinds of drafter", "", kinds.reason, ""]
    lines += [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in table(kinds):
        name = f"{row.kind}, {row.concurrency}"
        cells = [name, row.k, row.acceptance, row.step_ms, row.predicted, *row.served]
        lines.append(f"| {' | '.join([*cells, row.parameters, row.minutes, row.megabytes])} |")
    return lines


def _rows_of(
    each: KindForecast, served: KindServed | None, modes: list[str], chosen: bool
) -> list[KindRow]:
    rows: list[KindRow] = []
    for size, speed in each.tokens_per_s.items():
        cells = ["-"] * len(modes)
        if served is not None:
            cells = [_interval(served.tokens_per_s[mode][size], 0) for mode in modes]
        rows.append(
            KindRow(
                kind=f"{each.kind} (chosen)" if chosen else each.kind,
                concurrency=size,
                k=str(each.k),
                acceptance=_interval(each.acceptance_length, 2) if not rows else "",
                step_ms=f"{each.step_ms[size]:.1f}",
                predicted=_interval(speed, 0),
                served=cells,
                parameters=count(each.facts.parameters) if not rows else "",
                minutes=f"{each.facts.training_minutes:.1f}" if not rows else "",
                megabytes=f"{each.facts.megabytes:,.1f}" if not rows else "",
            )
        )
    return rows


def _modes(kinds: Kinds) -> list[str]:
    return list(kinds.served[kinds.chosen].over_none)


def _colours(kinds: Kinds) -> dict[str, str]:
    """Name of each line -> its colour in style.css."""
    others = (each.kind for each in kinds.choice.kinds if each.kind != kinds.chosen)
    rest = {kind: OTHERS[place % len(OTHERS)] for place, kind in enumerate(others)}
    return {NONE: "none", "base": "base", kinds.chosen: "custom", **rest}


def _interval(estimate: Interval, digits: int) -> str:
    value = f"{estimate.value:,.{digits}f}"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} [{estimate.low:,.{digits}f}, {estimate.high:,.{digits}f}]"
