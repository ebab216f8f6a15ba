"""The first screen: model, traffic, date, and the verdict in sentences."""

import pytest

from outrider.eval.report.first_screen import (
    inverted,
    lookup_verdict,
    title,
    verdict_sentences,
)
from outrider.eval.results.parts import Estimate
from tests.eval.sample_results import sample_results


def with_ratio(low: float, high: float):
    """A report in which custom / lookup has this interval in the first engine mode."""
    results = sample_results().model_copy(deep=True)
    mode, served = next(iter(results.served.items()))
    row = served.speed["1"]
    ratio = Estimate(value=(low * high) ** 0.5, low=low, high=high)
    lookup = row.lookup.model_copy(update={"custom_over": ratio})
    row = row.model_copy(update={"lookup": lookup})
    served = served.model_copy(update={"speed": served.speed | {"1": row}})
    return results.model_copy(update={"served": results.served | {mode: served}})


def test_the_title_names_model_traffic_and_date():
    words = title(sample_results())
    assert words == "nano_r1 on resume_screening, 2025-10-10"


def test_the_gain_has_its_interval_and_reference():
    results = sample_results()
    ratio = results.served["eager"].speed["1"].custom_over_base
    opening, gain = verdict_sentences(results)
    assert opening.startswith("Ships. All ")
    assert f"{ratio.value:.2f} times as many tokens/s as base" in gain
    assert f"95 % interval {ratio.low:.2f} to {ratio.high:.2f}" in gain


def test_a_failure_is_counted_and_named():
    opening, _ = verdict_sentences(sample_results(custom_speed=0.5))
    assert opening.startswith("Does not ship. Of ") and "failed" in opening


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.5, 0.8, "N-gram lookup, which is free (no training, no weights), wins: it writes 1.58"),
        (0.9, 1.1, "is not shown to be slower than custom"),
        (1.2, 1.5, "Custom writes 1.34 times as many tokens/s as n-gram lookup"),
    ],
)
def test_it_says_whether_the_free_lookup_wins(low, high, words):
    assert words in lookup_verdict(with_ratio(low, high))


def test_an_inverted_ratio_has_inverted_ends():
    ratio = inverted(Estimate(value=0.5, low=0.4, high=0.8))
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 1.25, 2.5)
