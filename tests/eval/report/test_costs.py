"""Prices in the report: lookup has its column, its tile and its clause."""

import pytest

from outrider.eval.config import CostConfig
from outrider.eval.report.costs import cost_sentence, cost_table, saving
from outrider.eval.report.speeds import prices, tiles
from outrider.eval.results.parts import Estimate
from outrider.eval.summary import serving_costs
from tests.eval.report.test_first_screen import with_ratio

COST = CostConfig(gpu_hour_price=3.6, currency="EUR", tokens_per_s=2000.0)


def priced(low: float = 1.2, high: float = 1.6):
    """A report with prices, in which custom / n-gram lookup has this interval."""
    report = with_ratio(low, high)
    settings = report.settings | {"cost": COST.model_dump(mode="json")}
    cost = serving_costs(report.served, COST, gpus=8)
    return report.model_copy(update={"cost": cost, "settings": settings})


def test_prices_are_those_of_the_results_and_lookup_s_by_its_speed():
    report = priced()
    by_name = prices(report, "eager", "1")
    assert list(by_name) == ["none", "n-gram lookup", "base", "custom"]
    of_report = report.cost["eager"]["1"].per_million_tokens
    assert by_name["base"] == pytest.approx(of_report.base)
    assert by_name["custom"] == pytest.approx(of_report.custom)
    # 8 GPUs at 3.6 an hour are 0.008 a second.
    speed = report.served["eager"].speed["1"].lookup.block.tokens_per_s
    assert by_name["n-gram lookup"] == pytest.approx(0.008e6 / speed)
    tile = tiles(report)[-1]
    assert f"n-gram lookup {by_name['n-gram lookup']:.3g}" in tile.compared


def test_the_table_has_a_column_for_lookup():
    report = priced()
    table = cost_table(report)
    assert table.head[:4] == ["none", "n-gram lookup", "base", "custom"]
    assert "saved vs. n-gram lookup" in table.head
    main, second = table.rows[:2]
    assert len(main) == len(second) == 1 + len(table.head)
    by_name = prices(report, "eager", "1")
    assert main[2] == f"{by_name['n-gram lookup']:.3g}"
    assert main[7] == saving(report.served["eager"].speed["1"].lookup.custom_over)
    assert second[2] == second[7] == "-"  # served at the main concurrency only


def test_a_saving_is_one_minus_the_inverse():
    assert saving(Estimate(value=2.0, low=1.25, high=4.0)) == "50.0% [20.0%, 75.0%]"


@pytest.mark.parametrize(
    ("low", "high", "clause"),
    [
        (1.25, 1.25, ", and 20.0% [20.0%, 20.0%] of n-gram lookup's"),
        (0.5, 0.8, "but n-gram lookup saves 36.8% [20.0%, 50.0%] of custom's"),
        (0.8, 1.25, "it is not shown to cost less than n-gram lookup (0.0% [-25.0%, 20.0%] less)"),
    ],
)
def test_the_sentence_says_which_of_the_two_is_cheaper(low, high, clause):
    words = cost_sentence(priced(low, high))
    assert words.startswith("At 1 request, eager, custom saves ")
    assert clause in words and words.endswith(" GPU-hours a month.")
