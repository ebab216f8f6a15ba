"""Are responses sampled with and without speculation drawn from the same distribution? A permutation test on token frequencies.

Given a prompt, both responses are draws from the target if speculation is lossless, so either could have come with the other's label:
labels are exchanged within prompts at random, and the statistic of the true labels is ranked among those. Nothing is assumed about
tokens of one response, which depend on each other.

    same_tokens(without, with_speculation, samples=2000, seed=0)["p_value"]

Shapes: R prompts, B bins of tokens, S permutations.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from outrider.eval.config import EvalConfig

RARE = 10
"""Tokens that occur fewer times in all responses together share one bin."""


def same_tokens(
    without: Sequence[Sequence[int]],
    with_speculation: Sequence[Sequence[int]],
    *,
    samples: int,
    seed: int,
) -> dict[str, Any]:
    """The chi-square distance of the token counts, sum (a - b)^2 / (a + b) over bins, and the share of relabelled draws, the true one
    included, whose distance is at least as large (`p_value`)."""
    counts_2RB = _counts(without, with_speculation)
    total_B = counts_2RB.sum(axis=(0, 1))
    difference_RB = (counts_2RB[0] - counts_2RB[1]) / np.sqrt(total_B)
    signs_SR = np.random.default_rng(seed).choice([-1.0, 1.0], size=(samples, len(difference_RB)))
    distance = float((difference_RB.sum(axis=0) ** 2).sum())
    drawn_S = ((signs_SR @ difference_RB) ** 2).sum(axis=-1)
    # Sums in another order differ in their last bits: a relabelling that changes nothing must count as equal.
    reached = int((drawn_S >= distance * (1 - 1e-9)).sum())
    return {
        "prompts": len(difference_RB),
        "tokens": int(total_B.sum()),
        "bins": len(total_B),
        "distance": distance,
        "p_value": (1 + reached) / (1 + samples),
    }


def same_text(outputs: dict[str, Any], evaluation: EvalConfig) -> dict[str, Any]:
    """The permutation test of base and custom against none, on the sampled responses."""
    sampled = {variant: recorded["token_ids"] for variant, recorded in outputs["sampled"].items()}
    samples, seed = (
        max(evaluation.bootstrap_samples, round(2 / (evaluation.gate.min_same_text_p or 1))),
        evaluation.seed,
    )
    return {
        variant: same_tokens(sampled["none"], sampled[variant], samples=samples, seed=seed)
        for variant in ("base", "custom")
    }


def _counts(
    without: Sequence[Sequence[int]], with_speculation: Sequence[Sequence[int]]
) -> np.ndarray:
    """[2, R, B]: how often each common token, and any rare one, occurs in each response."""
    everything = [
        token
        for responses in (without, with_speculation)
        for response in responses
        for token in response
    ]
    tokens, occurrences = np.unique(np.asarray(everything, np.int64), return_counts=True)
    common = tokens[occurrences >= RARE]
    counts_2RB = np.zeros((2, len(without), len(common) + 1))
    for side, responses in enumerate((without, with_speculation)):
        for row, response in enumerate(responses):
            ids = np.asarray(response, np.int64)
            place = np.searchsorted(common, ids)
            known = place < len(common)
            known[known] = common[place[known]] == ids[known]
            np.add.at(counts_2RB[side, row], np.where(known, place, len(common)), 1)
    return counts_2RB[:, :, counts_2RB.sum(axis=(0, 1)) > 0]
