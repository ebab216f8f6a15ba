"""Shares are chosen on validation traffic: held-out traffic is read for the chosen one only."""

import pytest

from outrider.eval.config import EvalConfig
from outrider.eval.replay.heldout_replay import sweep
from tests.eval.sample_results import K, sample_replay

ACCEPTANCE = {
    (0.25, "validation"): 0.7,
    (0.5, "validation"): 0.8,
    (0.75, "validation"): 0.75,
    (0.25, "heldout"): 0.9,  # better there by chance; nothing may depend on it
    (0.5, "heldout"): 0.65,
    (0.5, "general"): 0.6,
}


@pytest.mark.parametrize(("custom", "chosen"), [(0.7, 0.5), (0.85, None)])
def test_only_the_best_share_of_validation_is_measured_on_other_parts(custom, chosen):
    replayed = []

    def replay_mixture(share, part):
        replayed.append((share, part))
        return sample_replay(ACCEPTANCE[share, part])

    validation = {"base": sample_replay(0.6), "custom": sample_replay(custom)}
    measured = {"heldout": sample_replay(0.6), "general": sample_replay(0.6)}
    settings = EvalConfig(interpolation=[0.25, 0.5, 0.75])
    rows = sweep(settings, K, validation, measured, replay_mixture)
    mixtures = {row.share: row for row in rows}
    others = [(chosen, "heldout"), (chosen, "general")] if chosen else []
    assert replayed == [(share, "validation") for share in (0.25, 0.5, 0.75)] + others
    assert {share for share, row in mixtures.items() if row.heldout} == ({chosen} - {None})
    base = sample_replay(0.6).acceptance_length()[K - 1]
    expected = sample_replay(0.75).acceptance_length()[K - 1] / base
    assert mixtures[0.75].validation.value == pytest.approx(expected)
    if chosen:
        expected = sample_replay(0.65).acceptance_length()[K - 1] / base
        assert mixtures[chosen].heldout.value == pytest.approx(expected)
