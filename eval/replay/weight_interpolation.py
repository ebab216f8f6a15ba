"""Between base and custom: the same evaluation for averages of their weights, without training again.

    sweep(evaluation, k, base, replay_mixture)      # one row a share of eval.interpolation

Often an average keeps most of the gain on the customer's traffic and loses less on general traffic. What is swept here is measured, not
chosen: to ship one, publish it with `speculators.interpolate` and evaluate it with `evaluate-speculator --speculator`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from outrider.eval.config import EvalConfig
from outrider.eval.replay.replay import ReplaySums, compare


def sweep(
    evaluation: EvalConfig,
    k: int,
    base: Mapping[str, ReplaySums],
    replay_mixture: Callable[[float, str], ReplaySums],
) -> list[dict[str, Any]]:
    """For each share of the custom speculator, by part (`heldout`, and `general` where there is one): `acceptance_length` and `ratio`
    against the base, each with its interval. `replay_mixture(share, part)` replays the part with that mixture."""
    rows = []
    for share in evaluation.interpolation:
        row: dict[str, Any] = {"share": share}
        for part, base_sums in base.items():
            found = compare(
                base_sums,
                replay_mixture(share, part),
                k,
                samples=evaluation.bootstrap_samples,
                seed=evaluation.seed,
            )
            row[part] = {
                "acceptance_length": found["custom"].as_dict(),
                "ratio": found["ratio"].as_dict(),
            }
        rows.append(row)
    return rows
