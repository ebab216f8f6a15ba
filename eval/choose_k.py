"""How many tokens to draft: the k of the most tokens a second, for every batch size, from the validation part and the engine's steps.

A step of B requests that drafts k tokens takes T(k, B) seconds (`serving/step_times.py`) and delivers AL(k) tokens for each, so

    tokens/s (k, B) = B AL(k) / T(k, B)

T(0, B) is the target's own step.

    choose_k(acceptance_length=[1.8, 2.4, 2.8, 3.0], step_s={1: [...], 8: [...]})["k"]
"""

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.serving.config import ServingConfig


def recipe_times(serving: ServingConfig, depth: int) -> dict[int, list[float]] | None:
    """T(k, 1) in seconds for k = 0..depth from the times that the recipe names; None where it names none."""
    times = (serving.target_step_ms, serving.draft_step_ms, serving.fixed_step_ms)
    if None in times:
        return None
    target, draft, fixed = times
    return {1: [(target + fixed + draft * k) / 1000 for k in range(depth + 1)]}


def choose_k(acceptance_length: Sequence[float], step_s: Mapping[int, Sequence[float]]) -> dict[str, Any]:
    """`acceptance_length[k - 1]` of k = 1..K drafts, `step_s[B][k]` of k = 0..K. The best k at the smallest batch size, the best for each range of batch sizes, and what they were chosen from; the smaller k
    where two promise the same. A range ends at a size that was measured; beyond the last, its k holds."""
    speeds = {
        size: [size * length / seconds for length, seconds in zip(acceptance_length, step_s[size][1:], strict=True)]
        for size in sorted(step_s)
    }
    best = {size: 1 + values.index(max(values)) for size, values in speeds.items()}
    ranges, first = [], 1
    for size, k in best.items():
        if ranges and ranges[-1][2] == k:
            ranges[-1][1] = size
        else:
            ranges.append([first, size, k])
        first = size + 1
    return {
        "k": next(iter(best.values())),
        "k_per_batch_size": ranges,
        "acceptance_length": list(acceptance_length),
        "step_ms": {str(size): [1000 * seconds for seconds in step_s[size]] for size in speeds},
        "tokens_per_s": {str(size): values for size, values in speeds.items()},
    }
