"""Fits step times that grow with k and with batch size, and resamples them for intervals.

    fit = fit_steps({1: rounds_RK, 8: rounds_RK}, samples=1000, seed=0)
    fit.step_s[8]               # seconds of a step of 8 requests, by number of drafts
    fit.draws_S[8]              # the same, [S, K], refitted to resampled rounds

A shared machine is slow for seconds or minutes, which multiplies the times of a whole round
(serving/step_times.py). So a log time is the sum of its round's effect and its number's effect. A
number's effect is a mean over rounds in which outliers are moved to the edge of the others
(winsorized), so that a stall in one of them does not decide.

Each draft adds a pass of the drafter and a token to verify, so times are nearly a straight line in
k. They are moved to it as far as the noise explains their distance (`shrunk_to_line`): where it
explains all, the line's two parameters are known three times as well as the single times. More
drafts and more requests cannot make a step shorter: the logs are projected onto increasing tables
(isotonic regression, least squares).

Rounds are drawn with replacement, the same for all numbers of drafts, so that the machine's speed
cancels in the difference of two numbers.

Shapes: B batch sizes, R rounds, K numbers of drafts, S resamples.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SWEEPS = 30
"""Most alternations between two axes; tables of this size need fewer than 10."""

SETTLED = 1e-10
"""Change of a log time at which alternating ends."""


@dataclass(frozen=True)
class StepFit:
    """Fitted seconds of a step, by batch size and number of drafts."""

    step_s: dict[int, list[float]]
    draws_S: dict[int, Array]
    """[S, K] by batch size, from resampled rounds."""


def fit_steps(rounds: Mapping[int, Array], samples: int, seed: int) -> StepFit:
    """The fit to rounds [R, K] in seconds by batch size; a missing time is NaN."""
    sizes, random = sorted(rounds), np.random.default_rng(seed)
    effects, drawn = [], []
    for size in sizes:
        level, effects_RK = _without_rounds(np.log(rounds[size]))
        kept_RK = _winsorized(effects_RK)
        effect_K, count = np.nanmean(kept_RK, axis=0), len(kept_RK)
        times_SR = random.multinomial(count, np.full(count, 1 / count), size=samples)
        resampled_SK = _resampled_means(kept_RK, times_SR)
        # Deviations of resampled winsorized values are too small: by the degree of freedom of the
        # mean, by the share of the values that were moved (Huber's variance of an M-estimate), and
        # by Student's t over the normal quantile, to which percentiles of few rounds correspond.
        unmoved = np.mean(kept_RK[np.isfinite(kept_RK)] == effects_RK[np.isfinite(kept_RK)])
        scale = np.sqrt(count / max(count - 1, 1)) / max(unmoved, 0.5) * _student(count - 1)
        resampled_SK = effect_K + scale * (resampled_SK - effect_K)
        variance = float(np.nanmean(np.nanvar(kept_RK, axis=0))) / max(count - 1, 1)
        effects.append(shrunk_to_line(level + effect_K, variance))
        drawn.append(shrunk_to_line(level + resampled_SK, variance))
    fitted_BK = np.exp(increasing(np.stack(effects)))
    draws_SBK = np.exp(increasing(np.stack(drawn, axis=1)))
    return StepFit(
        {size: fitted_BK[b].tolist() for b, size in enumerate(sizes)},
        {size: draws_SBK[:, b] for b, size in enumerate(sizes)},
    )


def shrunk_to_line(log_K: Array, variance: float) -> Array:
    """Log times [..., K] moved towards a straight line of the times.

    Distances r from the line have K - 2 degrees of freedom. If their mean square is that of noise
    of this variance or less, the result is the line; else the share 1 - (K - 2) variance / sum r^2
    of each is kept (the method of moments for normal means around a line).
    """
    count = log_K.shape[-1]
    if count <= 2:
        return log_K
    design_K2 = np.stack([np.ones(count), np.arange(count)], axis=1)
    line = np.exp(log_K) @ (design_K2 @ np.linalg.pinv(design_K2)).T
    distance = log_K - np.log(np.maximum(line, np.exp(log_K).min(axis=-1, keepdims=True) / 2))
    squares = (distance**2).sum(axis=-1, keepdims=True)
    kept = np.maximum(0.0, 1 - (count - 2) * variance / np.maximum(squares, 1e-30))
    shrunk: Array = log_K - (1 - kept) * distance
    return shrunk


def increasing(table: Array) -> Array:
    """The closest table [..., B, K] that never falls along either axis (Dykstra's algorithm)."""
    fitted = table
    left = [np.zeros_like(table), np.zeros_like(table)]
    for _ in range(SWEEPS):
        before = fitted
        for axis in (-1, -2):
            moved = fitted + left[axis]
            fitted = np.swapaxes(_isotonic(np.swapaxes(moved, axis, -1)), axis, -1)
            left[axis] = moved - fitted
        if np.abs(fitted - before).max() < SETTLED:
            break
    return fitted


def _student(degrees: int) -> float:
    """The 97.5 % quantile of Student's t over that of the normal distribution."""
    from scipy.stats import norm, t

    return float(t.ppf(0.975, degrees) / norm.ppf(0.975)) if degrees else 1.0


def _without_rounds(log_RK: Array) -> tuple[float, Array]:
    """The level of all rounds, and the logs without each round's own effect."""
    effect_K = np.nanmedian(log_RK, axis=0)
    for _ in range(SWEEPS):
        before = effect_K
        round_R1 = np.nanmedian(log_RK - effect_K, axis=1, keepdims=True)
        effect_K = np.nanmedian(log_RK - round_R1, axis=0)
        if np.abs(effect_K - before).max() < SETTLED:
            break
    return float(np.median(round_R1)), log_RK - round_R1


def _winsorized(values_RK: Array) -> Array:
    """The values of each column, outliers moved to two interquartile ranges from the quartiles.

    Only stalls are: a mean of the others needs a third fewer rounds than a median.
    """
    low_K, high_K = np.nanquantile(values_RK, [0.25, 0.75], axis=0)
    margin_K = 2 * (high_K - low_K)
    clipped: Array = np.clip(values_RK, low_K - margin_K, high_K + margin_K)
    return clipped


def _resampled_means(values_RK: Array, times_SR: NDArray[np.int64]) -> Array:
    """[S, K] means over rows drawn so many times.

    A number without a time among them has the mean of all.
    """
    counts_SK = times_SR @ np.isfinite(values_RK).astype(float)
    sums_SK = times_SR @ np.nan_to_num(values_RK)
    means_SK: Array = np.where(
        counts_SK > 0, sums_SK / np.maximum(counts_SK, 1), np.nanmean(values_RK, axis=0)
    )
    return means_SK


def _isotonic(values: Array) -> Array:
    """Isotonic regression along the last axis: the max-min formula, for a handful of values.

    The value at k is the largest, over begins up to k, of the smallest mean from there to an end at
    k or beyond.
    """
    count = values.shape[-1]
    sums = np.concatenate([np.zeros_like(values[..., :1]), values.cumsum(axis=-1)], axis=-1)
    fitted = np.empty_like(values)
    for k in range(count):
        smallest = [
            np.min(
                (sums[..., k + 1 :] - sums[..., i, None]) / np.arange(k + 1 - i, count + 1 - i),
                axis=-1,
            )
            for i in range(k + 1)
        ]
        fitted[..., k] = np.max(smallest, axis=0)
    return fitted
