"""Speed ratios of whole responses: measured step times with exact replay's step counts.

    controlled_ratio(units, replayed, level=0.95)
    measured_ratio(units, level)

Two variants answer the same prompts in turn. A unit is a pair of requests if the variants alternate
by request, else a block of each. A request takes F seconds to its first token and then a step of t
seconds for each of its D deliveries:

    seconds  =  F + D t

F and t are properties of the machine and are measured. D depends on which responses were sampled
and is cut at `eval.max_tokens`, but exact replay gives its expectation for whole responses: S steps
per response. So with f and z, the log ratios of F and of t of the first variant over the second,
rho, the log ratio of their replayed acceptance lengths, and the second's share of prefill

    phi  =  F / (F + S t),

the log ratio of tokens/s of whole responses is

    log r  =  - log (phi e^f + (1 - phi) e^(z - rho))

In the terms of control variates (Lavenberg and Welch, Management Science 27, 1981): to first order,
log r = y + b rho with b = 1 - w, y = -(w f + b z) and w, the first variant's share of prefill. Its
variance is that of y over units plus b^2 times that of rho over sessions; the two are independent.
The margins, and b * UNSEEN for differences that `lengths_agree` misses, are combined as the root of
the sum of squares (MOVER: Zou and Donner, Statistics in Medicine 27, 2008).

y is the machine's noise, which has long tails: in a run of the demo, seven of eight pairs had a
standard deviation of 0.07, and one was off by 0.8 because another process occupied a core. Custom
and base take turns, so the noise is symmetric. The location of f, z and y is estimated by the mean
without the highest and the lowest fifth, with Student's interval from the winsorized variance
(Tukey and McLaughlin, Sankhya A 25, 1963). Fewer than TRIMMED units are not trimmed: even with
eight normally distributed units, the trimmed interval misses in 6.0 % of cases instead of 5 %.
Units that are blocks or engine starts are not trimmed either, because their tails are short. A few
blocks say little about their noise, so it is pooled over the measured concurrencies (`Noise`).

The same formula with the steps of cut responses predicts the measured ratio, which is that of
pooled tokens/s, and must lie within its interval (`speeds_agree`). To first order, the log of the
measured ratio is linear in four sums, so its variance is that of the sum over units of

    d_u = (n / N - s / S) of the first  -  (n / N - s / S) of the second    (N, S: sums over units)

with U - 1 degrees of freedom (Wolter, Introduction to Variance Estimation, ch. 6). Without replay,
the measured ratio is the estimate. A replay error of 2 % is detected in half of simulated
evaluations, an error of 4 % nearly always (benchmarks/results/judge.md).

Traffic changes. If custom's gain falls over the held-out time, tomorrow's is smaller than the mean.
So the estimate is for the span that follows: the change from one span to the next has a normal
prior with standard deviation DRIFT, and is measured with the standard error of the slope (`Trend`).
The posterior's mean shifts the estimate, and its deviation widens the interval.

Shapes: N rows, U units, 6 sums per variant (`SUMS`).
"""

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from outrider.eval.results.parts import ClusteredEstimate, Estimate, Interval
from outrider.eval.stats.clusters import Trend
from outrider.eval.stats.intervals import LEVEL

Array = NDArray[np.float64]

SUMS = ("tokens", "seconds", "later_tokens", "deliveries", "first_seconds", "requests")
"""Sums of a unit: tokens and seconds, tokens after the first and their deliveries, seconds to first
tokens, requests."""
TOKENS, SECONDS, LATER_TOKENS, DELIVERIES, FIRST_SECONDS, REQUESTS = range(6)

TRIMMED = 8
"""Minimum number of units for trimming."""

UNSEEN = 0.01
"""Difference between served and replayed log length ratios that `lengths_agree` often misses; times
b, it is part of the controlled ratio's log margin."""

DRIFT = 0.03
"""Standard deviation, before any measurement, of a log length ratio's change from one span of
traffic to the next; what adaptation assumes between windows (adapt/policy.py). With 30 sessions, a
fall of 5 % per span is then reported 2.7 % too large instead of 4.4 %, and ships in 7 % of
evaluations instead of 28 % (benchmarks/results/judge.md)."""

AGREEMENT = 0.99
"""Level at which served and replayed responses must differ to disagree: several ratios are tested,
and one that disagrees by chance leaves the verdict undecided."""

NEGLIGIBLE = 0.005
"""Difference between served and replayed log length ratios that does not count as disagreement; it
arises because responses can end within a step."""


@dataclass(frozen=True)
class Units:
    """Measurements of two variants on the same requests.

    A row is a pair of requests or of blocks. Rows of one engine start form a unit if the variants
    run in two engines; otherwise each row is a unit.
    """

    over_N6: Array
    """Sums of the numerator."""
    under_N6: Array
    """Sums of the denominator."""
    observations: int
    """Number of pairs of requests."""
    starts_N: NDArray[np.int64] | None = None
    """Engine start of each row if starts are units, else None."""

    @property
    def alternated(self) -> bool:
        """Whether a row is a pair of requests."""
        return self.observations == len(self.over_N6)

    @property
    def trimmed(self) -> bool:
        """Whether units have long-tailed noise: whether they are pairs of requests."""
        return self.alternated and self.starts_N is None

    @functools.cached_property
    def stepped_N(self) -> NDArray[np.bool_]:
        """Per row, whether both variants ran steps after their first tokens."""
        both_N = np.ones(len(self.over_N6), bool)
        for sums_N6 in (self.over_N6, self.under_N6):
            both_N &= sums_N6[:, DELIVERIES] > 0
            both_N &= sums_N6[:, SECONDS] > sums_N6[:, FIRST_SECONDS]
        return both_N

    @property
    def lengths_N(self) -> Array:
        """Log ratios of counted acceptance lengths, of the rows in `stepped_N`."""
        return _log_ratios(self._stepped(LATER_TOKENS), self._stepped(DELIVERIES))

    @property
    def requests_N(self) -> Array:
        """Requests of the numerator, of the same rows."""
        return self._stepped(REQUESTS)[0]

    @functools.cached_property
    def first_U(self) -> Array:
        """f: log ratios of seconds to the first token."""
        return self._by_unit(_log_ratios(self._stepped(FIRST_SECONDS), self._stepped(REQUESTS)))

    @functools.cached_property
    def step_U(self) -> Array:
        """z: log ratios of seconds per delivery."""
        later_2N = self._stepped(SECONDS) - self._stepped(FIRST_SECONDS)
        return self._by_unit(_log_ratios(later_2N, self._stepped(DELIVERIES)))

    @property
    def count(self) -> int:
        """Number of units."""
        return len(self.over_N6) if self.starts_N is None else len(self._starts())

    def prefill_share(self, steps: float) -> float:
        """phi: the denominator's share of prefill, if its responses take `steps` on average."""
        first, requests, seconds, deliveries = (
            float(self.under_N6[:, column].sum())
            for column in (FIRST_SECONDS, REQUESTS, SECONDS, DELIVERIES)
        )
        prefill = first / requests
        return prefill / (prefill + steps * (seconds - first) / deliveries)

    def sums_by_unit(self) -> Array:
        """Tokens and seconds of numerator and denominator, [U, 4]."""
        sums_N4 = np.concatenate([self.over_N6[:, :2], self.under_N6[:, :2]], axis=1)
        if self.starts_N is None:
            return sums_N4
        return np.stack([sums_N4[self.starts_N == start].sum(axis=0) for start in self._starts()])

    def _by_unit(self, values_N: Array) -> Array:
        """Means of the rows' values by unit, of the rows in `stepped_N`."""
        if self.starts_N is None:
            return values_N
        start_N = self.starts_N[self.stepped_N]
        # A start's pairs of requests have long tails too.
        means = [
            trimmed_mean(values_N[start_N == start], trimmed=self.alternated)[0]
            for start in self._starts()
            if (start_N == start).any()
        ]
        return np.array(means)

    def _starts(self) -> list[int]:
        assert self.starts_N is not None
        return np.unique(self.starts_N).tolist()

    def _stepped(self, column: int) -> Array:
        """A sum of numerator and denominator in the rows of `stepped_N`, [2, N]."""
        rows_N = self.stepped_N
        return np.stack([self.over_N6[rows_N, column], self.under_N6[rows_N, column]])


def _log_ratios(above_2N: Array, below_2N: Array) -> Array:
    over_N, under_N = np.log(above_2N / below_2N)
    return over_N - under_N


@dataclass(frozen=True)
class ReplayedLengths:
    """What exact replay says of two variants' acceptance lengths."""

    whole: ClusteredEstimate
    """Ratio for whole responses, at the look's confidence level"""
    steps: float
    """The denominator's mean steps of a whole response"""
    cut: float
    """Ratio for responses cut at `eval.max_tokens`"""
    cut_steps: float
    """The denominator's mean steps of a cut response"""
    trend: Trend | None = None
    """None if the log has no times or too few sessions"""


@dataclass(frozen=True)
class Noise:
    """Variance of a unit's log ratio, pooled over concurrencies."""

    variance: float
    degrees: float


def measured_ratio(units: Units, level: float = LEVEL) -> Estimate:
    """Ratio of pooled tokens/s, at the look's confidence level (sequential.py)."""
    sums_U4 = units.sums_by_unit()
    sums_4 = sums_U4.sum(axis=0)
    count = len(sums_U4)
    # The gradient of the log ratio by the four sums is +- 1 / sum (delta method).
    deviations_U = (sums_U4 / sums_4) @ np.array([1.0, -1.0, -1.0, 1.0])
    # The deviations sum to 0 by construction, so there is no mean to subtract.
    variance = count / (count - 1) * float((deviations_U**2).sum())
    value = float(speed_of(sums_4))
    return _estimate(value, _t_quantile(level, count - 1) * math.sqrt(variance), units)


def controlled_ratio(
    units: Units, replayed: ReplayedLengths, level: float = LEVEL, noise: Noise | None = None
) -> Estimate | None:
    """The speed ratio of whole responses, with replay's steps and measured times.

    `noise` replaces the units' own variance. Returns None if the replayed ratio has no interval, or
    if fewer than two units have steps of both variants.
    """
    whole = replayed.whole
    count = len(units.step_U)
    if whole.high is None or count < 2:
        return None
    first = trimmed_mean(units.first_U, level, units.trimmed)[0]
    step = trimmed_mean(units.step_U, level, units.trimmed)[0]
    log_length = math.log(whole.value)
    log_ratio, later = _log_speed(
        share=units.prefill_share(replayed.steps), first=first, step=step, length=log_length
    )
    margin = trimmed_mean(remainders(units, later), level, units.trimmed)[1]
    if noise is not None:
        margin = _t_quantile(level, noise.degrees) * math.sqrt(noise.variance / count)
    # From the upper end: the interval of the log ratio is symmetric.
    replay_margin = later * math.log(whole.high / whole.value)
    margin = math.hypot(margin, replay_margin, later * UNSEEN)
    estimate = _estimate(math.exp(log_ratio), margin, units)
    cut_ratio, _ = _log_speed(
        share=units.prefill_share(replayed.cut_steps),
        first=first,
        step=step,
        length=math.log(replayed.cut),
    )
    update = {"estimator": "replay", "expected": math.exp(cut_ratio)}
    return _of_tomorrow(estimate, replayed.trend, later).model_copy(update=update)


def _log_speed(*, share: float, first: float, step: float, length: float) -> tuple[float, float]:
    """The log speed ratio, and b: the numerator's share of time after the first token."""
    prefill = share * math.exp(first)
    later = (1 - share) * math.exp(step - length)
    return -math.log(prefill + later), later / (prefill + later)


def remainders(units: Units, later: float) -> Array:
    """y: the units' log speed ratios without what acceptance explains; `later` is b."""
    return -((1 - later) * units.first_U + later * units.step_U)


def _of_tomorrow(estimate: Estimate, trend: Trend | None, later: float) -> Estimate:
    """The estimate for the span after the held-out time, by Bayes' rule for the trend."""
    if trend is None:
        return estimate
    weight, deviation = trend_posterior(trend.error)
    margin = math.hypot(
        math.log(estimate.high / estimate.value),
        NormalDist().inv_cdf((1 + LEVEL) / 2) * later * deviation,
    )
    value = estimate.value * math.exp(later * weight * trend.slope)
    factor = math.exp(margin)
    update = {"value": value, "low": value / factor, "high": value * factor}
    return estimate.model_copy(update=update | {"heldout": estimate.value})


def trend_posterior(error: float) -> tuple[float, float]:
    """The weight of a measured trend in the expected one, and the standard deviation around it.

    The posterior of a change with the prior N(0, DRIFT^2), measured with a standard error `error`.
    """
    weight = DRIFT**2 / (DRIFT**2 + error**2)
    return weight, DRIFT * math.sqrt(1 - weight)


def pooled_noise(remainders_MU: Array) -> Noise | None:
    """The variance of a unit, pooled over M concurrencies; None without repetitions.

    Units of one column share their repeat or start. The degrees of freedom are Satterthwaite's for
    the mean of M correlated variances with the covariance matrix C: (U - 1) tr(C)^2 / tr(C^2).
    """
    count = remainders_MU.shape[1]
    left_MU = remainders_MU - remainders_MU.mean(axis=1, keepdims=True)
    if count < 2 or not left_MU.any():
        return None
    covariance_MM = left_MU @ left_MU.T / (count - 1)
    trace = float(np.trace(covariance_MM))
    degrees = (count - 1) * trace**2 / float((covariance_MM**2).sum())
    return Noise(trace / len(remainders_MU), degrees)


def served_over_replayed(
    units: Sequence[Units], replayed: Sequence[Array], prompts: Sequence[Sequence[Sequence[str]]]
) -> Interval | None:
    """Ratio of acceptance lengths as served at several concurrencies, over the replayed one.

    `replayed` holds each row's log length ratio, replayed on the logged responses to the same
    prompts, cut like the served ones, so that session effects cancel; `prompts` names each row's
    prompts. The logarithm is the mean difference from the counted ratios, weighted by requests,
    with its interval at AGREEMENT. None with fewer than two rows or prompts.

    A prompt has one logged response, however often it is served, so rows with the same prompts
    differ from replay together: base's own weights, with 20 prompts served 13 times each, were 2 %
    below replay, which is significant only for independent rows. Two rows are assumed to be
    correlated by the cosine of their vectors of how often each prompt is in them. The variance of
    the weighted sum is then a sum over prompts of squared sums: a cluster-robust variance if each
    row has one prompt, that of independent rows if no prompt occurs twice.
    """
    differences = []
    weights = []
    row_prompts: list[Counter[str]] = []
    for one, log_N, names_N in zip(units, replayed, prompts, strict=True):
        stepped_N = one.stepped_N
        differences.append(one.lengths_N - log_N[stepped_N])
        weights.append(one.requests_N)
        row_prompts += [Counter(names_N[row]) for row in np.flatnonzero(stepped_N)]
    difference_N = np.concatenate(differences)
    share_N = np.concatenate(weights)
    clusters = min(len(row_prompts), len(set[str]().union(*row_prompts)))
    if clusters < 2:
        return None
    share_N = share_N / share_N.sum()
    center = float(share_N @ difference_N)
    influence_N = share_N * (difference_N - center)
    sums: defaultdict[str, float] = defaultdict(float)
    for counts, influence in zip(row_prompts, influence_N.tolist(), strict=True):
        norm = math.sqrt(sum(number**2 for number in counts.values()))
        for name, number in counts.items():
            sums[name] += influence * number / norm
    variance = clusters / (clusters - 1) * sum(value**2 for value in sums.values())
    margin = _t_quantile(AGREEMENT, clusters - 1) * math.sqrt(variance)
    return Interval(
        value=math.exp(center), low=math.exp(center - margin), high=math.exp(center + margin)
    )


def lengths_agree(ratio: Interval | None) -> bool:
    """Whether served responses have the replayed lengths (`served_over_replayed`)."""
    if ratio is None:
        return True
    return ratio.low <= 1 <= ratio.high or abs(math.log(ratio.value)) <= NEGLIGIBLE


def speeds_agree(measured: Estimate, expected: float, lengths: Interval | None) -> bool:
    """Whether the ratio predicted for the timed responses agrees with the measured one.

    `measured` has its interval at AGREEMENT over pairs of requests or blocks. The interval of
    `lengths` is added as the root of the sum of squares, because prompts occur in several of them.
    """
    margin = math.log(measured.high / measured.value)
    if lengths is not None:
        margin = math.hypot(margin, math.log(lengths.high / lengths.value))
    return abs(math.log(expected / measured.value)) <= margin


def trimmed_mean(
    values_U: Array, level: float = LEVEL, trimmed: bool = True
) -> tuple[float, float]:
    """Mean without the highest and lowest fifth, and its interval's half-width."""
    count = len(values_U)
    if count == 1:
        return float(values_U[0]), math.inf
    ordered_U = np.sort(values_U)
    # A fifth on each side (Wilcox, Introduction to Robust Estimation and Hypothesis Testing).
    cut = count // 5 if trimmed and count >= TRIMMED else 0
    middle_U = ordered_U[cut : count - cut]
    # Winsorized standard deviation: values that were cut count as the nearest that was kept.
    spread = float(np.clip(ordered_U, middle_U[0], middle_U[-1]).std(ddof=1))
    # Tukey and McLaughlin: s_w / ((1 - 2 g) sqrt(n)), with h - 1 degrees of freedom for h values
    # that were not cut.
    error = spread / ((1 - 2 * cut / count) * math.sqrt(count))
    return float(middle_U.mean()), _t_quantile(level, len(middle_U) - 1) * error


def speed_of(sums: Array) -> Array:
    """Ratio of tokens/s from [..., 4]: tokens and seconds of each variant."""
    return (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])


def _estimate(value: float, margin: float, units: Units) -> Estimate:
    factor = math.exp(margin)
    return Estimate(
        value=value,
        low=value / factor,
        high=value * factor,
        observations=units.observations,
        clusters=units.count,
    )


@functools.cache
def _t_quantile(level: float, degrees: float) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + level) / 2, degrees))
