"""The test is exact where nothing differs, and finds what a faulty sampler does."""

import itertools

import numpy as np
import pytest

from outrider.eval.lossless.token_frequency_test import same_tokens

VOCABULARY = 40


def responses(rng, count, shift=0.0, length=60):
    """Draws from distributions that differ from prompt to prompt; `shift` moves mass to token 0."""
    drawn = []
    for prompt in range(count):
        p = np.random.default_rng(prompt).dirichlet(np.full(VOCABULARY, 0.2)) * (1 - shift)
        p[0] += shift
        drawn.append(
            rng.choice(
                VOCABULARY, size=int(rng.integers(length // 2, length)), p=p / p.sum()
            ).tolist()
        )
    return drawn


def test_p_values_of_equal_samplers_are_uniform():
    rng = np.random.default_rng(0)
    values = [
        same_tokens(responses(rng, 12), responses(rng, 12), samples=200, seed=run).p_value
        for run in range(200)
    ]
    for level in (0.05, 0.2, 0.5):
        # Binomial of 200 draws: three standard deviations.
        assert np.mean(np.array(values) <= level) == pytest.approx(
            level, abs=3 * (level * (1 - level) / 200) ** 0.5 + 0.01
        )


def test_a_sampler_that_favours_a_token_is_found():
    rng = np.random.default_rng(1)
    found = same_tokens(responses(rng, 24), responses(rng, 24, shift=0.09), samples=2000, seed=0)
    assert found.p_value < 0.001 and found.prompts == 24


def test_the_rank_is_that_of_all_relabellings_counted_by_hand():
    without, speculated = [[1, 1, 2], [2, 2], [1]], [[1, 2, 2], [1, 2], [2, 2]]

    def distance(pairs):
        left, right = ([token for pair in pairs for token in pair[side]] for side in (0, 1))
        return sum(
            (left.count(token) - right.count(token)) ** 2 / (left.count(token) + right.count(token))
            for token in {*left, *right}
        )

    import outrider.eval.lossless.token_frequency_test as module

    rare, module.RARE = module.RARE, 1
    try:
        found = same_tokens(without, speculated, samples=20000, seed=0)
    finally:
        module.RARE = rare
    pairs = [*zip(without, speculated, strict=True)]
    relabelled = [
        distance([pair[::-1] if swap else pair for pair, swap in zip(pairs, swaps, strict=True)])
        for swaps in itertools.product((False, True), repeat=3)
    ]
    share = np.mean(np.array(relabelled) >= distance(pairs) - 1e-9)
    assert found.p_value == pytest.approx(share, abs=0.02)


def test_equal_responses_are_no_evidence():
    drawn = responses(np.random.default_rng(2), 8)
    assert same_tokens(drawn, drawn, samples=50, seed=0).p_value == 1
