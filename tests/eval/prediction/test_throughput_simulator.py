"""The simulated closed loop against sums by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from outrider.eval.prediction.predicted import _drawn_steps, _mean_steps, predict_served
from outrider.eval.prediction.throughput_simulator import closed_loop_seconds
from outrider.eval.replay.response_segments import POSITION_NAMES
from outrider.eval.results.parts import RATIOS, Estimate
from outrider.eval.results.prediction import StepMs
from outrider.eval.results.speed import Block, SpeedRow
from outrider.serving.step_times import StepCosts, StepTimes, costs_of

# 10 ms per step and 10 ms per request without drafts; with two drafts 20 and 20. A prompt of 100
# tokens takes 50 ms, and 100 ms with a drafter.
TIMES = StepTimes({1: [0.02, 0.03, 0.04], 4: [0.05, 0.075, 0.1]}, prompt_token_s=(0.0005, 0.001))
TIMED = {"base": TIMES, "custom": TIMES}


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


def test_with_k_by_batch_size_every_step_does_its_share_of_a_request():
    # Alone with 2 drafts a request takes 4 steps, two at once without drafts 10.
    column = {1: 0, 2: 1}.__getitem__
    costs = TIMES.of(0)
    # Prompts; 10 steps of both together.
    both = closed_loop_seconds([[4, 10], [4, 10]], 2, costs, 100, column)
    assert both == pytest.approx((0.03 + 0.1) + 10 * 0.03)
    # The first ends after 5 steps; the other has done half of its work, and needs 2 of 4 alone.
    apart = closed_loop_seconds([[2, 5], [4, 10]], 2, costs, 100, column)
    assert apart == pytest.approx((0.03 + 0.1) + 5 * 0.03 + 2 * 0.02)


TOKENS, LENGTHS, K = [101, 81, 121, 101], {"base": 2.0, "custom": 2.5}, 2
BOTH = {"base": K, "custom": K}


def replayed(lengths, spread=1.0):
    """Responses of 100 tokens, half above and half below the pooled acceptance length."""
    steps = {
        variant: 100 / length * np.array([spread, 2 - spread])
        for variant, length in lengths.items()
    }
    return {
        variant: SimpleNamespace(
            tokens_R=np.array([100.0, 100.0]), steps_RK=np.stack([own, own], axis=1), regions=()
        )
        for variant, own in steps.items()
    }


def served(slower: dict[str, float], steps: bool = True) -> tuple[dict, list[dict]]:
    """Two repeats of closed loops of two requests; `slower` is the machine's drift by variant."""
    blocks = []
    for variant in ("none", "base", "custom") * 2:
        k, by = 0 if variant == "none" else K, slower[variant]
        costs = TIMES.of(k)
        prompts = [3, 400, by * (3 * costs.seconds(2) + 400 * costs.prompt_token_s)]
        decoding = {str(size): [50, 50 * by * costs.seconds(size)] for size in (1, 2)}
        blocks.append(
            {
                "variant": variant,
                "concurrency": 2,
                "request_tokens": TOKENS,
                "output_tokens": sum(TOKENS),
                "seconds": by * loop(TOKENS, 2, LENGTHS.get(variant, 1.0), k),
                "steps": {"decoding": decoding, "prompts": {"2": prompts}}
                if steps
                else {"decoding": {}, "prompts": {}},
            }
        )
    speeds = {block["variant"]: block["output_tokens"] / block["seconds"] for block in blocks}
    figures = {name: Block.model_construct(tokens_per_s=speed) for name, speed in speeds.items()}
    for name, (over, under) in RATIOS.items():
        value = speeds[over] / speeds[under]
        figures[name] = Estimate(value=value, low=value, high=value)
    return {"2": SpeedRow.model_construct(**figures)}, blocks


def test_a_drift_that_meets_both_engines_alike_leaves_the_speed_up_foretold():
    speed, blocks = served(dict.fromkeys(("none", "base", "custom"), 1.7))
    row = predict_served(speed, blocks, BOTH, replayed(LENGTHS), TIMED, prompt_tokens=100)["2"]
    assert row.none.tokens_per_s.timed.difference == pytest.approx(1.7 - 1)
    for variant in LENGTHS:
        ratio = row.of(variant).over_none
        assert ratio.timed.value == pytest.approx(ratio.served.value)
        assert ratio.served is speed["2"].ratio(f"{variant}_over_none")
    assert row.custom_over_base.timed.difference == pytest.approx(0, abs=1e-9)
    assert dict(row.none.step_ms) == pytest.approx({"timed": 30, "as_served": 51})
    assert dict(row.custom.step_ms) == pytest.approx({"timed": 60, "as_served": 102})


def test_the_steps_that_served_account_for_what_the_timed_ones_could_not_foretell():
    speed, blocks = served({"none": 1.0, "base": 1.5, "custom": 1.2})
    row = predict_served(speed, blocks, BOTH, replayed(LENGTHS), TIMED, prompt_tokens=100)["2"]
    for variant in LENGTHS:
        assert row.of(variant).over_none.timed.difference == pytest.approx(
            {"base": 0.5, "custom": 0.2}[variant]
        )
        assert row.of(variant).over_none.as_served.difference == pytest.approx(0, abs=1e-9)
        assert row.of(variant).tokens_per_s.as_served.difference == pytest.approx(0, abs=1e-9)
    # A wrong acceptance length is not accounted for by any steps.
    other = predict_served(
        speed, blocks, BOTH, replayed(LENGTHS | {"custom": 2.2}), TIMED, prompt_tokens=100
    )["2"]
    assert other.custom.tokens_per_s.as_served.difference < -0.05 and other.base == row.base


def test_a_schedule_is_predicted_from_the_steps_and_lengths_of_its_numbers():
    """Two drafts alone, none in batches: there custom is as fast as its engine without drafts."""
    speed, blocks = served({"none": 1.0, "base": 1.0, "custom": 1.0})
    schedule = [(1, 1, K), (2, 4, 0)]
    plan = {"base": K, "custom": schedule}
    idle_s = {1: 0.025, 4: 0.055}  # 35 ms for two

    def of(plan):
        row = predict_served(speed, blocks, plan, replayed(LENGTHS), TIMED, 100, idle_s)["2"]
        return row.custom.tokens_per_s.timed.value

    assert of({"base": K, "custom": [(1, 4, K)]}) == pytest.approx(of(BOTH))
    # Without drafts: a step per token, at the costs of the idle drafter.
    idle = StepCosts(idle_s, TIMES.prompt_token_s[1])
    seconds = closed_loop_seconds([n - 1 for n in TOKENS], 2, idle, 100)
    nothing = of({"base": K, "custom": [(1, 4, 0)]})
    assert nothing == pytest.approx(sum(TOKENS) / seconds)
    # With drafts for the last request, which is alone.
    assert nothing < of(plan) < of(BOTH)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_responses_that_accept_unlike_end_one_after_the_other(concurrency):
    speed, blocks = served({"none": 1.0, "base": 1.0, "custom": 1.0})
    full_steps_cost_little_more = StepTimes(
        {1: [0.02, 0.03, 0.04], 8: [0.025, 0.035, 0.045]}, (0.0005, 0.001)
    )
    for block in blocks:
        block["concurrency"], block["request_tokens"] = (
            concurrency,
            [101] * (16 if concurrency == 8 else 200),
        )
    alike, unlike = (
        predict_served(
            {f"{concurrency}": speed["2"]},
            blocks,
            BOTH,
            replayed(LENGTHS, spread),
            {"base": full_steps_cost_little_more, "custom": full_steps_cost_little_more},
            100,
        )[f"{concurrency}"]
        for spread in (1.0, 1.4)
    )
    assert unlike.none == alike.none
    for variant in LENGTHS:
        kept = (
            unlike.of(variant).tokens_per_s.timed.value / alike.of(variant).tokens_per_s.timed.value
        )
        if concurrency == 1:  # one after the other it is the pooled acceptance length that counts
            assert kept == pytest.approx(1, rel=0.02)
        else:  # the last ones of eight have the engine to themselves
            assert 0.75 < kept < 0.95


def test_a_response_s_steps_are_drawn_from_those_of_its_length_and_are_right_on_average():
    short, long = [(10.0, 10.0)] * 10 + [(10.0, 2.5)] * 10, [(100.0, 50.0)] * 80
    tokens_R, steps_R = np.array(short + long).T
    sums = SimpleNamespace(tokens_R=tokens_R, steps_RK=steps_R[:, None], regions=())
    later_N = np.array([10] * 500 + [100] * 500)
    drawn_DN = _drawn_steps(sums, [1], later_N, np.random.default_rng(0))[..., 0]
    pooled = steps_R.sum() / tokens_R.sum()
    assert (
        drawn_DN[:, :500].mean() == pytest.approx(10 * pooled, rel=0.02)
        and drawn_DN[:, :500].std() > 2
    )
    assert drawn_DN[:, 500:] == pytest.approx(100 * pooled)


def test_a_response_that_is_cut_accepts_as_beginnings_do():
    # Of 300 tokens after the first, the first 127 take a step per four, the others one per two.
    tokens, steps = np.array([127.0, 173.0, 0.0]), np.array([127 / 4, 173 / 2, 0.0])
    sums = SimpleNamespace(
        tokens_R=np.array([300.0]),
        steps_RK=np.array([[steps.sum()]]),
        regions=POSITION_NAMES,
        region_tokens_RG=tokens[None],
        region_steps_RGK=steps[None, :, None],
    )
    assert _mean_steps(sums, 1, np.array([0, 100, 127, 300])) == pytest.approx(
        [0, 25, 127 / 4, steps.sum()]
    )
    beyond = 600 - 511  # of which replay has nothing: as everything together
    by_hand = 127 / 4 + (511 - 127) / 2 + beyond * steps.sum() / 300
    assert _mean_steps(sums, 1, np.array([600])) == pytest.approx([by_hand])


def test_without_timed_or_recorded_steps_nothing_is_made_up():
    speed, blocks = served({"none": 1.0, "base": 1.0, "custom": 1.0}, steps=False)
    row = predict_served(speed, blocks, BOTH, replayed(LENGTHS), None, prompt_tokens=100)["2"]
    assert row.custom.over_none.served == speed["2"].custom_over_none
    assert row.custom.over_none.timed is row.custom.over_none.as_served is None
    assert row.custom.step_ms == StepMs(timed=None, as_served=None)


def test_tallied_steps_are_pooled_over_blocks():
    tallies = [
        {"decoding": {"1": [10, 0.2], "2": [10, 0.5]}, "prompts": {"2": [2, 300, 0.16]}},
        {"decoding": {"1": [30, 1.0]}, "prompts": {"1": [1, 100, 0.08]}},
    ]
    costs = costs_of(tallies)
    assert costs.step_s == pytest.approx({1: 0.03, 2: 0.05})
    assert costs.prompt_token_s == pytest.approx((0.16 - 0.1 + 0.08 - 0.03) / 400)
    assert costs_of([{"decoding": {}, "prompts": {"1": [1, 100, 0.08]}}]) is None
