"""The report's section on cost: one sentence, and a table of every load.

    cost_table(report).head[:4]     # ["none", "n-gram lookup", "base", "custom"]

Savings follow from the ratios of tokens/s: the price of a token is inverse to them.
"""

from typing import NamedTuple

from outrider.eval.report.first_screen import invert_ratio, main_row
from outrider.eval.report.speeds import load_label, prices
from outrider.eval.results.parts import Estimate
from outrider.eval.results.report import Report
from outrider.eval.results.sections import SpeedRow


class CostTable(NamedTuple):
    """Prices per million tokens, custom's savings, and GPU-hours, as text."""

    head: list[str]
    """Names of the columns after the first"""
    rows: list[list[str]]
    """A load, and its cells"""


def cost_sentence(report: Report) -> str:
    """What custom saves at the main concurrency, against each reference."""
    mode, row = main_row(report)
    size = str(report.choice.main_concurrency)
    sentence = (
        f"At {load_label(report, mode, size)}, custom saves {saving(row.custom_over_base)} of"
        f" base's price per token and {saving(row.custom_over_none)} of the price without"
        " speculation"
    )
    sentence += _against_lookup(report, row)
    hours = report.cost[mode][size].gpu_hours_a_month if report.cost else None
    if hours:
        sentence += f"; against base that is {hours.base - hours.custom:,.0f} GPU-hours a month"
    return f"{sentence}."


def saving(ratio: Estimate) -> str:
    """The share of a reference's price that custom saves, given their ratio of tokens/s."""
    saved, least, most = (1 - 1 / end for end in (ratio.value, ratio.low, ratio.high))
    return f"{saved:.1%} [{least:.1%}, {most:.1%}]"


def cost_table(report: Report) -> CostTable:
    """Every load; a variant that was not served at it has `-`."""
    table = report.cost or {}
    loads = [(mode, size) for mode, sizes in table.items() for size in sizes]
    prices_of = {load: prices(report, *load) for load in loads}
    # Lookups are served at the main concurrency only: the longest list has all variants.
    names = max((list(by_name) for by_name in prices_of.values()), key=len, default=[])
    rows = []
    for (mode, size), by_name in prices_of.items():
        speed = report.served[mode].speed[size]
        hours = table[mode][size].gpu_hours_a_month
        cells = [f"{by_name[name]:.3g}" if name in by_name else "-" for name in names]
        cells += [saving(speed.custom_over_base), saving(speed.custom_over_none)]
        if report.choice.lookup:
            cells.append(saving(speed.lookup.custom_over) if speed.lookup else "-")
        cells.append(f"{hours.base - hours.custom:,.0f}" if hours else "-")
        rows.append([f"{mode}, concurrency {size}", *cells])
    references = ["base", "none"]
    if report.choice.lookup:
        references.append(report.lookup_in_words)
    saved = [f"saved vs. {name}" for name in references]
    return CostTable([*names, *saved, "GPU-hours saved per month"], rows)


def _against_lookup(report: Report, row: SpeedRow) -> str:
    """The clause on which of custom and the free lookup costs less; empty without a lookup."""
    if row.lookup is None:
        return ""
    ratio = row.lookup.custom_over
    lookup = report.lookup_in_words
    if ratio.low > 1:
        return f", and {saving(ratio)} of {lookup}'s"
    if ratio.high < 1:
        return f"; but {lookup} saves {saving(invert_ratio(ratio))} of custom's"
    return f"; it is not shown to cost less than {lookup} ({saving(ratio)} less)"
