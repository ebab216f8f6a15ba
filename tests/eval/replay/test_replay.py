"""Batched replay against a literal walk through each response, one k at a time."""

import json

import numpy as np
import pytest
import torch

from outrider.eval.replay.replay import ReplaySums, compare, replay
from outrider.serving.client import Sampling
from outrider.speculators.acceptance import target_distribution
from tests.eval.replay_case import DEPTH, TEMPERATURE, TOP_K, TOP_P, replay_case, states_of


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return replay_case(tmp_path_factory.mktemp("tiny"))


def literal(case, features, k, acceptance):
    """Expected (steps, accepted per position) of one response, by recursion over steps."""
    tokens, hidden = features.token_ids.long(), features.hidden.float()
    last, drafts = len(tokens) - 1, states_of(case.speculator, case.ends, tokens, hidden)

    def step(t):
        """Steps and accepted drafts from anchor t to the end."""
        if t >= last:
            return np.zeros(1 + k)
        total, reached = np.zeros(1 + k), 1.0
        total[0] = 1
        for j in range(1, k + 1):
            a = (
                acceptance(case.ends, drafts[j - 1][0, t - 1], hidden[t + j - 1], tokens[t + j])
                if t + j <= last
                else 0.0
            )
            if a < 1:
                total += reached * (1 - a) * step(t + j)
            reached *= a
            if not reached:
                return total
            total[j] += reached
        return total + reached * step(t + k + 1)

    return step(features.completion_start)


def greedy_drafts(ends, state, hidden, token):
    return float(ends.logits(state).argmax() == token)


def sampled_drafts(ends, state, hidden, token):
    q = (ends.logits(state) / TEMPERATURE).softmax(-1)[token]
    logits = ends.logits(hidden)[None]
    sampling = torch.tensor([[TEMPERATURE], [TOP_P], [TOP_K]])
    p = target_distribution(logits, *sampling)[0, token]
    if p == 0:
        p = (logits[0] / TEMPERATURE).softmax(-1)[token]
    return min(1.0, float(q / p))


@pytest.mark.parametrize(
    ("method", "acceptance"), [("greedy", greedy_drafts), ("probabilistic", sampled_drafts)]
)
def test_replay_is_the_literal_walk(case, method, acceptance, monkeypatch):
    monkeypatch.setattr(
        "outrider.eval.replay.replay.BATCH_TOKENS", 60
    )  # several sequences a batch, several batches
    sums = replay(case.target, case.target, case.store, case.rows, DEPTH, method)
    assert sums.sequence_ids == [f"r{number}" for number in range(5)]
    total = {k: np.zeros(1 + k) for k in range(1, DEPTH + 1)}
    for r, name in enumerate(sums.sequence_ids):
        features = case.store[name]
        assert sums.tokens_R[r] == len(features.token_ids) - features.completion_start - 1
        for k in range(1, DEPTH + 1):
            expected = literal(case, features, k, acceptance)
            total[k] += expected
            assert sums.steps_RK[r, k - 1] == pytest.approx(expected[0], rel=1e-4)
            assert sums.accepted_RKK[r, k - 1, :k] == pytest.approx(
                expected[1:], rel=1e-3, abs=1e-6
            )
    for k, (steps, *accepted) in total.items():
        assert sums.cumulative(k) == pytest.approx(np.array(accepted) / steps, rel=1e-3, abs=1e-6)
    if method == "greedy":
        assert sums.acceptance_length()[-1] > 1.3  # the case has accepted drafts to count


def test_regions_split_tokens_and_steps_without_a_rest(case):
    plain = replay(case.target, case.target, case.store, case.rows, DEPTH)
    sums = replay(case.target, case.target, case.store, case.rows, DEPTH, by_region=True)
    assert plain.region_tokens_RG.shape == (5, 0) and np.array_equal(plain.steps_RK, sums.steps_RK)
    for dimension in {dimension for dimension, _ in sums.regions}:
        inside = [g for g, (name, _) in enumerate(sums.regions) if name == dimension]
        assert np.allclose(sums.region_tokens_RG[:, inside].sum(axis=1), sums.tokens_R)
        assert np.allclose(sums.region_steps_RGK[:, inside].sum(axis=1), sums.steps_RK)
    loaded = ReplaySums.from_dict(json.loads(json.dumps(sums.as_dict())))
    assert loaded.regions == list(sums.regions) and np.allclose(
        loaded.region_steps_RGK, sums.region_steps_RGK
    )


def test_a_greedy_override_makes_sampled_drafts_deterministic(case):
    greedy = replay(case.target, case.target, case.store, case.rows, DEPTH, "greedy")
    override = replay(
        case.target, case.target, case.store, case.rows, DEPTH, "probabilistic", Sampling(0.0, 1.0)
    )
    assert np.allclose(greedy.steps_RK, override.steps_RK)


def test_sums_survive_json_and_compare_pairs_them(case):
    sums = replay(case.target, case.target, case.store, case.rows, DEPTH)
    loaded = ReplaySums.from_dict(json.loads(json.dumps(sums.as_dict())))
    assert loaded.sequence_ids == sums.sequence_ids and np.allclose(
        loaded.accepted_RKK, sums.accepted_RKK, atol=1e-6
    )
    estimates = compare(sums, loaded, 2)
    assert estimates["ratio"].value == 1.0 and estimates["ratio"].low is None  # three sessions
    assert estimates["base"].value == pytest.approx(sums.acceptance_length()[1])
    assert estimates["ratio"].clusters == 3
