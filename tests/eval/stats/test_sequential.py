"""Error rates of a measurement that stops when it is decided, by simulation."""

from dataclasses import dataclass

import numpy as np
import pytest

from outrider.eval.results.parts import Estimate
from outrider.eval.stats.sequential import Looks, decided
from outrider.eval.stats.speed_ratio import alternated_ratio, block_noise, speed_ratio
from tests.eval.stats.machine_noise import alternated_pairs, blocks_of

TRIALS = 1000
LASTING = [0.5, 4.0, 100.0]
"""Requests over which the machine's speed decays: less than a pair, a few pairs, all of them."""

PLANS = [(2, Looks(2, 8)), (5, Looks(2, 8)), (3, Looks(1, 4))]
"""Pairs a repeat and looks: 4 pairs at the first look, 10 as in the demo, and 3."""


@dataclass(frozen=True)
class Measurement:
    """The intervals at all looks, and where the rule stops."""

    intervals: list[Estimate]
    threshold: float

    @property
    def stop(self) -> int:
        """Index of the first look that is decided, or the last."""
        found = (i for i, each in enumerate(self.intervals) if decided(each, self.threshold))
        return next(found, len(self.intervals) - 1)

    @property
    def reported(self) -> Estimate:
        """The interval at the stopping time."""
        return self.intervals[self.stop]


def measured(
    random: np.random.Generator, truth: float, per_repeat: int, looks: Looks, lasting: float
) -> Measurement:
    """A whole measurement, all looks computed."""
    pairs = alternated_pairs(random, truth, per_repeat * looks.last, lasting)
    intervals = [
        alternated_ratio(pairs[: per_repeat * repeats], looks.level(repeats))
        for repeats in range(looks.first, looks.last + 1)
    ]
    return Measurement(intervals, threshold=1.0)


@pytest.mark.parametrize("first, last", [(1, 1), (2, 2), (1, 4), (2, 8), (3, 40)])
def test_looks_spend_five_percent_in_all(first, last):
    looks = Looks(first, last)
    spent = [1 - looks.level(repeats) for repeats in range(first, last + 1)]
    assert sum(spent) == pytest.approx(0.05)
    if first == last:
        assert looks.level(first) == pytest.approx(0.95)


def test_the_first_look_gets_half():
    assert Looks(2, 8).level(2) == pytest.approx(0.975)
    assert Looks(2, 8).level(3) == pytest.approx(1 - 0.05 / 6)
    assert Looks(2, 8).level(8) == pytest.approx(1 - 0.05 / 7)


def test_decided_means_the_interval_excludes_the_threshold():
    assert decided(Estimate(value=1.2, low=1.1, high=1.3), 1.0)
    assert decided(Estimate(value=0.8, low=0.7, high=0.9), 1.0)
    assert not decided(Estimate(value=1.1, low=1.0, high=1.3), 1.0)
    assert not decided(Estimate(value=0.9, low=0.7, high=1.1), 1.0)


@pytest.mark.parametrize("lasting", LASTING)
@pytest.mark.parametrize("per_repeat, looks", PLANS)
def test_a_speculator_that_gains_nothing_rarely_ships_whenever_one_stops(
    per_repeat, looks, lasting
):
    """`ship` needs a low end above 1 at any look, so this bounds every stopping time."""
    random, shipped = np.random.default_rng(0), 0
    for _ in range(TRIALS):
        found = measured(random, 1.0, per_repeat, looks, lasting)
        shipped += any(each.low > 1.0 for each in found.intervals)
    assert shipped / TRIALS <= 0.05


@pytest.mark.parametrize("lasting", LASTING)
@pytest.mark.parametrize("per_repeat, looks", PLANS)
def test_a_gain_of_half_stops_early_and_the_reported_interval_covers(per_repeat, looks, lasting):
    random, covered, stops = np.random.default_rng(1), 0, []
    for _ in range(TRIALS):
        found = measured(random, 1.5, per_repeat, looks, lasting)
        covered += found.reported.low <= 1.5 <= found.reported.high
        stops.append(looks.first + found.stop)
    assert covered / TRIALS >= 0.95
    assert np.mean(stops) < looks.first + 0.5 * (looks.last - looks.first)
    if per_repeat == 5:
        assert np.mean(stops) < 2.1  # of 8


@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_blocks_at_higher_concurrency_cover_at_the_other_figure_s_stopping_time(noise):
    """Figures that the rule does not read are reported at the same look, so at its level."""
    random, looks, covered, shipped = np.random.default_rng(2), Looks(2, 6), 0, 0
    trials = 300
    for _ in range(trials):
        kinds = {truth: blocks_of(random, truth, looks.last, noise) for truth in (1.0, 1.3, 1.6)}
        wrong = False
        for repeats in range(looks.first, looks.last + 1):
            level = looks.level(repeats)
            noises = block_noise(own[:repeats] for own in kinds.values())
            found = {
                truth: speed_ratio(own[:repeats], noises, samples=20, level=level)
                for truth, own in kinds.items()
            }
            wrong |= found[1.0].low > 1.0
            if repeats == 3:  # an arbitrary stopping time
                covered += sum(each.low <= truth <= each.high for truth, each in found.items())
        shipped += wrong
    assert covered / (3 * trials) >= 0.95
    assert shipped / trials <= 0.05
