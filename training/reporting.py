"""What a step and an evaluation say: the values of metrics.jsonl and the line on the terminal.

    values = step_values(sums, count_K, rate, gradient_norm, tokens, slots, seconds, waited)
    print(step_line(step, steps, values))

Shapes: K depths.
"""

from typing import Any

from torch import Tensor


def step_values(
    sums: Tensor,
    count_K: Tensor,
    learning_rate: float,
    gradient_norm: Any,
    tokens: int,
    slots: int,
    seconds: float,
    waited: float,
) -> dict[str, Any]:
    """Of `sums` [1 + 2K] over all processes: the loss, then by depth KL and expected greedy acceptance over `count_K` targets.

    `tokens` of the rows' `slots` hold data; of `seconds`, `waited` went into waiting for it.
    """
    kl_K, acceptance_K = (sums[1:].view(2, len(count_K)) / count_K.clamp_min(1)).tolist()
    return {
        "loss": sums[0].item(),
        "kl": kl_K,
        "expected_acceptance": acceptance_K,
        "learning_rate": learning_rate,
        "gradient_norm": gradient_norm,
        "tokens_per_s": tokens / seconds,
        "wait_share": waited / seconds,
        "padding_share": 1 - tokens / slots,
    }


def step_line(done: int, steps: int, values: dict[str, Any]) -> str:
    """The step for a person, after `done` of `steps`."""
    acceptance = " ".join(f"{share:.3f}" for share in values["expected_acceptance"])
    return (
        f"step {done}/{steps}  loss {values['loss']:.4f}  expected acceptance {acceptance}"
        f"  lr {values['learning_rate']:.1e}  {values['tokens_per_s']:.0f} tokens/s  waiting {values['wait_share']:.0%}"
        f"  padding {values['padding_share']:.0%}"
        + (f"  MFU {values['mfu']:.0%}" if "mfu" in values else "")
    )


def validation_line(done: int, steps: int, profile: dict[str, Any], seconds: float) -> str:
    """An evaluation for a person."""
    acceptance = " ".join(f"{rate:.3f}" for rate in profile["acceptance"])
    length = profile["acceptance_length"]
    return (
        f"step {done}/{steps}  validation: acceptance {acceptance}  acceptance length {length[-1]:.3f} at K={len(length)}"
        f"  ({profile['sequences']} sequences, {seconds:.1f} s)"
    )
