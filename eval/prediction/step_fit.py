"""Fits step times that grow with k and with batch size, and resamples them for intervals.

    fit = fit_steps({1: rounds_RK, 8: rounds_RK}, samples=1000, seed=0)
    fit.step_s[8]               # seconds of a step of 8 requests, by number of drafts
    fit.draws_S[8]              # the same, [S, K], refitted to resampled rounds

A shared machine is slow for seconds or minutes, which multiplies the times of a whole round
(serving/step_times.py). So a log time is the sum of its round's effect and its number's effect
(least squares), in which outliers are moved to the edge of the others (winsorized), so that a stall
does not decide. Rounds may have some of the numbers only, as they have when the timing goes on for
those between which the choice is open: such a round compares its own numbers and says nothing of
the others (an incomplete block design, recovered within blocks).

Each draft adds a pass of the drafter and a token to verify, so times are nearly a straight line in
k. They are moved towards it as far as their noise explains their distance (`shrunk_to_line`). More
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

CURVATURE = 0.03
"""Least standard deviation of log times from a straight line in k.

Recorded ones were 3 to 6 % off it, at numbers of tokens that the kernels' tiles do not fit. With
less, many rounds of two numbers could not outweigh what the others make of the line.
"""


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
        timed_RK = np.isfinite(kept_RK)
        blocks_RKK, sums_RK = _within_rounds(kept_RK)
        precision_KK = blocks_RKK.sum(axis=0)
        effect_K = np.linalg.pinv(precision_KK, hermitian=True) @ sums_RK.sum(axis=0)
        count = len(kept_RK)
        times_SR = random.multinomial(count, np.full(count, 1 / count), size=samples)
        # Deviations from the estimate, so that a number which is not drawn keeps its own.
        sums_RK -= blocks_RKK @ effect_K
        resampled_SKK = np.tensordot(times_SR, blocks_RKK, axes=1)
        moved_SK1 = np.linalg.pinv(resampled_SKK, hermitian=True) @ (times_SR @ sums_RK)[..., None]
        # Deviations of resampled winsorized values are too small: by the degree of freedom of the
        # mean, by the share of the values that were moved (Huber's variance of an M-estimate), and
        # by Student's t over the normal quantile, to which percentiles of few rounds correspond.
        unmoved = np.mean(kept_RK[timed_RK] == effects_RK[timed_RK])
        least = int(timed_RK.sum(axis=0).min())
        scale = np.sqrt(least / max(least - 1, 1)) / max(unmoved, 0.5) * _student(least - 1)
        resampled_SK = effect_K + scale * moved_SK1[..., 0]
        noise_KK = np.linalg.pinv(precision_KK, hermitian=True) * _variance(kept_RK, effect_K)
        log_K = level + effect_K
        spread = max(CURVATURE, distance_from_line(log_K))
        effects.append(shrunk_to_line(log_K, noise_KK, spread))
        drawn.append(shrunk_to_line(level + resampled_SK, noise_KK, spread))
    fitted_BK = np.exp(increasing(np.stack(effects)))
    draws_SBK = np.exp(increasing(np.stack(drawn, axis=1)))
    return StepFit(
        {size: fitted_BK[b].tolist() for b, size in enumerate(sizes)},
        {size: draws_SBK[:, b] for b, size in enumerate(sizes)},
    )


def shrunk_to_line(log_K: Array, noise_KK: Array, spread: float) -> Array:
    """Log times [..., K] moved towards a straight line of the times.

    `noise_KK` is their covariance, `spread` the standard deviation of the true log times from the
    line. Returns the best linear unbiased prediction: distances r from the line of generalised
    least squares become spread^2 (noise + spread^2 I)^-1 r, so that what is known well stays where
    it was measured.
    """
    count = log_K.shape[-1]
    if count <= 2:
        return log_K
    weights_KK = np.linalg.inv(noise_KK + spread**2 * np.eye(count))
    distance = log_K - _log_line(log_K, np.linalg.cholesky(weights_KK).T)
    shrunk: Array = log_K - distance + spread**2 * distance @ weights_KK
    return shrunk


def distance_from_line(log_K: Array) -> float:
    """Standard deviation of the log times around the straight line that is closest."""
    count = len(log_K)
    distance = log_K - _log_line(log_K, np.eye(count))
    return float(np.sqrt((distance**2).sum() / max(count - 2, 1)))


def _log_line(log_K: Array, root_KK: Array) -> Array:
    """Logs of the line with the least relative squares, weighted by root' root."""
    times, count = np.exp(log_K), log_K.shape[-1]
    design_K2 = np.stack([np.ones(count), np.arange(count)], axis=1)
    weighted = root_KK @ (design_K2 / times[..., None])
    line = (design_K2 @ (np.linalg.pinv(weighted) @ root_KK.sum(axis=1)[:, None]))[..., 0]
    logs: Array = np.log(np.maximum(line, times.min(axis=-1, keepdims=True) / 2))
    return logs


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
    """The level, and the logs without each round's own effect.

    The level is that of the rounds with most numbers: the target's own steps were timed with them.
    """
    effect_K = np.nanmedian(log_RK, axis=0)
    for _ in range(SWEEPS):
        before = effect_K
        round_R1 = np.nanmedian(log_RK - effect_K, axis=1, keepdims=True)
        effect_K = np.nanmedian(log_RK - round_R1, axis=0)
        if np.abs(effect_K - before).max() < SETTLED:
            break
    timed_R = np.isfinite(log_RK).sum(axis=1)
    level = float(np.median(round_R1[timed_R == timed_R.max()]) + effect_K.mean())
    return level, log_RK - round_R1


def _winsorized(values_RK: Array) -> Array:
    """The values of each column, outliers moved to two interquartile ranges from the quartiles.

    Only stalls are: a mean of the others needs a third fewer rounds than a median.
    """
    low_K, high_K = np.nanquantile(values_RK, [0.25, 0.75], axis=0)
    margin_K = 2 * (high_K - low_K)
    clipped: Array = np.clip(values_RK, low_K - margin_K, high_K + margin_K)
    return clipped


def _within_rounds(values_RK: Array) -> tuple[Array, Array]:
    """Each round's part of the normal equations [R, K, K] and [R, K] of the numbers' effects."""
    timed_RK = np.isfinite(values_RK).astype(float)
    count_R1 = np.maximum(timed_RK.sum(axis=1, keepdims=True), 1)
    blocks_RKK = timed_RK[..., None] * np.eye(values_RK.shape[1])
    blocks_RKK = blocks_RKK - timed_RK[:, None] * (timed_RK / count_R1)[..., None]
    return blocks_RKK, (blocks_RKK @ np.nan_to_num(values_RK)[..., None])[..., 0]


def _variance(values_RK: Array, effect_K: Array) -> float:
    """Of a single log time around its round and its number; 0 where nothing is left to tell."""
    timed_RK = np.isfinite(values_RK)
    rest_RK = np.where(timed_RK, values_RK - effect_K, np.nan)
    rest_RK = rest_RK - np.nanmean(rest_RK, axis=1, keepdims=True)
    degrees = int(timed_RK.sum()) - len(values_RK) - (values_RK.shape[1] - 1)
    return float(np.nansum(rest_RK**2) / degrees) if degrees > 0 else 0.0


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
