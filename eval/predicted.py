"""Whether speed could have been foretold: replay's acceptance length and the engine's steps against what was served.

Twice: with the steps as they were timed before the serving, which is a forecast, and with those that the measured servers recorded while they
served, which is an account of it. Where the second is right and the first is not, the machine's speed drifted in between; where the second is
wrong, the calculation or the acceptance length is.

    predict_served(speed, blocks, k=4, acceptance_length={"base": 2.9, "custom": 4.1}, times=times, prompt_tokens=210)
"""

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.eval.closed_loop import closed_loop_seconds
from outrider.serving.step_times import StepCosts, StepTimes, costs_of

Costs = tuple[StepCosts, StepCosts]
"""Without drafts, and with k."""


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
    surfaces: dict[str, Costs | None] = {
        "timed": times and (times.of(0), times.of(k)),
        "as_served": _as_served(blocks),
    }
    table: dict[str, Any] = {}
    for concurrency, row in speed.items():
        tokens_per_s = {
            name: costs and _tokens_per_s(blocks, int(concurrency), acceptance_length, costs, prompt_tokens)
            for name, costs in surfaces.items()
        }

        def beside(served: Any, over: str, under: str = "", tokens_per_s=tokens_per_s) -> dict[str, Any]:
            value = served["value"] if under else served
            predicted = {
                name: found and found[over] / (found[under] if under else 1) for name, found in tokens_per_s.items()
            }
            return {
                "served": served,
                **{name: each and {"value": each, "difference": each / value - 1} for name, each in predicted.items()},
            }

        table[concurrency] = {
            "step_ms": {
                name: {
                    which: costs and 1000 * costs[place].seconds(int(concurrency)) for which, costs in surfaces.items()
                }
                for place, name in enumerate(("none", "drafting"))
            },
            "none": {"tokens_per_s": beside(row["none"]["tokens_per_s"], "none")},
            **{
                variant: {
                    "tokens_per_s": beside(row[variant]["tokens_per_s"], variant),
                    "over_none": beside(row[f"{variant}_over_none"], variant, "none"),
                }
                for variant in acceptance_length
            },
            "custom_over_base": beside(row["custom_over_base"], "custom", "base"),
        }
    return table


def _as_served(blocks: Sequence[Mapping[str, Any]]) -> Costs | None:
    """Base and custom have the same engine and as many drafts: their steps are taken together."""
    plain = costs_of([block["steps"] for block in blocks if block["variant"] == "none"])
    drafting = costs_of([block["steps"] for block in blocks if block["variant"] != "none"])
    return (plain, drafting) if plain and drafting else None


def _tokens_per_s(
    blocks: Sequence[Mapping[str, Any]],
    concurrency: int,
    acceptance_length: Mapping[str, float],
    costs: Costs,
    prompt_tokens: float,
) -> dict[str, float]:
    """Of each variant, over its blocks."""
    found = {}
    for variant, length in {"none": 1.0, **acceptance_length}.items():
        own = [b for b in blocks if b["variant"] == variant and b["concurrency"] == concurrency]
        of_one = costs[variant != "none"]
        seconds = [closed_loop_seconds(b["request_tokens"], concurrency, length, of_one, prompt_tokens) for b in own]
        found[variant] = sum(b["output_tokens"] for b in own) / sum(seconds)
    return found
