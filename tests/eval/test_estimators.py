"""The benchmark's estimators against loops over responses, steps and drafts."""

import numpy as np
import pytest
import torch

from benchmarks.estimators import (
    chain,
    every_token,
    marginal_rates,
    mean_of_ratios,
    past_the_end,
    product_of_marginals,
)

K = 3


@pytest.fixture(scope="module")
def drafts():
    """Whether draft j of each anchor is right, for 12 responses of 12 to 40 anchors."""
    random = np.random.default_rng(0)
    return [(random.random((n, K)) < [0.8, 0.7, 0.6]).tolist() for n in random.integers(12, 40, 12)]


@pytest.fixture(scope="module")
def padded(drafts):
    anchors_R = torch.tensor([len(response) for response in drafts])
    a_RAK = torch.zeros(len(drafts), int(anchors_R.max()), K, dtype=torch.float64)
    for r, response in enumerate(drafts):
        for t, right in enumerate(response):
            for j in range(K):
                a_RAK[r, t, j] = right[j] if t + j + 1 <= len(response) else 0
    return a_RAK, anchors_R


def steps_of(response, end, known):
    """(delivered, accepted within `known` anchors) of each step, up to `end` tokens."""
    taken, at = [], 0
    while at < end:
        accepted = 0
        while accepted < K and at + accepted + 1 <= known and response[at][accepted]:
            accepted += 1
        taken.append((min(accepted + 1, end - at), accepted))
        at += accepted + 1
    return taken


def test_the_chain_is_the_walk_and_a_mean_of_ratios_weighs_responses_alike(drafts, padded):
    taken = [steps_of(response, len(response), len(response)) for response in drafts]
    assert sum(d for steps in taken for d, _ in steps) == sum(map(len, drafts))
    assert chain(*padded) == pytest.approx(sum(map(len, drafts)) / sum(map(len, taken)))
    ratios = [len(response) / len(steps) for response, steps in zip(drafts, taken, strict=True)]
    assert mean_of_ratios(*padded) == pytest.approx(np.mean(ratios))


def test_averages_over_every_token(drafts, padded):
    lengths, right = [], [[] for _ in range(K)]
    for response in drafts:
        for t in range(len(response)):
            inside = [response[t][j] for j in range(K) if t + j + 1 <= len(response)]
            lengths.append(1 + (inside.index(False) if False in inside else len(inside)))
            for j, one in enumerate(inside):
                right[j].append(one)
    rates = [np.mean(one) for one in right]
    assert every_token(*padded) == pytest.approx(np.mean(lengths))
    assert marginal_rates(*padded) == pytest.approx(rates)
    product = 1 + rates[0] + rates[0] * rates[1] + rates[0] * rates[1] * rates[2]
    assert product_of_marginals(*padded) == pytest.approx(product)


def test_drafts_past_a_cut_are_counted_and_not_delivered(drafts, padded):
    cut = 16
    long = [response for response in drafts if len(response) >= cut - 1 + K]
    assert 3 < len(long) < len(drafts)
    taken = [step for response in long for step in steps_of(response, cut - 1, len(response))]
    delivered, counters = past_the_end(*padded, cut)
    assert delivered == pytest.approx((cut - 1) * len(long) / len(taken))
    assert counters == pytest.approx(1 + sum(accepted for _, accepted in taken) / len(taken))
    assert counters > delivered
