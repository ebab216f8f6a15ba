"""The first screen: model, traffic, date, and the verdict in sentences."""

import pytest

from outrider.eval.report.first_screen import (
    invert_ratio,
    serving_advice,
    title,
    verdict_sentences,
)
from outrider.eval.results.parts import Estimate, interval
from tests.eval.sample_results import sample_results


def with_ratio(low: float, high: float):
    """A report in which custom / lookup has this interval in the first engine mode."""
    results = sample_results().model_copy(deep=True)
    mode, served = next(iter(results.served.items()))
    row = served.speed["1"]
    ratio = Estimate(value=(low * high) ** 0.5, low=low, high=high)
    # Faster than base where it wins: else it is no reason to ship it.
    block = row.lookup.block.model_copy(update={"tokens_per_s": row.custom.tokens_per_s / low})
    lookup = row.lookup.model_copy(update={"custom_over": ratio, "block": block})
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
    assert opening.startswith("Ships: all ")
    assert f"{interval(ratio)} times as many tokens/s as base" in gain
    assert gain.endswith("(in brackets: 95 % intervals).")


def test_a_failure_is_counted_and_named():
    opening, _ = verdict_sentences(sample_results(custom_speed=0.5))
    assert opening.startswith("Does not ship: of ") and "failed" in opening


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (
            0.5,
            0.8,
            "but n-gram lookup, which is free (no training, no weights), wins: it writes 1.58",
        ),
        (0.9, 1.1, "is not shown to be slower: custom writes 0.99 [0.90, 1.10] times as many"),
        (1.2, 1.5, "it writes 1.34 [1.20, 1.50] times as many as n-gram lookup, which is free"),
    ],
)
def test_it_says_whether_the_free_lookup_wins(low, high, words):
    _, gain = verdict_sentences(with_ratio(low, high))
    assert words in gain


def test_an_inverted_ratio_has_inverted_ends():
    ratio = invert_ratio(Estimate(value=0.5, low=0.4, high=0.8))
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 1.25, 2.5)


def test_advice_names_the_command_and_repeats_no_figure():
    words = serving_advice(with_ratio(0.5, 0.8))
    assert words.startswith("Ship n-gram lookup instead: `outrider eval RECIPE --speculator ngram`")
    assert serving_advice(with_ratio(1.2, 1.5)) == ""
