"""The closed loop gone through step by step, against sums done by hand."""

import pytest

from outrider.eval.closed_loop import closed_loop_seconds
from outrider.eval.predicted import predict_served
from outrider.serving.step_times import StepTimes

# 10 ms a step and 10 ms a request without drafts; with two of them 20 and 20. A prompt of 100 tokens: 50 ms, 100 with a drafter.
TIMES = StepTimes({1: [0.02, 0.03, 0.04], 4: [0.05, 0.075, 0.1]}, prompt_token_s=(0.0005, 0.001))


def loop(tokens, concurrency, length=1.0, k=0):
    return closed_loop_seconds(tokens, concurrency, length, k, TIMES, prompt_tokens=100)


def test_lone_requests_one_after_the_other():
    # each: the prompt's step, and a step for every token after the first
    assert loop([5, 3], 1) == pytest.approx((0.07 + 4 * 0.02) + (0.07 + 2 * 0.02))
    assert loop([1], 1) == pytest.approx(0.07)


def test_drafts_deliver_several_tokens_a_step_and_carry_what_rounding_leaves():
    assert loop([11], 1, length=2.5, k=2) == pytest.approx(0.14 + 4 * 0.04)
    # 10 / 4 = 2.5 steps a request: 2, then 3, then 2, then 3
    assert loop([11] * 4, 1, length=4.0, k=2) == pytest.approx(4 * 0.14 + 10 * 0.04)


def test_a_successor_waits_for_the_step_under_way_and_its_prompt_delays_everybody():
    # Two seats, three requests: 3, 6 and 2 tokens.
    # step 1: both prompts, 0.03 + 2 x 0.05; steps 2, 3: both decode; the first ends. Step 4: one decodes, the third is on its way.
    # Step 5: its prompt, beside the one that decodes; step 6: both decode their last.
    by_hand = (0.03 + 0.1) + 2 * 0.03 + 0.02 + (0.03 + 0.05) + 0.03
    assert loop([3, 6, 2], 2) == pytest.approx(by_hand)


def test_every_seat_is_taken_in_the_long_run():
    # Alike requests end together: 4 prompts, 9 steps of 4, again and again.
    round_s = 0.05 + 4 * 0.05 + 9 * 0.05
    assert loop([10] * 400, 4) == pytest.approx(100 * round_s)
    # Where they differ prompts and steps mix: slower than without any prompts, faster than one request after the other.
    mixed = loop([8, 12] * 200, 4)
    assert 390 * 10 * 0.05 / 4 < mixed < loop([8, 12] * 200, 1)


def test_the_speed_up_is_foretold_whatever_the_machines_drift():
    drift = 1.7  # the machine serves so much slower than when its steps were timed
    tokens, lengths = [101, 81, 121, 101], {"base": 2.0, "custom": 2.5}
    blocks = [
        {
            "variant": variant,
            "concurrency": 2,
            "request_tokens": tokens,
            "output_tokens": sum(tokens),
            "seconds": drift * loop(tokens, 2, lengths.get(variant, 1.0), 0 if variant == "none" else 2),
        }
        for variant in ("none", "base", "custom", "none", "base", "custom")
    ]
    speed = {block["variant"]: {"tokens_per_s": block["output_tokens"] / block["seconds"]} for block in blocks}
    for variant in lengths:
        speed[f"{variant}_over_none"] = {"value": speed[variant]["tokens_per_s"] / speed["none"]["tokens_per_s"]}
    speed["custom_over_base"] = {"value": speed["custom"]["tokens_per_s"] / speed["base"]["tokens_per_s"]}
    row = predict_served({"2": speed}, blocks, 2, lengths, TIMES, prompt_tokens=100)["2"]
    assert row["none"]["relative_difference"] == pytest.approx(drift - 1)
    for variant in lengths:
        assert row[variant]["relative_difference"] == pytest.approx(0, abs=1e-9)
        assert row[variant]["over_none"]["predicted"] == pytest.approx(speed[f"{variant}_over_none"]["value"])
    assert row["custom_over_base"]["predicted"] == pytest.approx(speed["custom_over_base"]["value"])
    slower = predict_served({"2": speed}, blocks, 2, lengths | {"custom": 2.2}, TIMES, prompt_tokens=100)["2"]
    assert slower["custom"]["relative_difference"] < -0.05 and slower["base"] == row["base"]
