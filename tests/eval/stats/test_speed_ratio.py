"""Coverage of intervals of speed ratios, on simulated timings."""

import math

import numpy as np
import pytest

from outrider.eval.results.parts import ClusteredEstimate
from outrider.eval.stats.clusters import clustered
from outrider.eval.stats.speed_ratio import (
    Units,
    agree,
    controlled_ratio,
    measured_ratio,
    trimmed_mean,
    widened,
)
from tests.eval.stats.machine_noise import machine_noise, replayed_steps, simulated_units


def replayed_ratio(steps_R2: np.ndarray, level: float = 0.95) -> ClusteredEstimate:
    sessions = np.arange(len(steps_R2)) // 4
    return clustered(steps_R2, sessions, lambda s: s[..., 1] / s[..., 0], level)


def pairs_of(*rows: list[float]) -> Units:
    """Units of (tokens, seconds) of two variants."""
    sums = np.array(rows)
    return Units(sums[:, :2], sums[:, 2:], later=1.0, observations=len(sums))


def test_the_measured_ratio_is_that_of_pooled_speeds():
    rows = [[100.0, 1.0, 100.0, 2.0], [50.0, 1.0, 10.0, 1.0], [30.0, 1.0, 60.0, 1.0]]
    estimate = measured_ratio(pairs_of(*rows))
    assert estimate.value == pytest.approx((180 / 3) / (170 / 4))
    assert (estimate.observations, estimate.clusters) == (3, 3)
    shares = np.array(rows) / np.sum(rows, axis=0)
    variance = 3 / 2 * ((shares @ [1, -1, -1, 1]) ** 2).sum()  # delta method
    factor = math.exp(4.30265273 * math.sqrt(variance))
    assert estimate.high / estimate.value == pytest.approx(factor)
    # The same by leaving out a pair at a time, where each matters little.
    many = rows * 40
    logs = np.log(
        [
            measured_ratio(pairs_of(*many[:place], *many[place + 1 :])).value
            for place in range(len(many))
        ]
    )
    error = np.sqrt((len(many) - 1) / len(many) * ((logs - logs.mean()) ** 2).sum())
    estimate = measured_ratio(pairs_of(*many))
    assert np.log(estimate.high / estimate.low) / 2 == pytest.approx(error * 1.9801, rel=0.01)
    wide = widened(estimate, math.log(2))
    assert wide.value == estimate.value and wide.high / wide.value > 2
    assert wide.high * wide.low == pytest.approx(wide.value**2)


def test_a_unit_with_one_delivery_of_each_variant_has_a_length():
    sums = np.array([[4.0, 1.0, 3.0, 1.0], [4.0, 1.0, 3.0, 0.0]])
    units = Units(sums, sums[[0, 0]], later=1.0, observations=2)
    assert units.stepped_U.tolist() == [True, False] and units.lengths_U.tolist() == [0.0]


@pytest.mark.parametrize("units", [2, 4, 8, 10, 40])
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_trimmed_means_cover_whatever_the_number_and_the_noise(units, scale):
    random = np.random.default_rng(0)
    missed = 0
    trials = 3000
    for _ in range(trials):
        center, margin = trimmed_mean(machine_noise(random, units, scale))
        missed += abs(center) > margin
    assert missed / trials < 0.06


def test_few_starts_are_not_trimmed_because_their_interval_would_miss_too_often():
    starts = np.random.default_rng(0).standard_normal((6000, 8))
    missed = {}
    for trimmed in (True, False):
        found = [trimmed_mean(own, trimmed=trimmed) for own in starts]
        missed[trimmed] = np.mean([abs(center) > margin for center, margin in found])
    assert missed[True] > 0.055 and missed[False] < 0.053


def test_one_stalled_request_moves_a_trimmed_mean_little():
    values = np.linspace(-0.1, 0.1, 10)
    center, margin = trimmed_mean(np.array([*values[:-1], 5.0]))
    assert abs(center) < 0.02 and margin < 0.15


@pytest.mark.parametrize("sessions", [5, 10, 30])
@pytest.mark.parametrize(("truth", "length"), [(1.0, 1.0), (1.1, 1.1), (1.0, 1.3)])
def test_replay_s_acceptance_covers_and_narrows_the_interval(sessions, truth, length):
    random = np.random.default_rng(1)
    covered = 0
    narrower = 0
    agreed = 0
    trials = 400
    for _ in range(trials):
        steps = replayed_steps(random, length, sessions, 0.03)
        units = simulated_units(random, truth, 20, length, acceptance_noise=0.15)
        found = controlled_ratio(units, replayed_ratio(steps))
        plain = measured_ratio(units)
        covered += found.low <= truth <= found.high
        narrower += found.high / found.low < plain.high / plain.low
        agreed += agree(units, np.full(20, np.log(length)), found)
    assert covered / trials > 0.925 and narrower / trials > 0.9
    assert agreed / trials > 0.88  # two conditions at 95 %
    assert found.estimator == "replay" and plain.estimator == "measured"


def test_replay_that_predicts_what_is_not_served_does_not_decide():
    random = np.random.default_rng(2)
    steps = replayed_steps(random, 1.2, 100, 0.03)
    units = simulated_units(random, 1.0, 40, length=1.0)
    replayed = replayed_ratio(steps)
    assert not agree(units, np.full(40, np.log(1.2)), controlled_ratio(units, replayed))
    few = replayed_ratio(steps[:12])
    assert few.high is None and controlled_ratio(units, few) is None
    # Responses of one token have no steps.
    nothing = np.array([[1.0, 1.0, 0.0, 0.0]] * 3)
    assert controlled_ratio(Units(nothing, nothing, 0.0, 3), replayed) is None
