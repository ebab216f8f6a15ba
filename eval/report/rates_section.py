"""The report's sections on request rates and usage scenarios: what the page's template and the Markdown show of `results["rates"]`.

context = rates_page(results)      # None where no rate was measured
"""

from collections.abc import Mapping
from typing import Any

from outrider.eval.bench.scenarios import EVERYTHING
from outrider.eval.report import charts
from outrider.eval.report.tables import scenario_lines, scenario_rows


def rates_page(results: Mapping[str, Any]) -> dict[str, Any] | None:
    """`figures` (title, chart of speed, chart of bursts), `rows` of the table of the field, `named` whether the recipe names
    scenarios, and in words how requests arrived."""
    rates = results.get(
        "rates"
    )  # reports are also made of runs that were evaluated before there were any
    if not rates:
        return None
    figures = [
        (f"{scenario.replace('_', ' ')}, {mode}", charts.rate_chart(rows), charts.burst_chart(rows))
        for mode, scenarios in rates.items()
        for scenario, rows in scenarios.items()
    ]
    return {
        "figures": figures,
        "rows": scenario_rows(results),
        "named": EVERYTHING not in results["scenarios"],
        "arrivals": arrivals_line(rates),
    }


def arrivals_line(rates: Mapping[str, Any]) -> str:
    """How requests arrived, in a sentence or two."""
    told = [
        row["arrivals"]
        for scenarios in rates.values()
        for rows in scenarios.values()
        for row in rows.values()
    ]
    late = max(
        row[variant]["late_ms"]
        for scenarios in rates.values()
        for rows in scenarios.values()
        for row in rows.values()
        for variant in charts.VARIANTS
    )
    spreads = [each["spread"] for each in told]
    spread = f"{min(spreads):.2f} to {max(spreads):.2f}"
    if all(each["source"] == "log" for each in told):
        how = "Requests arrive at the times of the log, their gaps scaled to the rate"
    elif all(each["source"] == "poisson" for each in told):
        how = "The log has no times: requests arrive as a Poisson process, drawn by the seed"
    else:
        how = "Requests arrive at the times of the log where it has some, else as a Poisson process drawn by the seed"
    return f"{how} (standard deviation of the gaps over their mean: {spread}); each was sent at most {late:.0f} ms late."


def rates_lines(results: Mapping[str, Any]) -> list[str]:
    """Markdown: the table of the field and how requests arrived; nothing where no rate was measured."""
    if not (rows := scenario_rows(results)):
        return []
    return ["## By request rate", "", *scenario_lines(rows), "", arrivals_line(results["rates"])]
