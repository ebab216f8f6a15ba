"""Times and costs computed from recorded steps."""

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.step_times import (
    StepCosts,
    drafts_of,
    summarise_steps,
)
from outrider.serving.vllm_hooks.step_recorder import RUN, Step


def recorded(size: int, depth: int, seconds, prompt_token_s: float) -> list[Step]:
    """A closed loop of `size` requests of 37 steps each, as the recorder writes it."""
    steps, verified, waiting = [], min(depth, 1), size
    for count in range(3000):
        drafts = 1 + (count // RUN) % depth if depth else 0
        new = waiting if count % 40 == 0 else 0
        tokens = size * (verified + 1) + new * 200
        ending = count % 37 == 36
        spent = seconds(drafts, size) + new * 200 * prompt_token_s
        steps.append(Step(spent, size, drafts, tokens, new, new * 200, not ending))
        verified, waiting = drafts, 1
    return steps


def test_step_times_come_from_steps_that_only_decode() -> None:
    def seconds(k: int, size: int) -> float:
        return 0.010 + 0.003 * k + 0.002 * size * (k + 1)

    plain = {size: recorded(size, 0, seconds, 1e-4) for size in (1, 4)}
    drafting = {size: recorded(size, 3, seconds, 2e-4) for size in (1, 4)}
    times = summarise_steps(plain, drafting, 3)
    for size in (1, 4):
        assert times.step_s[size] == pytest.approx([seconds(k, size) for k in range(4)])
    assert times.prompt_token_s == pytest.approx((1e-4, 2e-4))
    # Occasional stalls, and steps between two numbers of drafts, do not change them.
    drafting[1][50::97] = [step._replace(seconds=1.0) for step in drafting[1][50::97]]
    assert summarise_steps(plain, drafting, 3).step_s[1] == pytest.approx(times.step_s[1])


def test_drafts_are_summed_over_steps_without_prompts() -> None:
    steps = recorded(4, 1, lambda k, size: 0.01, 2e-4)
    without = [step for step in steps if not step.prompt_tokens]
    assert 0 < len(without) < len(steps)
    for size, (count, drafts) in drafts_of(steps).items():
        own = [step.drafts for step in without if step.requests == int(size)]
        assert (count, drafts) == (len(own), sum(own))


def test_batch_sizes_are_interpolated_and_extrapolated() -> None:
    costs = StepCosts({1: 0.01, 4: 0.04, 8: 0.06}, 0.0)
    assert [costs.seconds(size) for size in (1, 2, 4, 6, 8, 12)] == pytest.approx(
        [0.01, 0.02, 0.04, 0.05, 0.06, 0.08]
    )
    assert StepCosts({4: 0.04, 8: 0.06}, 0.0).seconds(2) == pytest.approx(0.03)
    assert StepCosts({4: 0.04}, 0.0).seconds(1) == 0.04


def test_responses_too_short_to_time_are_an_error() -> None:
    decoding, prompts_only = (
        [Step(0.03, 1, 0, 1, 0, 0, True)] * 10,
        [Step(0.03, 1, 1, 100, 1, 100, False)] * 10,
    )
    message = r"at 1 requests at once there is no step that only decodes with 1 drafts .*eval\.k"
    with pytest.raises(OutriderError, match=message):
        summarise_steps({1: decoding}, {1: prompts_only}, 1)
