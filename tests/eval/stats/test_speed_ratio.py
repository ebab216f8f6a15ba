"""Coverage of intervals of speed ratios, on simulated timings."""

import math
from dataclasses import replace

import numpy as np
import pytest

from outrider.eval.results.parts import ClusteredEstimate, Estimate, Interval
from outrider.eval.stats.clusters import Trend, clustered_estimate
from outrider.eval.stats.speed_ratio import (
    DRIFT,
    ReplayedLengths,
    Units,
    controlled_ratio,
    lengths_agree,
    measured_ratio,
    pooled_noise,
    served_over_replayed,
    speeds_agree,
    trimmed_mean,
)
from tests.eval.stats.machine_noise import machine_noise, replayed_steps, simulated_units


def replayed_ratio(steps_R2: np.ndarray, level: float = 0.95) -> ReplayedLengths:
    sessions = np.arange(len(steps_R2)) // 4
    whole = clustered_estimate(steps_R2, sessions, lambda s: s[..., 1] / s[..., 0], level)
    steps = float(steps_R2[:, 1].mean())
    return ReplayedLengths(whole=whole, steps=steps, cut=whole.value, cut_steps=steps)


def pairs_of(*rows: list[float]) -> Units:
    """Units of (tokens, seconds) of two variants."""
    sums = np.array(rows)
    return Units(sums[:, :2], sums[:, 2:], observations=len(sums))


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


def test_a_unit_with_one_delivery_of_each_variant_has_a_length():
    sums = np.array([[4.0, 1.0, 3.0, 1.0, 0.2, 1.0], [4.0, 1.0, 3.0, 0.0, 0.2, 1.0]])
    units = Units(sums, sums[[0, 0]], observations=2)
    assert units.stepped_N.tolist() == [True, False] and units.lengths_N.tolist() == [0.0]
    turned = Units(units.under_N6, units.over_N6, observations=2)
    assert turned.stepped_N.tolist() == [True, False]


# Tokens, seconds, tokens after the first, their deliveries, seconds to the first, requests.
OVER = np.array([[9.0, 1.5, 8.0, 1.0, 0.5, 1.0], [9.0, 3.0, 8.0, 2.0, 1.0, 1.0]])
UNDER = np.array([[9.0, 3.0, 8.0, 4.0, 1.0, 1.0], [9.0, 5.0, 8.0, 8.0, 1.0, 1.0]])
PAIRS = Units(OVER, UNDER, observations=2)
"""Seconds of a prefill and of a step: 0.5, 1 and 1, 1 against 1, 0.5 and 1, 0.5."""

WHOLE = ClusteredEstimate(value=4.5, low=4.0, high=5.0625, observations=9, clusters=9, over="9")
LENGTHS = ReplayedLengths(whole=WHOLE, steps=10.0, cut=4.0, cut_steps=6.0)


def controlled_by_hand() -> tuple[float, float, float]:
    """Log speed ratio of whole responses, its margin, and that of cut ones."""
    first = (math.log(0.5) + math.log(1.0)) / 2
    step = math.log(2.0)
    prefill = 2 / 2  # of the denominator: seconds to first tokens, per request
    step_s = (8 - 2) / 12  # seconds after them, per delivery

    def seconds(steps: float, length: float) -> tuple[float, float, float]:
        """Of the denominator and the numerator, and the numerator's share after the prefill."""
        later = math.exp(step) * step_s * steps / length
        over = math.exp(first) * prefill + later
        return prefill + steps * step_s, over, later / over

    under, over, later = seconds(10.0, 4.5)
    cut_under, cut_over, _ = seconds(6.0, 4.0)
    remainders = [-((1 - later) * math.log(ratio) + later * step) for ratio in (0.5, 1.0)]
    # Standard error of a mean of two: half their difference; t(0.975, 1 degree) = 12.7062.
    noise = 12.7062047 * abs(remainders[1] - remainders[0]) / 2
    margin = math.sqrt(noise**2 + (later * math.log(5.0625 / 4.5)) ** 2 + (later * 0.01) ** 2)
    return math.log(under / over), margin, math.log(cut_under / cut_over)


def test_the_ratio_of_whole_responses_by_hand():
    """Seconds of a response are those to its first token and its steps times a step's seconds."""
    estimate = controlled_ratio(PAIRS, LENGTHS)
    assert estimate is not None
    log_ratio, margin, cut = controlled_by_hand()
    assert math.log(estimate.value) == pytest.approx(log_ratio)
    assert math.log(estimate.high / estimate.value) == pytest.approx(margin)
    assert math.log(estimate.value / estimate.low) == pytest.approx(margin)
    assert math.log(estimate.expected) == pytest.approx(cut)
    assert controlled_ratio(Units(OVER[:1], UNDER[:1], observations=1), LENGTHS) is None


def test_a_trend_shifts_the_ratio_by_bayes_rule():
    """A change of -0.1 with an error of DRIFT: half of it, and DRIFT / sqrt(2) remain."""
    plain = controlled_ratio(PAIRS, LENGTHS)
    trend = Trend(-0.1, DRIFT)
    found = controlled_ratio(PAIRS, replace(LENGTHS, trend=trend))
    assert plain is not None and found is not None
    log_ratio, margin, _ = controlled_by_hand()
    prefill = math.exp(-math.log(2) / 2)
    later = 1 - prefill / ((1 + 5) / math.exp(log_ratio))
    assert math.log(found.value / plain.value) == pytest.approx(-0.05 * later)
    wider = math.hypot(margin, 1.959964 * later * DRIFT / math.sqrt(2))
    assert math.log(found.high / found.value) == pytest.approx(wider)
    assert found.heldout == plain.value and plain.heldout is None


def test_starts_are_units_whose_pairs_are_averaged():
    """Two starts with two pairs each: the units' values are means of the pairs' logs."""
    units = Units(
        np.concatenate([OVER, OVER]),
        np.concatenate([UNDER, UNDER[::-1]]),
        observations=4,
        starts_N=np.array([0, 0, 1, 1]),
    )
    assert units.count == 2 and not units.trimmed
    mean = math.log(0.5) / 2
    assert units.first_U == pytest.approx([mean, mean])
    assert measured_ratio(units).clusters == 2
    assert measured_ratio(units).value == pytest.approx(16 / 9)


def test_blocks_pool_their_noise_over_concurrencies():
    random = np.random.default_rng(0)
    independent_MU = 0.05 * random.standard_normal((3, 400))
    noise = pooled_noise(independent_MU)
    assert noise is not None
    assert math.sqrt(noise.variance) == pytest.approx(0.05, rel=0.1)
    assert noise.degrees == pytest.approx(3 * 399, rel=0.05)
    # If the concurrencies share all of their noise, each start is worth one degree.
    same = pooled_noise(np.repeat(independent_MU[:1], 3, axis=0))
    assert same is not None and same.degrees == pytest.approx(399)
    assert pooled_noise(independent_MU[:, :1]) is None


def test_pooled_noise_replaces_the_units_own():
    noise = pooled_noise(np.array([[0.0, 0.02, 0.04], [0.1, 0.12, 0.14]]))
    assert noise is not None and noise.variance == pytest.approx(0.0004)
    assert noise.degrees == pytest.approx(2)
    found = controlled_ratio(PAIRS, LENGTHS, noise=noise)
    log_ratio, _, _ = controlled_by_hand()
    later = 1 - math.exp(-math.log(2) / 2) / (6 / math.exp(log_ratio))
    # t(0.975, 2 degrees) = 4.302653
    parts = (4.302653 * math.sqrt(0.0004 / 2), later * math.log(5.0625 / 4.5), later * 0.01)
    assert math.log(found.high / found.value) == pytest.approx(math.hypot(*parts))


def own_prompts(units: list[Units]) -> list[list[list[str]]]:
    """A prompt of its own for each row."""
    return [
        [[f"{size}-{row}"] for row in range(len(of_size.over_N6))]
        for size, of_size in enumerate(units)
    ]


def agree(units: list[Units], replayed: list[np.ndarray]) -> bool:
    return lengths_agree(served_over_replayed(units, replayed, own_prompts(units)))


def test_replay_agrees_if_the_served_lengths_are_replayed_ones():
    lengths_N = np.log([4.0, 4.0])
    # Both differences are the same, so their margin is 0 and NEGLIGIBLE decides.
    for difference, agrees in [(0.0, True), (0.0049, True), (-0.0049, True), (0.0051, False)]:
        assert agree([PAIRS], [lengths_N + difference]) == agrees
    # t(0.995, 1) = 63.66: two differences that scatter decide nothing.
    assert agree([PAIRS], [lengths_N + np.array([0.2, -0.1])])
    # Over several concurrencies they do.
    many = [PAIRS] * 20
    assert not agree(many, [lengths_N + np.array([0.03, 0.02])] * 20)
    assert agree(many, [lengths_N + np.array([0.03, -0.03])] * 20)


def rows_of(log_lengths: np.ndarray) -> Units:
    """Pairs of requests with these log ratios of acceptance length."""
    over = np.array([[101.0, 2.0, 100.0, 50.0, 1.0, 1.0]] * len(log_lengths))
    under = over.copy()
    under[:, 3] = 50.0 * np.exp(log_lengths)
    return Units(over, under, len(over))


def test_rows_of_the_same_prompts_are_no_independent_rows():
    """Prompts differ by 10 % from their one logged response, requests by 5 % more."""
    random = np.random.default_rng(0)
    wrong = {"by prompt": 0, "independent": 0}
    missed = 0
    trials = 400
    for _ in range(trials):
        of_prompts = 0.1 * random.standard_normal(20)
        units = rows_of(np.tile(of_prompts, 13) + 0.05 * random.standard_normal(260))
        prompts = [[f"q{row % 20}"] for row in range(260)]
        ratio = served_over_replayed([units], [np.zeros(260)], [prompts])
        wrong["by prompt"] += not lengths_agree(ratio)
        wrong["independent"] += not agree([units], [np.zeros(260)])
        missed += lengths_agree(served_over_replayed([units], [np.full(260, 0.1)], [prompts]))
    assert wrong["by prompt"] / trials < 0.03  # at 99 %
    assert wrong["independent"] / trials > 0.25
    assert missed / trials < 0.1


def test_the_variance_of_rows_whose_prompts_overlap():
    """The sum over pairs of rows of both influences and the cosine of their prompts, by hand."""
    logs = np.array([0.1, -0.2, 0.3])
    prompts = [["a", "b"], ["b", "c"], ["d", "d"]]
    ratio = served_over_replayed([rows_of(logs)], [np.zeros(3)], [prompts])
    influence = (logs - logs.mean()) / 3
    cosines = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    variance = 3 / 2 * influence @ cosines @ influence
    margin = 9.924843 * math.sqrt(variance)  # t(0.995, 2)
    assert math.log(ratio.value) == pytest.approx(logs.mean())
    assert math.log(ratio.high / ratio.value) == pytest.approx(margin)
    assert math.log(ratio.value / ratio.low) == pytest.approx(margin)
    # One prompt says nothing of how prompts differ.
    assert served_over_replayed([rows_of(logs)], [np.zeros(3)], [[["a"]] * 3]) is None
    assert lengths_agree(None)


def test_a_prediction_agrees_within_both_intervals():
    measured = Estimate(value=2.0, low=2.0 / 1.03, high=2.0 * 1.03)
    lengths = Interval(value=0.98, low=0.98 / 1.04, high=0.98 * 1.04)
    margin = math.hypot(math.log(1.03), math.log(1.04))
    for sign in (1, -1):
        assert speeds_agree(measured, 2.0 * math.exp(sign * 0.99 * margin), lengths)
        assert not speeds_agree(measured, 2.0 * math.exp(sign * 1.01 * margin), lengths)
        assert not speeds_agree(measured, 2.0 * math.exp(sign * 0.99 * margin), None)
    assert speeds_agree(measured, 2.05, None)


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
        agreed += agree([units], [np.full(20, np.log(length))])
    assert covered / trials > 0.925 and narrower / trials > 0.9
    assert agreed / trials > 0.975  # at 99 %
    assert found.estimator == "replay" and plain.estimator == "measured"


def test_replay_that_predicts_what_is_not_served_disagrees():
    random = np.random.default_rng(2)
    steps = replayed_steps(random, 1.2, 100, 0.03)
    units = simulated_units(random, 1.0, 40, length=1.0)
    assert not agree([units], [np.full(40, np.log(1.2))])
    few = replayed_ratio(steps[:12])
    assert few.whole.high is None and controlled_ratio(units, few) is None
    # Responses of one token have no steps.
    nothing = np.array([[1.0, 1.0, 0.0, 0.0, 1.0, 1.0]] * 3)
    assert controlled_ratio(Units(nothing, nothing, 3), replayed_ratio(steps)) is None
