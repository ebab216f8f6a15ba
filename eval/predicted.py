"""Whether speed could have been foretold: replay's acceptance length and timed steps against what was served.

The speed-up over no speculation is foretold, because a shared machine's speed drifts between the timing of steps and the serving, and a
ratio does not. Times the tokens/s served without speculation it is tokens/s.

    predict_served(speed, blocks, k=4, acceptance_length={"base": 2.9, "custom": 4.1}, times=times, prompt_tokens=210)
"""

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.eval.closed_loop import closed_loop_seconds
from outrider.serving.step_times import StepTimes


def predict_served(
    speed: Mapping[str, Mapping[str, Any]],
    blocks: Sequence[Mapping[str, Any]],
    k: int,
    acceptance_length: Mapping[str, float],
    times: StepTimes,
    prompt_tokens: float,
) -> dict[str, Any]:
    """By concurrency of the timed `blocks`, whose `speed` is their summary: `none` with its own tokens/s foretold, for base and custom
    tokens/s and speed-up over none, and custom's over base, in which the step times cancel. `acceptance_length` of base and custom is replay's."""
    table: dict[str, Any] = {}
    for concurrency, row in speed.items():
        seconds, tokens = {}, {}
        for variant, length in {"none": 1.0, **acceptance_length}.items():
            own = [b for b in blocks if b["variant"] == variant and str(b["concurrency"]) == concurrency]
            drafts = 0 if variant == "none" else k
            seconds[variant] = sum(
                closed_loop_seconds(b["request_tokens"], int(concurrency), length, drafts, times, prompt_tokens)
                for b in own
            )
            tokens[variant] = sum(b["output_tokens"] for b in own)
        plain, served = tokens["none"] / seconds["none"], row["none"]["tokens_per_s"]
        table[concurrency] = {"none": _beside(plain, served)}
        for variant in acceptance_length:
            over_none = tokens[variant] / seconds[variant] / plain
            table[concurrency][variant] = {
                **_beside(over_none * served, row[variant]["tokens_per_s"]),
                "over_none": {"predicted": over_none, "served": row[f"{variant}_over_none"]},
            }
        custom, base = (table[concurrency][variant]["over_none"]["predicted"] for variant in ("custom", "base"))
        table[concurrency]["custom_over_base"] = {"predicted": custom / base, "served": row["custom_over_base"]}
    return table


def _beside(predicted: float, served: float) -> dict[str, float]:
    return {"predicted": predicted, "served": served, "relative_difference": predicted / served - 1}
