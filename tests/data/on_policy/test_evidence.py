"""Evidence in closed form; every cause is named on a toy target whose own text has none."""

import numpy as np
import pytest
import torch

from outrider.data.on_policy.evidence import (
    FEWEST_TOKENS,
    HEAD,
    REST,
    ROUNDING_NATS,
    OnPolicyEvidence,
    is_on_policy,
    judge_evidence,
)
from outrider.serving.token_scores import COLUMNS, TEMPERATURES
from tests.data.toy_target import LENGTH, SEQUENCES, ToyTarget, together

SUMS = {  # (head, rest) of each sequence
    "tokens": [(8, 92), (8, 12), (4, 0)],
    "sampled_logprob": [(-2.0, -30.0), (-6.0, -9.0), (-1.0, 0.0)],
    "expected": [(-2.5, -27.5), (-3.0, -4.0), (-1.0, 0.0)],
    "variance": [(1.0, 8.0), (0.5, 0.5), (0.0, 0.0)],
    "rare": [(0, 1), (2, 3), (0, 0)],
    "rare_difference": [(0.0, -2.0), (-3.0, -4.0), (0.0, 0.0)],
    "unlikely": [(0, 3), (2, 4), (0, 0)],
    "unlikely_expected": [(0.0, 5.0), (0.5, 0.5), (0.0, 0.0)],
    "sure": [(4, 36), (4, 6), (4, 0)],
    "sure_missed": [(0, 1), (1, 2), (0, 0)],
    "sure_missed_expected": [(0.0, 0.5), (0.0, 0.1), (0.0, 0.0)],
    "fitted": [(2, 18), (2, 4), (0, 0)],
    "logged_fit": [(-2.0, -20.0), (-3.0, -5.0), (0.0, 0.0)],
}


@pytest.fixture
def evidence():
    sums_SPC = np.zeros((3, 2, len(COLUMNS)))
    for name, sums in SUMS.items():
        sums_SPC[:, :, COLUMNS.index(name)] = sums
    for index, temperature in enumerate(TEMPERATURES):  # most likely at 0.8
        distance = abs(index - TEMPERATURES.index(0.8))
        sums_SPC[0, REST, COLUMNS.index(f"fit_{temperature:g}")] = -25.0 - distance
        sums_SPC[1, HEAD, COLUMNS.index(f"stray_{temperature:g}")] = 13.0 - index
    return OnPolicyEvidence(
        columns=list(COLUMNS),
        sums_SPC=sums_SPC,
        temperature_S=np.array([0.6, 0.6, 1.0]),
        top_p_S=np.full(3, 0.95),
        retokenized_S=np.array([False, True, False]),
    )


def rounding(tokens):
    return ROUNDING_NATS**2 * tokens


def test_z_is_the_difference_in_standard_errors(evidence):
    expected = [-2 / np.sqrt(9 + rounding(100)), -8 / np.sqrt(1 + rounding(20)), 0.0]
    np.testing.assert_allclose(evidence.z(), expected)


def test_difference_and_its_error_are_a_token_s(evidence):
    assert evidence.difference() == pytest.approx((-48 + 38) / 124)
    assert evidence.difference(HEAD) == pytest.approx((-9 + 6.5) / 20)
    assert evidence.difference(REST) == pytest.approx((-39 + 31.5) / 104)
    assert evidence.standard_error() == pytest.approx(np.sqrt(10 + rounding(124)) / 124)


def test_own_share_lacks_what_is_unlikely_beyond_what_is_expected(evidence):
    # The first has fewer unlikely tokens than on-policy text; its share is still capped at 1.
    np.testing.assert_allclose(evidence.own_share(), [1.0, 1 - 5 / 20, 1.0])


def test_the_temperature_that_fits_best_is_the_likeliest_of_the_grid(evidence):
    fit = evidence.fit_temperature()
    assert (fit.best, fit.tokens) == (0.8, 26)
    assert fit.gain == pytest.approx(-25 + 30)
    assert fit.stray_share == pytest.approx((13 - TEMPERATURES.index(0.8)) / 26)
    assert evidence.take(np.array([2])).fit_temperature() is None


def template(toy):
    """The first tokens are sampled from another distribution."""
    elsewhere_NV = torch.where(
        toy.head_N[:, None], 2.5 * toy.noise(*toy.logits_NV.shape), toy.logits_NV
    )
    elsewhere_NV[toy.sure_N] = toy.logits_NV[toy.sure_N]
    return toy.drawn(logits_NV=elsewhere_NV)


def another_model(toy, distance=4.0):
    """Sampled from a model that is sure of mostly the same tokens."""
    return toy.drawn(logits_NV=toy.logits_NV + distance * toy.noise(*toy.logits_NV.shape))


def further_trained(toy):
    """Sampled from a revision that was trained further at some positions."""
    learned_NV = 1.5 * toy.noise(*toy.logits_NV.shape) * toy.some(0.4)[:, None]
    return toy.drawn(logits_NV=toy.logits_NV + learned_NV)


def shifted(toy):
    """Every id is off by one."""
    return (toy.drawn() + 1) % toy.logits_NV.shape[1]


def replaced(toy, where_N):
    """Other tokens at some positions."""
    return torch.where(where_N, toy.any_token(), toy.drawn())


CASES = {
    "scrambled": (shifted, {}, "scrambled", "shifted by one"),
    "foreign": (another_model, {}, "foreign", "another model wrote the text"),
    "edited": (lambda toy: replaced(toy, toy.some(0.02)), {}, "edited", "isolated tokens are unl"),
    "colder": (lambda toy: toy.drawn(0.3), {}, "temperature", "about 0.3, but 0.6 was logged"),
    "hotter": (lambda toy: toy.drawn(1.0), {}, "temperature", "about 1, but 0.6 was logged"),
    "hotter without top_p": (
        lambda toy: toy.drawn(1.0, 1.0),
        {"top_p": 1.0},
        "temperature",
        "with a top_p of 1",
    ),
    "template": (template, {}, "template", "chat template"),
    "retokenized": (
        # Some of the uncertain words are tokenized differently.
        lambda toy: replaced(toy, toy.some(0.06) & ~toy.sure_N),
        {"retokenized": True},
        "retokenized",
        "or it was edited",
    ),
    "revision": (further_trained, {}, "revision_or_settings", "another revision or quantization"),
    "top_p not logged": (
        lambda toy: toy.drawn(0.6, 1.0),
        {"top_p": 0.8},
        "revision_or_settings",
        "sampling settings were not logged",
    ),
}
"""The text, how it was logged, its cause and words of the verdict."""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_each_cause_is_named(case, seed):
    text, logged, cause, words = CASES[case]
    toy = ToyTarget(seed)
    verdict = judge_evidence(toy.evidence(text(toy), **logged))
    assert (verdict.own, verdict.cause) == (False, cause), verdict.text
    assert words in verdict.text


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(0.6, 0.95), (1.0, 1.0), (0.0, 1.0), (0.3, 0.8), (1.5, 0.9)]
)
def test_its_own_text_is_its_own(temperature, top_p):
    for seed in range(8):
        toy = ToyTarget(seed)
        evidence = toy.evidence(toy.drawn(temperature, top_p), temperature, top_p)
        verdict = judge_evidence(evidence)
        assert verdict.own is True and verdict.cause == "own", verdict.text
        assert is_on_policy(evidence)


def test_few_sequences_of_another_kind_are_told_from_the_rest():
    toy = ToyTarget()
    on_policy = [toy.evidence(toy.drawn()) for _ in range(2)]
    foreign = toy.evidence(another_model(toy)).take(slice(0, 12))
    verdict = judge_evidence(together(*on_policy, foreign))
    assert (verdict.own, verdict.cause) == (False, "foreign")
    assert verdict.text.startswith(f"12 of {2 * SEQUENCES + 12} sequences are off-policy: ")


def test_too_little_text_says_nothing():
    toy = ToyTarget()
    sequences = FEWEST_TOKENS // LENGTH
    scrambled = toy.evidence(shifted(toy))
    assert judge_evidence(scrambled.take(slice(0, sequences))).own is None
    assert judge_evidence(scrambled.take(slice(0, sequences + 1))).own is False
