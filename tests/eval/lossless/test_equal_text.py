"""Greedy and sampled responses with and without speculation: what is a fault, and what chance."""

import itertools

import numpy as np
import pytest

from outrider.eval.lossless import equal_text
from outrider.eval.lossless.equal_text import (
    compare_greedy,
    excess,
    same_tokens,
    tail_share,
)

VOCABULARY = 40


def test_only_differences_without_a_near_tie_are_unexplained():
    asked = []

    def gap(response, index, token, other):
        asked.append((response, index, token, other))
        return {1: 0.02, 2: 3.0}[response]

    result = compare_greedy(
        [[1, 2], [1, 2], [1, 2], [1]], [[1, 2], [1, 5], [7, 2], [1, 4]], gap, near_tie_nats=0.125
    )
    assert asked == [(1, 1, 2, 5), (2, 0, 1, 7)]
    assert (result.equal, result.near_ties, result.unexplained) == (1, [1], [2, 3])


def test_the_tail_is_below_one_in_ten_thousand():
    assert tail_share([np.log([0.5, 0.5, 1e-5]), np.log([0.25])]) == 0.25


def greedy(responses, differing, gap=3.0):
    """Greedy responses of which some differ, by so many nats."""
    answered = [[1, 9] if index in differing else [1, 2] for index in range(responses)]
    return compare_greedy([[1, 2]] * responses, answered, lambda *_: gap, 0.125)


@pytest.mark.parametrize("gap", [0.1, 3.0])
def test_an_excess_is_over_the_control_and_paired_by_prompt(gap):
    none = greedy(24, [], gap)
    same = greedy(24, [3, 4], gap)
    assert excess(none, none).p_value == excess(same, same).p_value == 1.0
    assert excess(same, greedy(24, [4, 5], gap)).value == 0
    one, many = (excess(greedy(24, range(n), gap), none) for n in (1, 8))
    assert one.value == pytest.approx(1 / 24) and one.p_value == 1.0  # one in 24 may be chance
    assert many.value == pytest.approx(1 / 3) and many.p_value == pytest.approx(2 / 2**8)
    # Fewer than the control's are not a fault.
    assert excess(none, greedy(24, range(8), gap)).p_value == 1.0
    # A control of the first four prompts says nothing of the others.
    assert excess(greedy(24, [20], gap), greedy(4, [], gap)).value == 0


def test_unexplained_differences_do_not_hide_behind_near_ties():
    """As many responses differ as in the control, but not by near ties."""
    assert excess(greedy(24, range(12)), greedy(24, range(12), 0.1)).p_value == 2 / 2**12


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


def test_a_sampler_that_favours_a_token_is_found():
    rng = np.random.default_rng(1)
    found = same_tokens(responses(rng, 24), responses(rng, 24, shift=0.09), samples=2000, seed=0)
    assert found.p_value < 0.001 and found.prompts == 24


def test_the_rank_is_that_of_all_relabellings_counted_by_hand(monkeypatch):
    without = [[1, 1, 2], [2, 2], [1]]
    speculated = [[1, 2, 2], [1, 2], [2, 2]]

    def distance(pairs):
        left, right = ([token for pair in pairs for token in pair[side]] for side in (0, 1))
        return sum(
            (left.count(token) - right.count(token)) ** 2 / (left.count(token) + right.count(token))
            for token in {*left, *right}
        )

    monkeypatch.setattr(equal_text, "RARE", 1)
    found = same_tokens(without, speculated, samples=20000, seed=0)
    pairs = [*zip(without, speculated, strict=True)]
    relabelled = [
        distance([pair[::-1] if swap else pair for pair, swap in zip(pairs, swaps, strict=True)])
        for swaps in itertools.product((False, True), repeat=3)
    ]
    share = np.mean(np.array(relabelled) >= distance(pairs) - 1e-9)
    assert found.p_value == pytest.approx(share, abs=0.02)
