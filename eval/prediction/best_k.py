"""The best k of base and of custom: the fewest drafts with the most tokens/s, by batch size.

    choose_k({"base": [1.8, 2.2], "custom": [1.9, 2.7]}, fit, none_s={1: 0.005}, main=1).k.base

A step of B requests that drafts k tokens takes T(k, B) seconds (serving/step_times.py) and delivers
AL(k) tokens per request, so

    tokens/s (k, B) = B AL(k) / T(k, B)

AL is replayed on the validation part, T measured in the engine and fitted (step_fit.py). A larger k
must gain more than MIN_GAIN over the smaller one.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from outrider.eval.bench.step_timing import LOOKS
from outrider.eval.prediction.step_fit import StepFit
from outrider.eval.results.parts import DRAFTERS, Drafter, Drafters
from outrider.eval.results.prediction import Choice, KGain, KReason, PromptCost
from outrider.eval.stats.intervals import LEVEL, percentile_interval

MIN_GAIN = 0.01
"""Least gain in tokens/s of a larger k; less is not worth its longer steps at higher load."""

Lengths = Mapping[Drafter, Sequence[float]]
"""Acceptance length with k = 1, 2, ... drafts."""


def choose_k(
    acceptance_length: Lengths,
    fit: StepFit,
    none_s: Mapping[int, float],
    main: int,
    *,
    source: str = "",
    requested: int | Literal["auto"] = "auto",
    sequences: int = 0,
    prompt_token_ms: PromptCost | None = None,
    rounds: Mapping[int, int] | None = None,
    base_fit: StepFit | None = None,
    further: Mapping[int, int] | None = None,
    looks: int = 1,
    base_looks: int | None = None,
) -> Choice:
    """Each speculator's k at batch size `main`, and its k for each range of batch sizes.

    `acceptance_length[drafter][k - 1]` is of k = 1..K drafts. The fit has k = 1..K, or 0..K where
    the drafting engine was also timed without drafts; then k by batch size may be 0. `none_s` is
    the target's own step. A range ends at a measured batch size; beyond the last one its k holds.
    `base_fit` and `base_looks` are of base's steps where they are not custom's, in an engine of
    their own. `further` counts the rounds of the numbers that were undecided at one of the `looks`.
    """
    fits: dict[Drafter, StepFit] = {"base": base_fit or fit, "custom": fit}
    levels = {"base": LOOKS.level(base_looks or looks), "custom": LOOKS.level(looks)}
    found = {
        name: {
            size: best_k(acceptance_length[name], fits[name], size, level=levels[name])
            for size in fit.step_s
        }
        for name in DRAFTERS
    }
    at_main = {
        name: best_k(acceptance_length[name], fits[name], main, 1, levels[name])
        for name in DRAFTERS
    }
    ranges = {
        name: _ranges(
            {size: at_main[name].k if size == main else own.k for size, own in table.items()}
        )
        for name, table in found.items()
    }
    depth = len(acceptance_length["custom"])
    speeds = {
        name: {
            str(size): (size * np.array(lengths) / np.array(row[-depth:])).tolist()
            for size, row in fits[name].step_s.items()
        }
        for name, lengths in acceptance_length.items()
    }
    return Choice(
        k=Drafters[int](**{name: at_main[name].k for name in DRAFTERS}),
        reason=Drafters[KReason](**at_main),
        k_per_batch_size=Drafters[list[tuple[int, int, int]] | None](**ranges),
        acceptance_length=Drafters[list[float] | None](
            **{name: list(lengths) for name, lengths in acceptance_length.items()}
        ),
        step_ms={
            str(size): [1000 * seconds for seconds in (none_s[size], *row[-depth:])]
            for size, row in fit.step_s.items()
        },
        base_step_ms=(
            {
                str(size): [1000 * seconds for seconds in (none_s[size], *row[-depth:])]
                for size, row in base_fit.step_s.items()
            }
            if base_fit
            else None
        ),
        step_ms_ci95={
            str(size): [
                (1000 * low, 1000 * high)
                for low, high in map(percentile_interval, draws_SK.T[-depth:])
            ]
            for size, draws_SK in fit.draws_S.items()
        }
        or None,
        idle_step_ms=(
            {str(size): 1000 * row[0] for size, row in fit.step_s.items()}
            if len(fit.step_s[main]) > depth
            else None
        ),
        rounds={str(size): count for size, count in (rounds or {}).items()} or None,
        further_rounds={str(size): count for size, count in (further or {}).items()} or None,
        looks=looks if rounds else None,
        tokens_per_s=Drafters[dict[str, list[float]] | None](**speeds),
        prompt_token_ms=prompt_token_ms,
        source=source,
        requested=requested,
        sequences=sequences,
    )


def best_k(
    lengths: Sequence[float], fit: StepFit, size: int, least: int = 0, level: float = LEVEL
) -> KReason:
    """The smallest k, from `least`, over which no larger one is estimated to gain MIN_GAIN.

    It is decided when the intervals, of that level, say the same: a larger one is shown to gain
    more over every smaller k, and each larger one is shown not to gain more over this.
    """
    step_K = np.array(fit.step_s[size])
    first = max(least, len(lengths) + 1 - len(step_K))
    tokens_K = np.array([1.0, *lengths])[first:]
    log_K = np.log(tokens_K / step_K[-len(tokens_K) :])
    draws_S = fit.draws_S.get(size)
    log_SK = log_K[None] if draws_S is None else np.log(tokens_K / draws_S[:, -len(tokens_K) :])

    def gain(over: int, under: int) -> KGain:
        """Of index `over` over index `under`."""
        low, high = percentile_interval(np.expm1(log_SK[:, over] - log_SK[:, under]), level)
        value = float(np.expm1(log_K[over] - log_K[under]))
        return KGain(k=first + over, over=first + under, value=value, low=low, high=high)

    def gains(index: int) -> list[KGain]:
        return [gain(larger, index) for larger in range(index + 1, len(log_K))]

    chosen = next(
        index for index in range(len(log_K)) if all(each.value <= MIN_GAIN for each in gains(index))
    )
    smaller, larger = log_K[:chosen], log_K[chosen + 1 :]
    undecided = [
        first + index
        for index in range(chosen)
        if all(each.low <= MIN_GAIN for each in gains(index))
    ]
    undecided += [each.k for each in gains(chosen) if each.high > MIN_GAIN]
    return KReason(
        k=first + chosen,
        smaller=gain(chosen, int(smaller.argmax())) if len(smaller) else None,
        larger=gain(chosen + 1 + int(larger.argmax()), chosen) if len(larger) else None,
        undecided=tuple(undecided),
    )


def _ranges(best: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """(first batch size, last, k), with adjacent sizes of the same k in one range."""
    ranges: list[tuple[int, int, int]] = []
    first = 1
    for size, k in sorted(best.items()):
        if ranges and ranges[-1][2] == k:
            ranges[-1] = (ranges[-1][0], size, k)
        else:
            ranges.append((first, size, k))
        first = size + 1
    return ranges
