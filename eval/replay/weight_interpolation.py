"""Sweep over averages of base and custom weights: acceptance of each, without training.

    sweep(evaluation, k, validation, {"heldout": base}, replay_mixture)

An average often keeps most of the gain on the customer's traffic and loses less on general traffic.
Every share of eval.interpolation is replayed on the validation part. The one with the largest
acceptance length there, if that is larger than custom's own, is chosen, and only that one is
measured on held-out and general traffic: the largest of several figures of one part is too large by
chance, and would no longer be a measurement of it. To ship an average, publish it with
`speculators.checkpoints.interpolate` and evaluate it with `evaluate-speculator --speculator`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from outrider.eval.config import EvalConfig
from outrider.eval.replay.replay import ReplaySums, compare
from outrider.eval.results.parts import Drafter


def sweep(
    evaluation: EvalConfig,
    k: int,
    validation: Mapping[Drafter, ReplaySums],
    measured: Mapping[str, ReplaySums],
    replay_mixture: Callable[[float, str], ReplaySums],
) -> list[dict[str, Any]]:
    """A row for each share: its ratio to the base by part, with its interval.

    `validation` has base and custom, `measured` the base on each part that the chosen share is
    measured on. `replay_mixture(share, part)` replays a part with that mixture.
    """
    rows, lengths = [], {1.0: validation["custom"].acceptance_length()[k - 1]}
    for share in evaluation.interpolation:
        mixture = replay_mixture(share, "validation")
        lengths[share] = mixture.acceptance_length()[k - 1]
        ratio = compare(validation["base"], mixture, k)["ratio"]
        rows.append({"share": share, "validation": ratio.as_dict()})
    chosen = max(lengths, key=lambda share: lengths[share])
    for row in rows:
        if row["share"] == chosen:
            for part, base in measured.items():
                row[part] = compare(base, replay_mixture(chosen, part), k)["ratio"].as_dict()
    return rows
