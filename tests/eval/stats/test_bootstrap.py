"""Coverage of the intervals on data whose truth is known."""

import numpy as np
import pytest

from outrider.eval.stats.bootstrap import bootstrap, share_interval


def ratio(sums):
    return sums[..., 0] / sums[..., 1]


def test_the_value_is_the_ratio_of_sums():
    sums = np.array([[1.0, 1.0], [100.0, 50.0]])
    assert bootstrap(sums, ["a", "b"], ratio, samples=50, seed=0).value == pytest.approx(101 / 51)


def test_clustered_intervals_cover_and_naive_ones_do_not():
    random, covered, naive = np.random.default_rng(0), 0, 0
    for trial in range(200):
        level = np.repeat(
            1 + 0.3 * random.standard_normal(40), 5
        )  # five requests of a session share its level
        tokens = random.integers(50, 150, 200).astype(float)
        sums = np.stack([tokens * (level + 0.05 * random.standard_normal(200)), tokens], axis=1)
        clustered = bootstrap(sums, np.arange(200) // 5, ratio, samples=400, seed=trial)
        independent = bootstrap(sums, np.arange(200), ratio, samples=400, seed=trial)
        covered += clustered.low <= 1.0 <= clustered.high
        naive += independent.low <= 1.0 <= independent.high
    assert 0.88 <= covered / 200 <= 0.99
    assert naive / 200 < 0.75


def test_pairing_narrows_the_interval():
    random = np.random.default_rng(1)
    steps = random.integers(20, 400, 100).astype(float)
    custom = steps / 1.3 * (1 + 0.02 * random.standard_normal(100))
    estimate = bootstrap(
        np.stack([steps, custom], axis=1), np.arange(100), ratio, samples=500, seed=0
    )
    assert estimate.value == pytest.approx(1.3, rel=0.01) and estimate.high - estimate.low < 0.03
    assert (estimate.observations, estimate.clusters) == (100, 100)


def test_wilson_has_width_at_the_ends():
    assert share_interval(24, 24) == pytest.approx([0.862, 1.0], abs=0.001)
    assert share_interval(0, 0) == [0.0, 1.0]
