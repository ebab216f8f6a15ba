"""The simulated closed loop against sums by hand."""

import numpy as np
import pytest

from outrider.eval.prediction.throughput_simulator import closed_loop_seconds
from outrider.serving.step_times import StepTimes

# 10 ms per step and 10 ms per request without drafts; with two drafts 20 and 20. A prompt of 100
# tokens takes 50 ms, and 100 ms with a drafter.
TIMES = StepTimes({1: [0.02, 0.03, 0.04], 4: [0.05, 0.075, 0.1]}, prompt_token_s=(0.0005, 0.001))


def loop(tokens, concurrency, length=1.0, k=0):
    return closed_loop_seconds(
        [(n - 1) / length for n in tokens], concurrency, TIMES.of(k), prompt_tokens=100
    )


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
    # Step 1: both prompts, 0.03 + 2 x 0.05. Steps 2 and 3: both decode; the first ends. Step 4: one
    # decodes, the third is on its way.
    # Step 5: its prompt, beside the one that decodes; step 6: both decode their last.
    by_hand = (0.03 + 0.1) + 2 * 0.03 + 0.02 + (0.03 + 0.05) + 0.03
    assert loop([3, 6, 2], 2) == pytest.approx(by_hand)


def test_every_seat_is_taken_in_the_long_run():
    # Alike requests end together: 4 prompts, 9 steps of 4, again and again.
    round_s = 0.05 + 4 * 0.05 + 9 * 0.05
    assert loop([10] * 400, 4) == pytest.approx(100 * round_s)
    # Where lengths differ, prompts and steps mix: slower than without prompts, faster than one
    # request at a time.
    mixed = loop([8, 12] * 200, 4)
    assert 390 * 10 * 0.05 / 4 < mixed < loop([8, 12] * 200, 1)


def test_what_steps_alike_add_up_to_is_what_they_add_up_to_one_by_one():
    def one_by_one(steps, concurrency, costs):
        """The same loop, every step on its own; whole steps only."""
        decoding, wanted, seconds = [], list(steps), 0.0
        arrived, on_the_way, wanted = wanted[:concurrency], [], wanted[concurrency:]
        while decoding or arrived or on_the_way:
            if not decoding and not arrived:
                arrived, on_the_way = on_the_way, []
            seconds += (
                costs.seconds(len(decoding) + len(arrived))
                + len(arrived) * 100 * costs.prompt_token_s
            )
            ended = sum(left == 1 for left in decoding) + sum(own == 0 for own in arrived)
            decoding = [left - 1 for left in decoding if left > 1] + [own for own in arrived if own]
            arrived, on_the_way, wanted = on_the_way, wanted[:ended], wanted[ended:]
        return seconds

    random = np.random.default_rng(0)
    for concurrency in (1, 2, 4, 8):
        steps = random.integers(0, 30, 25).tolist()
        found = closed_loop_seconds(steps, concurrency, TIMES.of(2), prompt_tokens=100)
        assert found == pytest.approx(one_by_one(steps, concurrency, TIMES.of(2)))
