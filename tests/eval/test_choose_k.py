import pytest

from outrider.eval.choose_k import choose_k, recipe_times
from outrider.serving.config import ServingConfig

LENGTHS = [1.8, 2.4, 2.8, 3.0]


def test_dear_drafts_shorten_k_and_cheap_ones_lengthen_it():
    dear = recipe_times(ServingConfig(target_step_ms=8, draft_step_ms=8, fixed_step_ms=1), 4)
    cheap = recipe_times(ServingConfig(target_step_ms=80, draft_step_ms=1, fixed_step_ms=1), 4)
    assert choose_k(LENGTHS, dear)["k"] == 1
    assert choose_k(LENGTHS, cheap)["k"] == 4
    assert choose_k(LENGTHS, dear)["tokens_per_s"]["1"][1] == pytest.approx(2.4 / (0.008 + 0.001 + 2 * 0.008))
    assert recipe_times(ServingConfig(target_step_ms=8), 4) is None


def test_every_batch_size_has_its_own_and_ranges_end_at_what_was_measured():
    flat, steep = [0.02] * 5, [0.01, 0.02, 0.04, 0.06, 0.08]
    chosen = choose_k(LENGTHS, {1: flat, 2: flat, 8: steep, 4: [0.01, 0.02, 0.02, 0.04, 0.06]})
    assert chosen["k"] == 4
    assert chosen["k_per_batch_size"] == [[1, 2, 4], [3, 4, 2], [5, 8, 1]]
    assert chosen["tokens_per_s"]["8"][0] == pytest.approx(8 * 1.8 / 0.02)


def test_a_tie_takes_the_smaller_k():
    assert choose_k([2.0, 2.0], {1: [0.01, 0.01, 0.01]})["k"] == 1
