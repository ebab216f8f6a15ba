"""Anytime-valid bounds: against integrals and loops, and their coverage over all looks."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from outrider.common.anytime import (
    BEST_AT,
    _jackknife,
    critical_t,
    ratio_of_groups,
)
from outrider.common.jackknife import degrees_of_freedom


def mixture(t, degrees, g):
    """The likelihood ratio mixed over effects, from noncentral t densities."""
    root = math.sqrt(degrees + 1)

    def weighted(effect):
        return stats.nct.pdf(t, degrees, root * effect) * stats.norm.pdf(effect, scale=g**-0.5)

    end = 12 * g**-0.5
    mixed, _ = integrate.quad(weighted, -end, end, limit=500, points=[0, t / root])
    return mixed / stats.t.pdf(t, degrees)


@pytest.mark.parametrize("alpha", [0.05, 0.01])
@pytest.mark.parametrize("degrees", [9, 19, 60])
def test_the_critical_t_is_where_the_mixture_reaches_its_threshold(degrees, alpha):
    beta = 2 * alpha / (1 + alpha)
    budget = 2 * math.log(1 / beta)
    g = BEST_AT / (budget + math.log(1 + budget))
    assert mixture(float(critical_t(degrees, alpha)), degrees, g) == pytest.approx(1 / beta)


@pytest.mark.parametrize(
    ("numerator", "denominator", "bounds"),
    [
        ([], [], (0.0, math.inf)),
        ([1.0], [1.0], (0.0, math.inf)),
        ([3.0, 2.0], [1.0, 1.0], (0.0, math.inf)),
        ([5.0] + [0.0] * 30, [1.0] * 31, (0.0, math.inf)),
        ([9.0] * 30, [9.0] * 30, (1.0, 1.0)),  # a drafter of which nothing is accepted
    ],
)
def test_too_few_clusters_have_no_bounds_and_equal_ones_an_exact_one(
    numerator, denominator, bounds
):
    found = ratio_of_groups([(numerator, denominator)], [], 0.05)
    assert (found.low, found.high, found.clusters) == (*bounds, len(numerator))


@pytest.mark.parametrize(("spread", "between"), [(0.5, 0.2), (1.0, 0.2), (1.0, 1.0)])
def test_the_truth_is_missed_at_any_look_in_five_percent_at_most(spread, between):
    """Tokens and steps by request: log-normal lengths, beta-distributed acceptance."""
    random = np.random.default_rng(1)
    shape = (1500, 80)
    steps = np.ceil(np.exp(3.5 + spread * random.standard_normal(shape)))
    rate = random.beta(3 / between, 2 / between, shape)
    tokens = steps + random.binomial(4 * steps.astype(int), rate)
    above = np.zeros(shape[0], bool)
    below = np.zeros(shape[0], bool)
    for count in range(2, shape[1] + 1):
        some = tokens[:, :count]
        of = steps[:, :count]
        off = np.log(some.sum(axis=1) / of.sum(axis=1)) - math.log(1 + 4 * 0.6)
        variance, degrees = _jackknife(some, of)
        margin = critical_t(degrees, 0.05) * np.sqrt(variance)
        above |= off > margin
        below |= off < -margin
    assert max(above.mean(), below.mean()) <= 0.05
    # Not by being useless: Student's quantile would have missed often.
    assert critical_t(79, 0.05) < 3


def test_the_ratio_of_two_groups_has_the_jackknifes_error_and_welchs_degrees():
    random = np.random.default_rng(3)
    groups = [(random.uniform(50, 90, n), random.uniform(1, 2, n)) for n in (9, 30)]
    variances = []
    degrees = []
    for above, below in groups:
        without = [
            np.log((above.sum() - a) / (below.sum() - b)) for a, b in zip(above, below, strict=True)
        ]
        variances.append((len(above) - 1) ** 2 / len(above) * np.var(without, ddof=1))
        shares = (above / above.sum() + below / below.sum()) / 2
        degrees.append(degrees_of_freedom(shares[None])[0])
    welch = sum(variances) ** 2 / sum(v**2 / d for v, d in zip(variances, degrees, strict=True))
    margin = critical_t(welch, 0.05) * np.sqrt(sum(variances))
    found = ratio_of_groups(groups[:1], groups[1:], alpha=0.05)
    expected = np.divide(*[above.sum() / below.sum() for above, below in groups])
    assert found.value == pytest.approx(expected) and found.clusters == 9
    assert [found.low, found.high] == pytest.approx(
        [expected * np.exp(-margin), expected * np.exp(margin)]
    )
    for few in (0, 1):
        some = tuple(each[:few] for each in groups[0])
        found = ratio_of_groups([some], groups[1:], alpha=0.05)
        assert (found.low, found.high) == (0.0, np.inf)


def user_groups(random, users, gain):
    """Tokens and seconds of two arms, now and before: the same users, one arm with other gains."""
    groups = []
    for gains in (gain, 0.0):
        habits = 0.3 * random.standard_normal(users)
        for spread in (gains, 0.0):
            rates = habits + spread * random.standard_normal(users)
            rates += 0.05 * random.standard_normal(users)
            groups.append((np.exp(rates), np.ones(users)))
    canary_now, canary_before, stable_now, stable_before = groups
    return [canary_now, stable_before], [stable_now, canary_before]


def test_users_who_are_in_two_groups_are_compared_with_themselves():
    canary, stable = ([f"{arm}{n}" for n in range(12)] for arm in "cs")
    names = [canary, stable, stable, canary]
    random = np.random.default_rng(0)
    missed = 0
    trials = 1000
    for _ in range(trials):
        above, below = user_groups(random, 12, gain=0.1)
        # The users' mean gain is 0 in the log; the ratio of sums exceeds it by half its variance.
        same = ratio_of_groups(above, below, 0.05, names=names)
        missed += not same.low < math.exp(0.1**2 / 2) < same.high
    assert missed / trials <= 0.05
    apart = ratio_of_groups(above, below, 0.05)
    assert same.value == apart.value and same.high / same.low < (apart.high / apart.low) ** 0.7


def test_groups_without_a_common_name_are_independent():
    above, below = user_groups(np.random.default_rng(1), 12, gain=0.1)
    names = [[f"{group} {n}" for n in range(12)] for group in range(4)]
    named, unnamed = (ratio_of_groups(above, below, 0.05, names=names) for names in (names, None))
    assert (named.low, named.high) == pytest.approx((unnamed.low, unnamed.high))
