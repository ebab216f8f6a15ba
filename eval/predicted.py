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
    for concurrency, row in speed.items():
        tokens_per_s = {
            name: _tokens_per_s(blocks, int(concurrency), acceptance_length, costs, prompt_tokens)
            for name, costs in surfaces.items()
        }

        def beside(served: Any, over: str, under: str = "", tokens_per_s=tokens_per_s) -> dict[str, Any]:
            measured, beside = served["value"] if under else served, {"served": served}
            for name, found in tokens_per_s.items():
                value = found and found[over] / (found[under] if under else 1)
                beside[name] = value and {"value": value, "difference": value / measured - 1}
            return beside

        table[concurrency] = {
            variant: {
                "step_ms": {
                    name: costs[variant] and 1000 * costs[variant].seconds(int(concurrency))
                    for name, costs in surfaces.items()
                },
                "tokens_per_s": beside(row[variant]["tokens_per_s"], variant),
                **({} if variant == "none" else {"over_none": beside(row[f"{variant}_over_none"], variant, "none")}),
            }
            for variant in variants
        }
        table[concurrency]["custom_over_base"] = beside(row["custom_over_base"], "custom", "base")
    return table


def _tokens_per_s(
    blocks: Sequence[Mapping[str, Any]],
    concurrency: int,
    acceptance_length: Mapping[str, float],
    costs: Costs,
    prompt_tokens: float,
) -> dict[str, float] | None:
    """Of each variant, over its blocks; None where the steps of one are not known."""
    found = {}
    for variant, length in {"none": 1.0, **acceptance_length}.items():
        own, of_one = [b for b in blocks if b["variant"] == variant and b["concurrency"] == concurrency], costs[variant]
        if of_one is None:
            return None
        seconds = [closed_loop_seconds(b["request_tokens"], concurrency, length, of_one, prompt_tokens) for b in own]
        found[variant] = sum(b["output_tokens"] for b in own) / sum(seconds)
    return found
