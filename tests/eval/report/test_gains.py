"""Which of several runs gains most, or why it cannot be told."""

import pytest

from outrider.eval.report.gains import charted, common_load, gains, one_of
from outrider.eval.results.parts import Estimate
from tests.eval.sample_results import sample_results


def run(value, spread=1.05, reference="custom_over_none", **update):
    """A report in which custom's tokens/s over no speculation have this interval at 1 request."""
    results = sample_results()
    ratio = Estimate(value=value, low=value / spread, high=value * spread)
    served = results.served["eager"]
    row = served.speed["1"].model_copy(update={reference: ratio, **update})
    served = served.model_copy(update={"speed": served.speed | {"1": row}})
    return results.model_copy(update={"served": {"eager": served}})


def test_the_run_that_gains_most_is_named_with_both_gains_and_their_ratio():
    compared = gains({"march": run(1.5), "april": run(1.8)})
    assert compared.most == "april"
    # The errors add: 1.05 to the power of the root of 2 to either side of 1.2.
    assert compared.over_next.low == pytest.approx(1.2 / 1.05**2**0.5)
    assert compared.sentence == (
        "april gains most: at 1 request, eager, custom writes 1.80 [1.71, 1.89] times as many"
        " tokens/s as no speculation in april, and 1.50 [1.43, 1.58] times in march; the ratio of"
        " the two is 1.20 [1.12, 1.29]."
    )


def test_overlapping_gains_cannot_be_told_apart():
    compared = gains({"march": run(1.5), "april": run(1.55)})
    assert compared.most is None
    assert compared.sentence.startswith("Which run gains most cannot be told: at 1 request, eager,")
    assert compared.sentence.endswith("the interval of their ratio, 1.03 [0.96, 1.11], includes 1.")


def test_all_others_must_be_worse_and_share_the_error():
    # p = 0.03 for 1.8 over 1.66: enough for one comparison, not for one of three.
    assert gains({"march": run(1.66), "april": run(1.8)}).most == "april"
    assert gains({"march": run(1.66), "april": run(1.8), "may": run(1.2)}).most is None
    wide = gains({"march": run(1.5), "april": run(1.8), "may": run(1.4, spread=2.0)})
    assert wide.most is None and "times in may;" in wide.sentence


@pytest.mark.parametrize(
    ("later", "why"),
    [
        (run(1.8, none_starts=2), "the engines of april were started fewer than 3 times"),
        (run(1.8).model_copy(update={"target": "other"}), "different targets, nano_r1 and other"),
        (
            run(
                1.8,
                custom_over_none=Estimate(value=1.8, low=1.7, high=1.9, agrees=False),
                reference="base_over_none",
            ),
            "replay and server disagree in april",
        ),
    ],
)
def test_gains_that_do_not_compare_are_shown_with_the_reason(later, why):
    compared = gains({"march": run(1.5), "april": later})
    assert compared.most is None and compared.over_next is None
    assert why in compared.sentence and "1.50 [1.43, 1.58]" in compared.sentence


def test_runs_without_a_common_load_have_no_chart():
    other = run(1.8)
    served = other.served["eager"]
    only_64 = served.model_copy(update={"speed": {"64": served.speed["1"]}})
    choice = other.choice.model_copy(update={"main_concurrency": 64})
    other = other.model_copy(update={"served": {"eager": only_64}, "choice": choice})
    compared = gains({"march": run(1.5), "april": other})
    assert compared.load is None and charted(compared) == [] and one_of(compared) == 0
    assert "no engine mode and concurrency was measured in all of them" in compared.sentence


def test_the_load_is_the_first_run_s_main_one_else_one_of_all():
    first, second = run(1.5), run(1.8)
    assert common_load([first, second]) == ("eager", "1")
    served = second.served["eager"]
    without_1 = {size: row for size, row in served.speed.items() if size != "1"}
    second = second.model_copy(
        update={"served": {"eager": served.model_copy(update={"speed": without_1})}}
    )
    assert common_load([first, second]) == ("eager", "4")


def test_bars_are_in_proportion_to_the_ratios():
    compared = gains({"march": run(1.5), "april": run(0.75, spread=1.5)})
    march, april = charted(compared)[0].rows
    assert march.length == pytest.approx(2 * april.length)
    assert one_of(compared) == pytest.approx(march.length / 1.5)
    assert april.low < april.length < april.high <= 100
