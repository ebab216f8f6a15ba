"""Arrival times: the log's, scaled exactly; a Poisson process where the log has none."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from outrider.eval.bench.arrivals import customers_arrivals, has_times


def scaled_literally(times: list[int], count: int, rate: Fraction) -> list[Fraction]:
    """The log's gaps, repeated a mean gap after its end, times one factor, in exact numbers."""
    gaps = [Fraction(b - a) for a, b in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    chosen = []
    while len(chosen) < count - 1:
        place = len(chosen) % (len(gaps) + 1)
        chosen.append(gaps[place] if place < len(gaps) else mean)
    factor = Fraction(count - 1) / rate / sum(chosen)
    arrivals = [Fraction(0)]
    for gap in chosen:
        arrivals.append(arrivals[-1] + gap * factor)
    return arrivals


@pytest.mark.parametrize("count", [2, 7, 40, 41, 97])
@pytest.mark.parametrize("rate", [Fraction(1, 3), Fraction(16)])
def test_the_log_s_gaps_are_kept_in_proportion(count, rate):
    random = np.random.default_rng(count)
    times = (1_700_000_000 + np.cumsum(random.integers(0, 5000, 40))).tolist()
    times[5] = times[4]  # two at once
    arrivals = customers_arrivals(times, count, float(rate), seed=0)
    assert arrivals.source == "log"
    assert arrivals.seconds == pytest.approx(
        [float(t) for t in scaled_literally(times, count, rate)], rel=1e-9, abs=1e-9
    )
    assert (count - 1) / arrivals.seconds[-1] == pytest.approx(float(rate))
    if count > 6:
        assert arrivals.seconds[5] == arrivals.seconds[4]


def test_bursts_stay_bursts_at_every_rate():
    bursts = [1.7e9 + 3600 * hour + second for hour in range(5) for second in range(4)]
    slow, fast = (customers_arrivals(bursts, 20, rate, seed=0) for rate in (1.0, 16.0))
    assert slow.seconds == pytest.approx([16 * t for t in fast.seconds])
    assert slow.spread == pytest.approx(fast.spread) and slow.spread > 1.5
    even = customers_arrivals([1.7e9 + 10 * i for i in range(20)], 20, 4.0, seed=0)
    assert even.spread == pytest.approx(0, abs=1e-6)


def test_without_times_requests_come_as_a_poisson_process_of_the_seed():
    without = [None] * 50
    first_only = [1.7e9, *without]
    for times in (without, first_only, [1.7e9] * 50, [1.7e9], []):
        assert not has_times(times)
        assert customers_arrivals(times, 30, 2.0, seed=3).source == "poisson"
    one, same, other = (customers_arrivals(without, 4000, 2.0, seed=seed) for seed in (3, 3, 4))
    assert one == same and one.seconds != other.seconds
    assert one.seconds[-1] == pytest.approx(3999 / 2.0) and all(
        a <= b for a, b in itertools.pairwise(one.seconds)
    )
    gaps = np.diff(one.seconds) * 2.0
    assert one.spread == pytest.approx(1, abs=0.06)
    assert (gaps > 1).mean() == pytest.approx(np.exp(-1), abs=0.03) and (
        gaps > 3
    ).mean() == pytest.approx(np.exp(-3), abs=0.015)


def test_gaps_are_those_between_the_logged_times():
    assert has_times([1.7e9, 1.7e9 + 0.5, 1.7e9 + 0.501, 1.7e9 + 4])
    assert has_times([1.7e9 + 0.001 * i for i in range(50)])
    some = [1.7e9, None, 1.7e9 + 1, 1.7e9 + 3, None]
    assert has_times(some) and not has_times([*some, None])
    arrivals = customers_arrivals(some, 3, 1.0, seed=0)
    assert arrivals.source == "log"
    assert arrivals.seconds == pytest.approx([0, 2 / 3, 2])
