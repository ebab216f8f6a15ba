"""The report's sections on request rates and usage scenarios, for its page and Markdown.

context = rates_page(results)      # None where no rate was measured
"""

from typing import NamedTuple

from outrider.eval.bench.scenarios import EVERYTHING
from outrider.eval.report import charts
from outrider.eval.report.tables import ScenarioRow, scenario_lines, scenario_rows
from outrider.eval.results.parts import VARIANTS
from outrider.eval.results.report import Results
from outrider.eval.results.speed import RateRow


class RateFigure(NamedTuple):
    """The two charts of one scenario and engine mode."""

    title: str
    speed: str
    bursts: str


class RatesPage(NamedTuple):
    """What the template shows."""

    figures: list[RateFigure]
    rows: list[ScenarioRow]
    named: bool
    """Whether the recipe names scenarios."""
    arrivals: str


def rates_page(results: Results) -> RatesPage | None:
    """The sections' contents; None where no rate was measured."""
    if not results.rates:
        return None
    figures = []
    for mode, scenarios in results.rates.items():
        for scenario, rows in scenarios.items():
            title = f"{scenario.replace('_', ' ')}, {mode}"
            figures.append(RateFigure(title, charts.rate_chart(rows), charts.burst_chart(rows)))
    named = EVERYTHING not in results.scenarios
    return RatesPage(figures, scenario_rows(results.rates), named, arrivals_line(results))


def arrivals_line(results: Results) -> str:
    """How requests arrived, in a sentence."""
    rows = _rows(results)
    sources = {row.arrivals.source for row in rows}
    if sources == {"log"}:
        how = "Requests arrive at the times of the log, their gaps scaled to the rate"
    elif sources == {"poisson"}:
        how = "The log has no times: requests arrive as a Poisson process, drawn by the seed"
    else:
        how = (
            "Requests arrive at the times of the log where it has some, otherwise as a Poisson "
            "process drawn by the seed"
        )
    spreads = [row.arrivals.spread for row in rows]
    late = max(row.of(variant).late_ms for row in rows for variant in VARIANTS)
    return (
        f"{how} (standard deviation of the gaps over their mean: {min(spreads):.2f} to "
        f"{max(spreads):.2f}); each was sent at most {late:.0f} ms late."
    )


def rates_lines(results: Results) -> list[str]:
    """The table as Markdown; empty where no rate was measured."""
    if not (rows := scenario_rows(results.rates)):
        return []
    return ["## By request rate", "", *scenario_lines(rows), "", arrivals_line(results)]


def _rows(results: Results) -> list[RateRow]:
    rows: list[RateRow] = []
    for scenarios in results.rates.values():
        for by_rate in scenarios.values():
            rows += by_rate.values()
    return rows
