"""Every cause is named on a toy target whose own text has none of them."""

import pytest
import torch

from outrider.data.on_policy.evidence import FEWEST_TOKENS, is_own, judge
from tests.data.toy_target import LENGTH, SEQUENCES, ToyTarget, together


def own(toy):
    return toy.evidence(toy.drawn())


def scrambled(toy):
    return toy.evidence((toy.drawn() + 1) % toy.logits_NV.shape[1])


def foreign(toy):
    """Another model, which is sure of mostly the same tokens."""
    return toy.evidence(toy.drawn(logits_NV=toy.logits_NV + 4.0 * toy.noise(*toy.logits_NV.shape)))


def edited(toy):
    """Some words are replaced."""
    return toy.evidence(torch.where(toy.some(0.02), toy.any_token(), toy.drawn()))


def colder_than_logged(toy):
    return toy.evidence(toy.drawn(0.3), temperature=0.6)


def hotter_than_logged(toy):
    return toy.evidence(toy.drawn(1.0), temperature=0.6)


def hotter_without_top_p(toy):
    return toy.evidence(toy.drawn(1.0, 1.0), temperature=0.6, top_p=1.0)


def template(toy):
    """The first tokens are sampled from another distribution."""
    elsewhere_NV = torch.where(
        toy.head_N[:, None], 2.5 * toy.noise(*toy.logits_NV.shape), toy.logits_NV
    )
    elsewhere_NV[toy.sure_N] = toy.logits_NV[toy.sure_N]
    return toy.evidence(toy.drawn(logits_NV=elsewhere_NV))


def tokenized_again(toy):
    """Some of the uncertain words are tokenized differently."""
    again_N = toy.some(0.06) & ~toy.sure_N
    return toy.evidence(torch.where(again_N, toy.any_token(), toy.drawn()), retokenized=True)


def another_revision(toy):
    """A revision that was trained further at some positions."""
    learned_NV = toy.logits_NV + 1.5 * toy.noise(*toy.logits_NV.shape) * toy.some(0.4)[:, None]
    return toy.evidence(toy.drawn(logits_NV=learned_NV))


def top_p_was_not_logged(toy):
    return toy.evidence(toy.drawn(0.6, 1.0), top_p=0.8)


CASES = {
    scrambled: ("scrambled", "shifted by one"),
    foreign: ("foreign", "another model wrote the text"),
    edited: ("edited", "single places are unlikely"),
    colder_than_logged: ("temperature", "about 0.3, logged is 0.6"),
    hotter_than_logged: ("temperature", "about 1, logged is 0.6"),
    hotter_without_top_p: ("temperature", "with a top_p of 1"),
    template: ("template", "chat template"),
    tokenized_again: ("retokenized", "or it was edited"),
    another_revision: ("revision_or_settings", "another revision or quantization"),
    top_p_was_not_logged: ("revision_or_settings", "sampling settings are not logged"),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_each_cause_is_named(case, seed):
    evidence = case(ToyTarget(seed))
    verdict = judge(evidence)
    cause, words = CASES[case]
    assert (verdict.own, verdict.cause) == (False, cause), verdict.text
    assert words in verdict.text


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(0.6, 0.95), (1.0, 1.0), (0.0, 1.0), (0.3, 0.8), (1.5, 0.9)]
)
def test_its_own_text_is_its_own(temperature, top_p):
    for seed in range(8):
        toy = ToyTarget(seed)
        evidence = toy.evidence(toy.drawn(temperature, top_p), temperature, top_p)
        verdict = judge(evidence)
        assert verdict.own is True and verdict.cause == "own", verdict.text
        assert is_own(evidence)


def test_few_sequences_of_another_kind_are_told_from_the_rest():
    toy = ToyTarget()
    verdict = judge(together(own(toy), own(toy), foreign(toy).take(slice(0, 12))))
    assert (verdict.own, verdict.cause) == (False, "foreign")
    assert verdict.text.startswith(f"12 of {2 * SEQUENCES + 12} sequences are off-policy: ")


def test_too_little_text_says_nothing():
    toy = ToyTarget()
    sequences = FEWEST_TOKENS // LENGTH
    assert judge(scrambled(toy).take(slice(0, sequences))).own is None
    assert judge(scrambled(toy).take(slice(0, sequences + 1))).own is False
