"""Predicted vs measured throughput: replay's acceptance length and step times against serving.

    predict_served(speed, blocks, {"base": 2, "custom": 5}, times=times, prompt_tokens=210,
                   replayed={"base": base, "custom": custom})

Predicts twice. With step times measured before serving it is a forecast; with the steps that the
servers recorded in each variant's own blocks it is an account of the measured speed. Where the
second is right and the first is wrong, the machine's speed drifted before serving or between
blocks. Where the second is wrong, the calculation or the acceptance length is.

Responses differ in how much they accept. Where a few requests decode at once, the last of them has
the engine to itself, and one acceptance length for all would end them together (documents, eight at
once and sixteen in all: 18 % too fast). So each response's steps are drawn.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.eval.bench.server_pool import DraftPlan
from outrider.eval.prediction.throughput_simulator import closed_loop_seconds
from outrider.eval.replay.replay import ReplaySums
from outrider.eval.replay.response_segments import POSITION_NAMES, POSITIONS
from outrider.eval.results.parts import RATIOS, VARIANTS, Drafter, Estimate, Variant
from outrider.eval.results.prediction import (
    PredictedDrafter,
    PredictedRatio,
    PredictedRow,
    PredictedSpeed,
    PredictedTarget,
    Prediction,
    StepMs,
)
from outrider.eval.results.speed import SpeedRow
from outrider.eval.speed_checks import scheduled
from outrider.serving.step_times import StepCosts, StepTimes, costs_of
from outrider.serving.vllm_hooks.step_recorder import Drafts

Costs = Mapping[Variant, StepCosts | None]
Replays = Mapping[Drafter, ReplaySums]
Blocks = Sequence[Mapping[str, Any]]

DRAWS = 16
"""How often a request's steps are drawn."""
NEAR = 10
"""Least number of responses that they are drawn from."""


def predict_served(
    speed: Mapping[str, SpeedRow],
    blocks: Blocks,
    plan: DraftPlan,
    replayed: Replays,
    times: Mapping[Drafter, StepTimes] | None,
    prompt_tokens: float,
    idle_s: Mapping[int, float] | None = None,
) -> dict[str, PredictedRow]:
    """By concurrency: predicted and measured tokens/s, speed-ups, and step times.

    `speed` summarises the timed `blocks`. `plan` has the drafts of base and custom: one number, or
    a schedule by batch size. `times` is None where steps of this engine mode were not timed;
    `idle_s` are those of the drafting engine without drafts, by batch size, for schedules with 0.
    """
    most = max(map(int, speed))
    timed: Costs = {
        variant: None
        if times is None
        else _costs(
            times["base" if variant == "base" else "custom"],
            plan.get(variant, 0),
            most,
            idle_s or {},
        )
        for variant in VARIANTS
    }
    as_served: Costs = {
        variant: costs_of([block["steps"] for block in blocks if block["variant"] == variant])
        for variant in VARIANTS
    }
    table = {}
    for concurrency, served in speed.items():
        own = [block for block in blocks if block["concurrency"] == int(concurrency)]
        table[concurrency] = _row(
            int(concurrency),
            served,
            timed,
            as_served,
            _tokens_per_s(own, plan, replayed, timed, prompt_tokens),
            _tokens_per_s(own, plan, replayed, as_served, prompt_tokens),
        )
    return table


def by_batch_size(drafts: Drafts, most: int) -> dict[int, int]:
    """Number of drafts in batches of 1 to `most` requests."""
    rows = [(1, most, drafts)] if isinstance(drafts, int) else [*drafts]
    return {size: scheduled(rows, size) or 0 for size in range(1, most + 1)}


def _costs(times: StepTimes, drafts: Drafts, most: int, idle_s: Mapping[int, float]) -> StepCosts:
    """Costs of the steps with these drafts, of batches up to `most` where they have a schedule."""
    if isinstance(drafts, int):
        return times.of(drafts)
    prompt_token_s = times.prompt_token_s[1]
    idle = StepCosts(idle_s, prompt_token_s) if idle_s else times.of(0)
    step_s = {
        size: (times.of(k) if k else idle).seconds(size)
        for size, k in by_batch_size(drafts, most).items()
    }
    return StepCosts(step_s, prompt_token_s)


def _row(
    concurrency: int,
    served: SpeedRow,
    timed: Costs,
    as_served: Costs,
    timed_speeds: Mapping[Variant, float] | None,
    served_speeds: Mapping[Variant, float] | None,
) -> PredictedRow:
    def target(variant: Variant) -> PredictedTarget:
        measured = served.of(variant).tokens_per_s
        speed = PredictedSpeed(
            served=measured,
            timed=_against(measured, timed_speeds, lambda speeds: speeds[variant]),
            as_served=_against(measured, served_speeds, lambda speeds: speeds[variant]),
        )
        step_ms = StepMs(
            timed=_milliseconds(timed[variant], concurrency),
            as_served=_milliseconds(as_served[variant], concurrency),
        )
        return PredictedTarget(step_ms=step_ms, tokens_per_s=speed)

    def ratio(name: str) -> PredictedRatio:
        over, under = RATIOS[name]
        measured: Estimate = served.ratio(name)
        return PredictedRatio(
            served=measured,
            timed=_against(measured.value, timed_speeds, lambda s: s[over] / s[under]),
            as_served=_against(measured.value, served_speeds, lambda s: s[over] / s[under]),
        )

    return PredictedRow(
        none=target("none"),
        base=PredictedDrafter(**dict(target("base")), over_none=ratio("base_over_none")),
        custom=PredictedDrafter(**dict(target("custom")), over_none=ratio("custom_over_none")),
        custom_over_base=ratio("custom_over_base"),
    )


def _against(
    measured: float,
    speeds: Mapping[Variant, float] | None,
    figure: Callable[[Mapping[Variant, float]], float],
) -> Prediction | None:
    if speeds is None:
        return None
    value = figure(speeds)
    return Prediction(value=value, difference=value / measured - 1)


def _milliseconds(costs: StepCosts | None, concurrency: int) -> float | None:
    return None if costs is None else 1000 * costs.seconds(concurrency)


def _tokens_per_s(
    blocks: Blocks, plan: DraftPlan, replayed: Replays, costs: Costs, prompt_tokens: float
) -> dict[Variant, float] | None:
    """Predicted tokens/s of each variant; None where the step times of one are not known."""
    found: dict[Variant, float] = {}
    for variant, cost in costs.items():
        if cost is None:
            return None
        own = [block for block in blocks if block["variant"] == variant]
        random = np.random.default_rng(0)
        seconds = 0.0
        for block in own:
            later_N = np.maximum(np.asarray(block["request_tokens"]) - 1, 0)
            numbers = by_batch_size(plan.get(variant, 0), block["concurrency"])
            columns = sorted(set(numbers.values()))
            if variant == "none":
                drawn_DNK = later_N[None, :, None]
            else:
                drawn_DNK = _drawn_steps(replayed[variant], columns, later_N, random)
            loops = [
                closed_loop_seconds(
                    steps_NK.tolist(),
                    block["concurrency"],
                    cost,
                    prompt_tokens,
                    {size: columns.index(k) for size, k in numbers.items()}.__getitem__,
                )
                for steps_NK in drawn_DNK
            ]
            seconds += float(np.mean(loops))
        found[variant] = sum(block["output_tokens"] for block in own) / seconds
    return found


def _drawn_steps(
    replayed: ReplaySums,
    numbers: Sequence[int],
    later_N: NDArray[Any],
    random: np.random.Generator,
) -> NDArray[np.float64]:
    """[DRAWS, N, K] steps with each number of drafts, for numbers of tokens after the first.

    The mean is that of all responses pooled, at these places of a response. Each draw varies as one
    of replay's responses of about that length varies around them; a response is drawn in proportion
    to its tokens.
    """
    tokens_R = replayed.tokens_R
    # Without drafts, a step per token.
    steps_RK = np.stack([replayed.steps_RK[:, k - 1] if k else tokens_R for k in numbers], axis=1)
    near = min(max(len(tokens_R) // 5, NEAR), len(tokens_R))
    drawn_DNK = np.empty((DRAWS, len(later_N), len(numbers)))
    for place, later in enumerate(later_N):
        like = np.argsort(np.abs(tokens_R - later), kind="stable")[:near]
        tokens_L1, steps_LK = tokens_R[like, None], steps_RK[like]
        more_LK = steps_LK / tokens_L1 * (tokens_L1.sum() / steps_LK.sum(axis=0))
        shares_L = tokens_L1[:, 0] / tokens_L1.sum()
        drawn_DNK[:, place] = random.choice(more_LK, p=shares_L, size=DRAWS)
    mean_NK = [_mean_steps(replayed, k, later_N) if k else later_N for k in numbers]
    return drawn_DNK * np.stack(mean_NK, axis=1)


def _mean_steps(replayed: ReplaySums, k: int, later_N: NDArray[Any]) -> NDArray[np.float64]:
    """[N] mean steps for each number of tokens after the first.

    Acceptance depends on the position in the response: a short or cut response is all beginning.
    """
    pooled = replayed.steps_RK[:, k - 1].sum() / replayed.tokens_R.sum()
    begins = (0, *(end - 1 for end in POSITIONS))  # the first token has no step
    regions = list(replayed.regions)
    mean_N = np.zeros(len(later_N))
    for begin, end, name in zip(begins, (*begins[1:], np.inf), POSITION_NAMES, strict=True):
        rate = pooled
        if name in regions:
            place = regions.index(name)
            if tokens := replayed.region_tokens_RG[:, place].sum():
                rate = replayed.region_steps_RGK[:, place, k - 1].sum() / tokens
        mean_N += np.clip(later_N - begin, 0, end - begin) * rate
    return mean_N
