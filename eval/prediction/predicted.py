"""Whether speed could have been foretold: replay's acceptance length and the engine's steps against what was served.

Twice: with the steps as they were timed before the serving, which is a forecast, and with those of each variant's own blocks, which the measured
servers recorded, which is an account of it. Where the second is right and the first is not, the machine's speed drifted, before the serving
or between the blocks; where the second is wrong, the calculation or the acceptance length is.

    predict_served(speed, blocks, k=4, replayed={"base": base, "custom": custom}, times=times, prompt_tokens=210)

Responses differ in how much they accept: where a few requests decode at once, the last of them has the engine to itself, and one acceptance
length for all would end them together (documents, eight at once and sixteen in all: 18 % too fast). So each response's steps are drawn.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from outrider.eval.bench.metrics import RATIOS
from outrider.eval.prediction.throughput_simulator import closed_loop_seconds
from outrider.eval.replay.replay import ReplaySums
from outrider.serving.step_times import StepCosts, StepTimes, costs_of

Costs = Mapping[str, StepCosts | None]
"""By variant."""

DRAWS, NEAR = 16, 10
"""How often a request's steps are drawn, and the least number of responses that they are drawn from."""


def predict_served(
    speed: Mapping[str, Mapping[str, Any]],
    blocks: Sequence[Mapping[str, Any]],
    k: int,
    replayed: Mapping[str, ReplaySums],
    times: StepTimes | None,
    prompt_tokens: float,
) -> dict[str, Any]:
    """By concurrency of the timed `blocks`, whose `speed` is their summary: tokens/s of none, base and custom, the speculators' speed-up over
    none, and custom's over base, in which the step times cancel. `replayed` are base and custom; `times` is None where steps of this engine mode
    were not timed."""
    variants = ("none", *replayed)
    surfaces: dict[str, Costs] = {
        "timed": {
            variant: times and times.of(0 if variant == "none" else k) for variant in variants
        },
        "as_served": {
            variant: costs_of([block["steps"] for block in blocks if block["variant"] == variant])
            for variant in variants
        },
    }
    table: dict[str, Any] = {}
    for concurrency, served in speed.items():
        size = int(concurrency)
        speeds = {
            name: _tokens_per_s(
                [b for b in blocks if b["concurrency"] == size], k, replayed, costs, prompt_tokens
            )
            for name, costs in surfaces.items()
        }
        row: dict[str, Any] = {}
        for variant in variants:
            predicted = {name: found and found[variant] for name, found in speeds.items()}
            row[variant] = {
                "step_ms": {
                    name: each[variant] and 1000 * each[variant].seconds(size)
                    for name, each in surfaces.items()
                },
                "tokens_per_s": _beside(served[variant]["tokens_per_s"], predicted),
            }
        for name, (over, under) in RATIOS.items():
            predicted = {
                surface: found and found[over] / found[under] for surface, found in speeds.items()
            }
            ratio = _beside(served[name], predicted)
            if under == "none":
                row[over]["over_none"] = ratio
            else:
                row["custom_over_base"] = ratio
        table[concurrency] = row
    return table


def _tokens_per_s(
    blocks: Sequence[Mapping[str, Any]],
    k: int,
    replayed: Mapping[str, ReplaySums],
    costs: Costs,
    prompt_tokens: float,
) -> dict[str, float] | None:
    """Of each variant, over its blocks; None where the steps of one are not known."""
    if not all(costs.values()):
        return None
    found = {}
    for variant, cost in costs.items():
        own, random = (
            [block for block in blocks if block["variant"] == variant],
            np.random.default_rng(0),
        )
        seconds = 0.0
        for block in own:
            later_N = np.maximum(np.asarray(block["request_tokens"]) - 1, 0)
            drawn_DN = (
                [later_N]
                if variant == "none"
                else _drawn_steps(replayed[variant], k, later_N, random)
            )
            loops = [
                closed_loop_seconds(steps_N, block["concurrency"], cost, prompt_tokens)
                for steps_N in drawn_DN
            ]
            seconds += float(np.mean(loops))
        found[variant] = sum(block["output_tokens"] for block in own) / seconds
    return found


def _drawn_steps(
    replayed: ReplaySums, k: int, later_N: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """[DRAWS, N] steps for so many tokens after the first. On average as many as tokens at these places of a response take, all responses
    pooled; each time more or less, as one of replay's responses of about that length needs more or less than those do together (they are
    drawn as often as they have tokens)."""
    tokens_R, steps_R = replayed.tokens_R, replayed.steps_RK[:, k - 1]
    near = min(max(len(tokens_R) // 5, NEAR), len(tokens_R))
    drawn_DN = np.empty((DRAWS, len(later_N)))
    for place, later in enumerate(later_N):
        like = np.argsort(np.abs(tokens_R - later), kind="stable")[:near]
        tokens_L, steps_L = tokens_R[like], steps_R[like]
        more_L = steps_L / tokens_L * (tokens_L.sum() / steps_L.sum())
        drawn_DN[:, place] = random.choice(more_L, p=tokens_L / tokens_L.sum(), size=DRAWS)
    return drawn_DN * _mean_steps(replayed, k, later_N)


def _mean_steps(replayed: ReplaySums, k: int, later_N: np.ndarray) -> np.ndarray:
    """[N] for responses of so many tokens after the first: a response that is cut, or a short one, is all beginning."""
    from outrider.eval.replay.response_segments import POSITION_NAMES, POSITIONS

    pooled = replayed.steps_RK[:, k - 1].sum() / replayed.tokens_R.sum()
    begins = (0, *(end - 1 for end in POSITIONS))  # the first token has no step of its own
    mean_N = np.zeros(len(later_N))
    for begin, end, name in zip(begins, (*begins[1:], np.inf), POSITION_NAMES, strict=True):
        place = list(replayed.regions).index(name) if name in replayed.regions else None
        tokens = 0.0 if place is None else replayed.region_tokens_RG[:, place].sum()
        rate = replayed.region_steps_RGK[:, place, k - 1].sum() / tokens if tokens else pooled
        mean_N += np.clip(later_N - begin, 0, end - begin) * rate
    return mean_N


def _beside(
    served: float | Mapping[str, Any], predicted: Mapping[str, float | None]
) -> dict[str, Any]:
    """`served`, which may be an estimate, and each prediction with how far from it it is."""
    measured = served["value"] if isinstance(served, Mapping) else served
    return {
        "served": served,
        **{
            name: value and {"value": value, "difference": value / measured - 1}
            for name, value in predicted.items()
        },
    }
