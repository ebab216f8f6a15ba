"""The chart and tiles of the first screen: every variant and load, with its interval."""

import pytest

from outrider.eval.report.speeds import LONGEST, load_bars, tiles
from outrider.eval.results.parts import Estimate
from tests.eval.report.test_first_screen import with_ratio
from tests.eval.sample_results import sample_results


def test_every_variant_is_charted_at_each_load():
    results = sample_results()
    charted = load_bars(results)
    assert [load.label for load in charted][:2] == [
        "1 request, eager",
        "4 requests at a time, eager",
    ]
    assert len(charted) == 6
    names = [bar.name for bar in charted[0].rows]
    assert names == ["none", "n-gram lookup", "base", "custom"]
    # Lookup is served at the main concurrency only.
    assert [bar.name for bar in charted[1].rows] == ["none", "base", "custom"]
    speed = results.served["eager"].speed["1"]
    assert charted[0].rows[0].over == speed.custom_over_none
    assert charted[0].rows[1].over == speed.lookup.custom_over


def test_a_bar_is_the_share_of_custom_s_speed_within_its_interval():
    base = load_bars(sample_results())[0].rows[2]
    custom = load_bars(sample_results())[0].rows[3]
    assert custom.length / base.length == pytest.approx(base.over.value)
    assert base.low < base.length < base.high <= 100


def test_a_wide_interval_does_not_shorten_the_other_bars():
    charted = load_bars(with_ratio(0.01, 100))
    assert charted[0].rows[-1].length == 100 / LONGEST
    assert charted[0].rows[1].high == 100


def test_base_at_the_k_in_use_is_a_bar_of_its_own():
    results = sample_results()
    row = results.served["eager"].speed["1"]
    ratio = Estimate(value=1.2, low=1.1, high=1.3)
    current = row.lookup.model_copy(update={"custom_over": ratio})
    served = results.served["eager"]
    speed = served.speed | {"1": row.model_copy(update={"current": current})}
    update = {
        "served": {"eager": served.model_copy(update={"speed": speed})},
        "settings": results.settings | {"current_k": 1},
    }
    charted = load_bars(results.model_copy(update=update))
    # One engine mode is not named.
    assert charted[0].label == "1 request"
    assert [bar.name for bar in charted[0].rows][2] == "base, K = 1"


def test_tiles_say_what_the_sentences_do_not():
    speed, wait = tiles(sample_results())
    assert (speed.figure, speed.label) == ("178", "tokens/s")
    assert speed.compared == "none 97, n-gram lookup 115, base 128"
    assert wait.figure.endswith(" ms")
