"""Coverage of intervals of speed ratios, on simulated timings."""

import numpy as np
import pytest

from outrider.eval.stats.speed_ratio import BlockNoise, alternated_ratio, block_noise, speed_ratio
from tests.eval.stats.machine_noise import alternated_pairs, blocks_of

TRUTH = {1: 1.5, 4: 1.6, 8: 1.3}


@pytest.mark.parametrize("blocks", [2, 3])
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_intervals_of_few_blocks_cover_whatever_the_noise(blocks, noise):
    random, covered, spanned, trials = np.random.default_rng(0), 0, 0, 300
    for _ in range(trials):
        kinds = {size: blocks_of(random, truth, blocks, noise) for size, truth in TRUTH.items()}
        pooled = block_noise(kinds.values())
        assert pooled.degrees == 3 * (blocks - 1)
        for size, own in kinds.items():
            estimate = speed_ratio(own, pooled, samples=50)
            covered += estimate.low <= TRUTH[size] <= estimate.high
            each = [speed_ratio([block], None, samples=2).value for block in own]
            spanned += min(each) <= TRUTH[size] <= max(each)
    assert covered / (3 * trials) > 0.92
    assert spanned / (3 * trials) < 0.8  # what resampled blocks would span


@pytest.mark.parametrize("pairs", [8, 24])
@pytest.mark.parametrize("lasting", [0.5, 4.0, 100.0])
def test_intervals_of_alternated_requests_cover_however_long_the_noise_lasts(pairs, lasting):
    random = np.random.default_rng(0)
    found = [alternated_ratio(alternated_pairs(random, 1.5, pairs, lasting)) for _ in range(2000)]
    assert np.mean([each.low <= 1.5 <= each.high for each in found]) > 0.93
    # The longer the machine keeps its speed, the more alike are the requests of a pair.
    if lasting > 10 and pairs == 24:
        assert np.mean([each.high / each.low for each in found]) < 1.12


def test_alternated_requests_are_pooled_before_they_are_divided():
    pairs = np.array([[100.0, 1.0, 100.0, 2.0], [50.0, 1.0, 10.0, 1.0], [30.0, 1.0, 60.0, 1.0]])
    estimate = alternated_ratio(pairs)
    assert estimate.value == pytest.approx((180 / 3) / (170 / 4))
    assert (estimate.observations, estimate.clusters) == (3, 3)
    # The same by leaving out a pair at a time, where each matters little.
    many = np.repeat(pairs, 40, axis=0)
    logs = np.log(
        [alternated_ratio(np.delete(many, place, axis=0)).value for place in range(len(many))]
    )
    error = np.sqrt((len(many) - 1) / len(many) * ((logs - logs.mean()) ** 2).sum())
    estimate = alternated_ratio(many)
    assert np.log(estimate.high / estimate.low) / 2 == pytest.approx(error * 1.9801, rel=0.01)


def test_the_value_is_the_ratio_of_pooled_speeds():
    blocks = [
        np.array([[100.0, 1.0, 100.0, 2.0], [50.0, 1.0, 10.0, 1.0]]),
        np.array([[30.0, 1.0, 60.0, 1.0]]),
    ]
    estimate = speed_ratio(blocks, BlockNoise(0.0, 4), samples=200)
    assert estimate.value == pytest.approx((180 / 3) / (170 / 4))
    assert (estimate.observations, estimate.clusters) == (3, 2)


def test_prompts_that_differ_more_than_blocks_do_set_the_interval():
    block = np.stack(
        [np.array([50.0, 150.0] * 10), np.ones(20), np.full(20, 100.0), np.ones(20)], axis=1
    )
    prompts = speed_ratio([block, block], None, samples=400)
    assert prompts.low < 0.95 and prompts.high > 1.05
    assert speed_ratio([block, block], BlockNoise(1e-6, 4), samples=400) == prompts
    noisy = speed_ratio([block, block], BlockNoise(0.04, 4), samples=400)
    assert noisy.low == pytest.approx(
        np.exp(-2.776445 * 0.2 / np.sqrt(2))
    ) and noisy.high == pytest.approx(1 / noisy.low)


def test_blocks_noisier_than_the_others_do_not_borrow_their_noise():
    """Equal speeds, 20 % noise at one concurrency, 2 % at two others, four blocks each."""
    random, wrong, trials = np.random.default_rng(3), 0, 600
    for _ in range(trials):
        own, *others = (blocks_of(random, 1.0, 4, noise) for noise in (0.2, 0.02, 0.02))
        wrong += speed_ratio(own, block_noise([own, *others]), samples=20).low > 1
    assert wrong / trials < 0.045  # at most 2.5 % are expected; 10 % by the pooled noise alone
