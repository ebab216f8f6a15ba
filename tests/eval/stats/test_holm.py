"""Holm's correction against its definition, and p-values from intervals."""

import itertools

import numpy as np
import pytest
from scipy.stats import norm

from outrider.eval.stats.holm import holm, p_above
from outrider.eval.stats.intervals import Estimate


def closed_test(p_values, alpha):
    """Holm as the closure of Bonferroni tests: a claim is shown if every set that has it is."""
    count = len(p_values)
    shown = []
    for claim in range(count):
        sets = (
            chosen
            for size in range(1, count + 1)
            for chosen in itertools.combinations(range(count), size)
            if claim in chosen
        )
        rejected = [min(p_values[each] for each in own) <= alpha / len(own) for own in sets]
        shown.append(all(rejected))
    return shown


def test_holm_is_the_closure_of_bonferroni():
    random = np.random.default_rng(0)
    for count in (0, 1, 2, 3, 5):
        for _ in range(200):
            p_values = (random.uniform(size=count) ** 3 * 0.2).tolist()
            assert holm(p_values, 0.05) == closed_test(p_values, 0.05)
    assert holm([0.010, 0.040, 0.030], 0.05) == [True, False, False]


@pytest.mark.parametrize("z", [-1.0, 0.5, 1.96, 3.0, 9.0])
def test_the_p_value_is_that_of_the_interval_that_touches_the_threshold(z):
    def interval_at(level):
        half = norm.ppf((1 + level) / 2)
        return Estimate(z, z - half, z + half, 1, 1)

    two_sided = 2 * norm.sf(z)
    expected = 1.0 if z < 0 else max(two_sided, 1e-6)
    assert p_above(interval_at, 0.0) == pytest.approx(expected, rel=0.03)
