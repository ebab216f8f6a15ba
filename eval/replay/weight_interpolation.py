"""Sweep over averages of base and custom weights: acceptance of each, without training.

    sweep(evaluation, k, base, replay_mixture)      # one row a share of eval.interpolation

An average often keeps most of the gain on the customer's traffic and loses less on general traffic.
The sweep measures and does not choose. To ship an average, publish it with
`speculators.checkpoints.interpolate` and evaluate it with `evaluate-speculator --speculator`.
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
    """`acceptance_length` and `ratio` to the base, with intervals, by share and part.

    Parts are `heldout` and, where there is one, `general`. `replay_mixture(share, part)` replays
    the part with that mixture.
    """
    rows = []
    for share in evaluation.interpolation:
        row: dict[str, Any] = {"share": share}
        for part, base_sums in base.items():
            found = compare(
                base_sums,
                replay_mixture(share, part),
                k,
            )
            row[part] = {
                "acceptance_length": found["custom"].as_dict(),
                "ratio": found["ratio"].as_dict(),
            }
        rows.append(row)
    return rows
