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
    wide = widened(estimate.model_copy(update={"low": 0.5, "value": 1.0, "high": 2.0}), 0.3)
    # Independent margins of a log ratio add as the root of the sum of squares: log 2 and 0.3.
    factor = math.exp(math.sqrt(math.log(2) ** 2 + 0.09))
    assert (wide.low, wide.value, wide.high) == pytest.approx((1 / factor, 1.0, factor))


def test_a_unit_with_one_delivery_of_each_variant_has_a_length():
    sums = np.array([[4.0, 1.0, 3.0, 1.0], [4.0, 1.0, 3.0, 0.0]])
    units = Units(sums, sums[[0, 0]], later=1.0, observations=2)
    assert units.stepped_U.tolist() == [True, False] and units.lengths_U.tolist() == [0.0]
    turned = Units(units.under_U4, units.over_U4, later=1.0, observations=2)
    assert turned.stepped_U.tolist() == [True, False]


def lengths_and_speeds(later: float = 0.8, observations: int = 2) -> Units:
    """Two units: log length ratios log 2 and log 4, log speed ratios log 3 and log 5."""
    # Tokens, seconds, tokens after the first, their deliveries.
    over = np.array([[30.0, 1.0, 8.0, 1.0], [50.0, 1.0, 8.0, 1.0]])
    under = np.array([[10.0, 1.0, 8.0, 2.0], [10.0, 1.0, 8.0, 4.0]])
    return Units(over, under, later, observations)


def test_the_controlled_ratio_by_hand():
    """exp(mean of (r - b a) + b rho), and the root of the sum of squared margins plus b UNSEEN."""
    replayed = ClusteredEstimate(
        value=1.5, low=1.25, high=1.8, observations=9, clusters=9, over="9 sessions"
    )
    remainders = [math.log(3) - 0.8 * math.log(2), math.log(5) - 0.8 * math.log(4)]
    center = sum(remainders) / 2
    # Standard error of a mean of two: half their difference; t(0.975, 1 degree) = 12.7062.
    margin = 12.7062047 * abs(remainders[1] - remainders[0]) / 2
    whole = math.sqrt(margin**2 + (0.8 * math.log(1.8 / 1.5)) ** 2) + 0.8 * 0.01
    estimate = controlled_ratio(lengths_and_speeds(), replayed)
    assert estimate is not None
    assert estimate.value == pytest.approx(math.exp(center) * 1.5**0.8)
    assert estimate.high / estimate.value == pytest.approx(math.exp(whole))
    assert estimate.value / estimate.low == pytest.approx(math.exp(whole))
    alone = lengths_and_speeds()
    one = Units(alone.over_U4[:1], alone.under_U4[:1], 0.8, 1)
    assert controlled_ratio(one, replayed) is None


def test_units_are_pairs_where_each_has_one_observation():
    assert lengths_and_speeds(observations=2).alternated
    assert not lengths_and_speeds(observations=8).alternated


def test_replay_agrees_if_lengths_and_speeds_both_do():
    units = lengths_and_speeds()
    lengths_U = np.log([2.0, 4.0])
    measured = measured_ratio(units)
    inside = measured.model_copy(update={"value": 4.0})
    outside = measured.model_copy(update={"value": measured.high * 1.01})
    # Both differences are the same, so their own margin is 0 and NEGLIGIBLE decides.
    for difference, agrees in [(0.0, True), (0.0049, True), (-0.0049, True), (0.0051, False)]:
        assert agree(units, lengths_U + difference, inside) == agrees
        assert not agree(units, lengths_U + difference, outside)
    for end in (measured.low, measured.high):
        assert agree(units, lengths_U, measured.model_copy(update={"value": end}))
    # Differences of +0.2 and -0.1 have a margin of 12.7 x 0.15: the mean of 0.05 is within it.
    assert agree(units, lengths_U + np.array([0.2, -0.1]), inside)


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


def test_a_trimmed_mean_by_hand():
    """Tukey and McLaughlin for ten values: two are cut on each side, six are left."""
    values = np.array([3.0, -7.0, 1.0, 9.0, 4.0, 0.0, 2.0, 30.0, 5.0, -1.0])
    kept = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    winsorized = [0.0, 0.0, *kept, 5.0, 5.0]
    center = sum(winsorized) / 10
    variance = sum((value - center) ** 2 for value in winsorized) / 9
    # t(0.975, 5 degrees) = 2.570582; a share of 0.2 is cut on each side.
    margin = 2.570582 * math.sqrt(variance) / (0.6 * math.sqrt(10))
    assert trimmed_mean(values) == pytest.approx((sum(kept) / 6, margin))
    # Seven are too few to trim, and blocks are not trimmed: t(0.975, 6) = 2.446912.
    for found, whole in (
        (trimmed_mean(values[:7]), values[:7]),
        (trimmed_mean(values, trimmed=False), values),
    ):
        spread = math.sqrt(((whole - whole.mean()) ** 2).sum() / (len(whole) - 1) / len(whole))
        quantile = {7: 2.446912, 10: 2.262157}[len(whole)]
        assert found == pytest.approx((whole.mean(), quantile * spread))
    # Eight are trimmed by one on each side: t(0.975, 5).
    assert trimmed_mean(np.array([-9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 9.0])) == (1.0, 0.0)


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
