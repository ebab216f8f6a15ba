"""Speed ratios, measured or with exact replay's acceptance as a control variate.

    measured_ratio(units, level)
    controlled_ratio(units, replayed, level)

Two variants answer the same prompts in turn. A unit is a pair of requests if the variants alternate
by request, else a block of each. In unit u a variant takes s seconds for n tokens. The n - 1 tokens
after the first arrive in D deliveries, so the counted acceptance length is (n - 1) / D and

    log speed ratio  r_u  =  log (n / s) of the first  -  log (n / s) of the second
    log length ratio a_u  =  log ((n - 1) / D) of the first  -  log ((n - 1) / D) of the second

If step time does not depend on the number of accepted drafts, a change of log length by x changes
log speed by b x, where b is the share of a request's time after its first token (the prefill does
not depend on acceptance). So r_u = b a_u + y_u, where the remainder y_u is the log ratio of step
and prefill times. a_u is noisy because few responses are sampled, but exact replay computes its
expectation rho on the whole held-out part. With a_u as a control variate (Lavenberg and Welch,
Management Science 27, 1981), the estimate is

    mean of (r_u - b a_u)  +  b rho  =  mean of y_u  +  b rho

It is unbiased for any fixed b if the mean of a_u is rho. Its variance is the variance of y over
units plus b^2 times that of rho over sessions; the two are independent. The two margins are
combined as the root of the sum of squares (MOVER: Zou and Donner, Statistics in Medicine 27, 2008),
and b * UNSEEN is added for differences that `agree` misses.

y is the machine's noise, which has long tails: in a run of the demo, seven of eight pairs had a
standard deviation of 0.07, and one was off by 0.8 because another process occupied a core. Custom
and base take turns, so the noise is symmetric. Its location is estimated by the mean without the
highest and the lowest fifth, with Student's interval from the winsorized variance (Tukey and
McLaughlin, Sankhya A 25, 1963). Fewer than TRIMMED units are not trimmed: even with eight normally
distributed units, the trimmed interval misses in 6.0 % of cases instead of 5 %. Units that are
blocks or engine starts are not trimmed either, because their tails are short.

The measured ratio is the ratio of pooled tokens/s. To first order its log is linear in the four
sums, so the log's variance is that of the sum over units of

    d_u = (n / N - s / S) of the first  -  (n / N - s / S) of the second    (N, S: sums over units)

with U - 1 degrees of freedom (Wolter, Introduction to Variance Estimation, ch. 6). This ratio is
used if exact replay is unavailable or disagrees with it (`agree`). A replay error of 2 % is
detected in half of simulated evaluations, an error of 4 % nearly always
(benchmarks/results/judge.md).

Shapes: U units, 4 sums per variant: tokens, seconds, tokens after the first, their deliveries.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.eval.results.parts import ClusteredEstimate, Estimate
from outrider.eval.stats.intervals import LEVEL

Array = NDArray[np.float64]

TRIMMED = 8
"""Minimum number of units for trimming."""

UNSEEN = 0.01
"""Difference between served and replayed log length ratios that `agree` often misses; multiplied
by b, it is added to the controlled ratio's log margin."""

NEGLIGIBLE = 0.005
"""Difference between served and replayed log length ratios that does not count as disagreement; it
arises because responses can end within a step."""


@dataclass(frozen=True)
class Units:
    """Measurements of two variants on the same requests, by unit."""

    over_U4: Array
    """Sums of the numerator: tokens, seconds, tokens after the first, their deliveries."""
    under_U4: Array
    """Sums of the denominator."""
    later: float
    """b: share of the requests' time that comes after their first tokens."""
    observations: int
    """Number of pairs of requests."""

    @property
    def alternated(self) -> bool:
        """Whether a unit is a pair of requests."""
        return self.observations == len(self.over_U4)

    @property
    def stepped_U(self) -> NDArray[np.bool_]:
        """Per unit, whether both variants ran steps after their first tokens."""
        return (self.over_U4[:, 3] > 0) & (self.under_U4[:, 3] > 0)

    @property
    def lengths_U(self) -> Array:
        """a_u: log ratios of counted acceptance lengths, for the units in `stepped_U`."""
        return self._log_ratios_U(2)

    @property
    def left_U(self) -> Array:
        """y_u: the same units' log speed ratios minus what acceptance explains."""
        return self._log_ratios_U(0) - self.later * self.lengths_U

    def _log_ratios_U(self, column: int) -> Array:
        """Log of column `place` / column `place + 1`, `over` minus `under`."""
        over_U4 = self.over_U4[self.stepped_U]
        under_U4 = self.under_U4[self.stepped_U]
        ratios_U2 = [sums[:, column] / sums[:, column + 1] for sums in (over_U4, under_U4)]
        return np.log(ratios_U2[0] / ratios_U2[1])


def measured_ratio(units: Units, level: float = LEVEL) -> Estimate:
    """Ratio of pooled tokens/s, at the look's confidence level (sequential.py)."""
    sums_U4 = np.concatenate([units.over_U4[:, :2], units.under_U4[:, :2]], axis=1)
    sums_4 = sums_U4.sum(axis=0)
    count = len(sums_U4)
    # The gradient of the log ratio by the four sums is +- 1 / sum (delta method).
    deviations_U = (sums_U4 / sums_4) @ np.array([1.0, -1.0, -1.0, 1.0])
    # The deviations sum to 0 by construction, so there is no mean to subtract.
    variance = count / (count - 1) * float((deviations_U**2).sum())
    value = float(speed_of(sums_4))
    return _estimate(value, _t_quantile(level, count - 1) * math.sqrt(variance), units)


def controlled_ratio(
    units: Units, replayed: ClusteredEstimate, level: float = LEVEL
) -> Estimate | None:
    """The speed ratio, with the replayed acceptance-length ratio as a control variate.

    `replayed` must have confidence level `level`. Returns None if it has no interval, or if fewer
    than two units have steps of both variants.
    """
    left_U = units.left_U
    if replayed.high is None or len(left_U) < 2:
        return None
    center, margin = trimmed_mean(left_U, level, units.alternated)
    value = math.exp(center + units.later * math.log(replayed.value))
    # From the upper end: the interval of the log ratio is symmetric.
    replay_margin = units.later * math.log(replayed.high / replayed.value)
    estimate = _estimate(value, math.hypot(margin, replay_margin) + units.later * UNSEEN, units)
    return estimate.model_copy(update={"estimator": "replay"})


def agree(units: Units, replayed_U: Array, controlled: Estimate) -> bool:
    """Whether replay agrees with the served responses and can be used.

    `replayed_U` holds each unit's log length ratio, replayed on the logged responses to the same
    prompts so that session effects cancel. The mean difference from the counted ratios must lie
    within its margin (or NEGLIGIBLE), and the controlled ratio within the measured ratio's
    interval, both at 95 %.
    """
    differences_U = units.lengths_U - replayed_U[units.stepped_U]
    center, margin = trimmed_mean(differences_U, trimmed=units.alternated)
    # At 95 %, not at the look's level: the wider intervals of early looks would accept more.
    plain = measured_ratio(units)
    return abs(center) <= max(margin, NEGLIGIBLE) and plain.low <= controlled.value <= plain.high


def trimmed_mean(
    values_U: Array, level: float = LEVEL, trimmed: bool = True
) -> tuple[float, float]:
    """Mean without the highest and lowest fifth, and its interval's half-width."""
    ordered_U = np.sort(values_U)
    count = len(values_U)
    # A fifth on each side (Wilcox, Introduction to Robust Estimation and Hypothesis Testing).
    cut = count // 5 if trimmed and count >= TRIMMED else 0
    middle_U = ordered_U[cut : count - cut]
    # Winsorized standard deviation: values that were cut count as the nearest that was kept.
    spread = float(np.clip(ordered_U, middle_U[0], middle_U[-1]).std(ddof=1))
    # Tukey and McLaughlin: s_w / ((1 - 2 g) sqrt(n)), with h - 1 degrees of freedom for h values
    # that were not cut.
    error = spread / ((1 - 2 * cut / count) * math.sqrt(count))
    return float(middle_U.mean()), _t_quantile(level, len(middle_U) - 1) * error


def widened(estimate: Estimate, margin: float) -> Estimate:
    """Widens the interval by an independent margin of the log ratio."""
    factor = math.exp(math.hypot(math.log(estimate.high / estimate.low) / 2, margin))
    return estimate.model_copy(
        update={"low": estimate.value / factor, "high": estimate.value * factor}
    )


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
        clusters=len(units.over_U4),
    )


@functools.cache
def _t_quantile(level: float, degrees: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + level) / 2, degrees))
