"""Speculation must change the speed and nothing else: checks on what the engine wrote with and without it.

Greedy responses should be equal token for token. An engine in bf16 that batches differently rounds differently, so where the two most
likely tokens are nearly tied the argmax may fall either way, without any speculation: a first difference at such a place is
explained, any other is not. Sampled responses cannot be compared token by token, but their tokens' log-probabilities under
the target can: a faulty rejection sampler draws tokens that the target would not.

    compare_greedy(without, with_speculation, gap, near_tie_nats=0.5)
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from outrider.eval.lossless.tost import equivalence
from outrider.eval.stats.bootstrap import share_interval

TAIL_PROBABILITY = 1e-4


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token that differs; None where the responses are equal."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def compare_greedy(
    without: Sequence[Sequence[int]],
    with_speculation: Sequence[Sequence[int]],
    gap: Callable[[int, int, int, int], float],
    near_tie_nats: float,
) -> dict[str, Any]:
    """Equal, near-tie and unexplained responses. `gap(response, index, token, other)` is how far apart (nats) the target's
    log-probabilities of the two tokens at the response's token `index` are."""
    differences = []
    for response, (a, b) in enumerate(zip(without, with_speculation, strict=True)):
        index = first_difference(a, b)
        if index is None:
            continue
        nats = (
            gap(response, index, a[index], b[index])
            if index < min(len(a), len(b))
            else float("inf")
        )
        near = nats <= near_tie_nats
        differences.append(
            {
                "response": response,
                "token": index,
                "gap_nats": nats if np.isfinite(nats) else None,
                "near_tie": near,
            }
        )
    equal, near_ties = len(without) - len(differences), sum(d["near_tie"] for d in differences)
    return {
        "responses": len(without),
        "equal": equal,
        "equal_ci95": share_interval(equal, len(without)),
        "near_ties": near_ties,
        "unexplained": len(differences) - near_ties,
        "differences": differences,
    }


def text_statistics(logprobs: Sequence[np.ndarray]) -> dict[str, Any]:
    """Mean log-probability under the target of sampled tokens, and the share of them below probability 1e-4."""
    pooled = np.concatenate(logprobs)
    tail = int((pooled < np.log(TAIL_PROBABILITY)).sum())
    return {
        "responses": len(logprobs),
        "tokens": len(pooled),
        "mean_logprob": float(pooled.mean()),
        "mean_logprob_standard_error": float(_clustered_error(logprobs)),
        "tail_share": tail / len(pooled),
        "tail_share_ci95": share_interval(tail, len(pooled)),
    }


def task_accuracy(
    solved: dict[str, list[bool]], sessions: Sequence[str], margin: float
) -> dict[str, Any]:
    """Share of solved tasks per variant, and custom minus none, paired by prompt, with the test that it lies within `margin`."""
    result: dict[str, Any] = {
        variant: {
            "solved": sum(marks),
            "responses": len(marks),
            "accuracy": sum(marks) / len(marks),
            "ci95": share_interval(sum(marks), len(marks)),
        }
        for variant, marks in solved.items()
    }
    differences = np.array(solved["custom"], float) - np.array(solved["none"], float)
    result["custom_minus_none"] = equivalence(differences, sessions, margin)
    return result


def _clustered_error(logprobs: Sequence[np.ndarray]) -> float:
    """Standard error of the pooled mean, tokens of one response taken together."""
    if len(logprobs) < 2:
        return 0.0
    sums, counts = (
        np.array([values.sum() for values in logprobs]),
        np.array([len(values) for values in logprobs]),
    )
    residual = sums - counts * sums.sum() / counts.sum()
    return np.sqrt((residual**2).sum() * len(sums) / (len(sums) - 1)) / counts.sum()
