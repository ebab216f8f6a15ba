"""Whether speed could have been foretold: replay's acceptance length and the engine's steps against what was served.

Twice: with the steps as they were timed before the serving, which is a forecast, and with those of each variant's own blocks, which the measured
servers recorded, which is an account of it. Where the second is right and the first is not, the machine's speed drifted, before the serving
or between the blocks; where the second is wrong, the calculation or the acceptance length is.

    predict_served(speed, blocks, k=4, acceptance_length={"base": 2.9, "custom": 4.1}, times=times, prompt_tokens=210)
"""

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.eval.closed_loop import closed_loop_seconds
from outrider.serving.step_times import StepCosts, StepTimes, costs_of

Costs = Mapping[str, StepCosts | None]
"""By variant."""


def predict_served(
    speed: Mapping[str, Mapping[str, Any]],
    blocks: Sequence[Mapping[str, Any]],
    k: int,
    acceptance_length: Mapping[str, float],
    times: StepTimes | None,
    prompt_tokens: float,
) -> dict[str, Any]:
    """By concurrency of the timed `blocks`, whose `speed` is their summary: tokens/s of none, base and custom, the speculators' speed-up over
    none, and custom's over base, in which the step times cancel. `acceptance_length` of base and custom is replay's; `times` is None where
    steps of this engine mode were not timed."""
    variants = ("none", *acceptance_length)
    surfaces: dict[str, Costs] = {
        "timed": {variant: times and times.of(0 if variant == "none" else k) for variant in variants},
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
                [b for b in blocks if b["concurrency"] == size], acceptance_length, costs, prompt_tokens
            )
            for name, costs in surfaces.items()
        }
        row: dict[str, Any] = {}
        for variant in variants:
            predicted = {name: found and found[variant] for name, found in speeds.items()}
            row[variant] = {
                "step_ms": {
                    name: each[variant] and 1000 * each[variant].seconds(size) for name, each in surfaces.items()
                },
                "tokens_per_s": _beside(served[variant]["tokens_per_s"], predicted),
            }
        for over, under in (("base", "none"), ("custom", "none"), ("custom", "base")):
            predicted = {name: found and found[over] / found[under] for name, found in speeds.items()}
            ratio = _beside(served[f"{over}_over_{under}"], predicted)
            if under == "none":
                row[over]["over_none"] = ratio
            else:
                row["custom_over_base"] = ratio
        table[concurrency] = row
    return table


def _tokens_per_s(
    blocks: Sequence[Mapping[str, Any]], acceptance_length: Mapping[str, float], costs: Costs, prompt_tokens: float
) -> dict[str, float] | None:
    """Of each variant, over its blocks; None where the steps of one are not known."""
    if not all(costs.values()):
        return None
    found = {}
    for variant, steps in costs.items():
        own, length = [block for block in blocks if block["variant"] == variant], acceptance_length.get(variant, 1.0)
        seconds = [
            closed_loop_seconds(block["request_tokens"], block["concurrency"], length, steps, prompt_tokens)
            for block in own
        ]
        found[variant] = sum(block["output_tokens"] for block in own) / sum(seconds)
    return found


def _beside(served: float | Mapping[str, Any], predicted: Mapping[str, float | None]) -> dict[str, Any]:
    """`served`, which may be an estimate, and each prediction with how far from it it is."""
    measured = served["value"] if isinstance(served, Mapping) else served
    return {
        "served": served,
        **{name: value and {"value": value, "difference": value / measured - 1} for name, value in predicted.items()},
    }
