import pytest

from outrider.eval.choose_k import choose_k, predict_served, predicted_tokens_per_s, recipe_times, served_step_ms
from outrider.eval.config import EvalConfig
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


def test_a_request_is_its_first_token_and_steps():
    # 100 ms, then 100 tokens at 2.5 a step of 20 ms: 800 ms.
    assert predicted_tokens_per_s(4, 2.5, 20.0, 100.0, 101) == pytest.approx(4 * 101 / 0.9)


def test_what_a_server_adds_to_a_step_is_read_off_serving_without_speculation():
    assert served_step_ms(4, predicted_tokens_per_s(4, 1.0, 20.0, 100.0, 101), 100.0, 101) == pytest.approx(20.0)
    # No speculation: 50 ms, then 100 tokens at 20 ms, of which the engine takes 15. So a step of two drafts takes 18 + 5 ms served.
    rate = {"none": 101 / 2.05, "base": 101 / (0.05 + 100 / 2.0 * 0.023), "custom": 101 / (0.05 + 100 / 2.5 * 0.025)}
    row = {
        variant: {"tokens_per_s": speed, "output_tokens": 303, "requests": 3, "ttft_ms": {"p50": 50.0}}
        for variant, speed in rate.items()
    }
    results = {
        "k": 2,
        "choice": {"step_ms": {"1": [15.0, 16.5, 18.0]}},
        "replay": {"base": {"value": 2.0}, "custom": {"value": 2.5}},
        "served": {"eager": {"speed": {"1": row, "64": row}}},
    }
    table = predict_served(results, EvalConfig())
    assert table.keys() == {"1"} and table["1"]["server_ms"] == pytest.approx(5.0)
    assert table["1"]["base"]["relative_difference"] == pytest.approx(0.0)
    assert table["1"]["custom"]["predicted"] == pytest.approx(101 / (0.05 + 100 / 2.5 * 0.023))
    assert table["1"]["custom"]["relative_difference"] > 0.05
