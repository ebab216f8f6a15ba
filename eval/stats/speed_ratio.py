"""Ratios of speeds: as measured, and with exact replay's acceptance as a control variate.

    measured_ratio(units, level)
    controlled_ratio(units, replayed, level)

A unit is two variants answering the same prompts next to each other: one pair of requests where
they alternate, else a block of each. In unit u a variant takes s seconds for n tokens, of which D
deliveries after the first token bring n - 1, so its counted acceptance length is (n - 1) / D and

    log speed ratio  r_u  =  log (n / s) of the first  -  the same of the second
    log length ratio a_u  =  log ((n - 1) / D) of the first  -  the same of the second

If a step takes the same time whatever it accepts, a change of log length by x changes log speed by
b x, where b is the share of a request's time that comes after its first token (the prefill does not
depend on acceptance). So r_u = b a_u + y_u: what is left, y_u, is the ratio of the times of a step
and of the prefills. The few sampled responses of a measurement make a_u noisy, but its expectation
rho is what exact replay computes on the whole held-out part. With a_u as control variate (Lavenberg
and Welch, Management Science 27, 1981) the estimate is

    mean of (r_u - b a_u)  +  b rho  =  mean of y_u  +  b rho

It is unbiased for any fixed b if the mean of a_u is rho, and its variance is that of y over units
plus b^2 times that of rho over sessions, which are independent. The two margins are combined as
roots of squares (MOVER: Zou and Donner, Statistics in Medicine 27, 2008), and b UNSEEN is added for
what the test of their agreement misses.

What is left in y is the machine. Its noise has long tails: in a run of the demo seven of eight
pairs had a standard deviation of 0.07, and one was off by 0.8, because another process had a core
during one request. Custom and base take turns, so the noise of y is symmetric, and its location is
estimated by the mean without the highest and the lowest fifth, with Student's interval from the
winsorized variance (Tukey and McLaughlin, Sankhya A 25, 1963). Fewer than TRIMMED units are not
trimmed, nor are blocks and starts: their tails are short, and of eight normal units the trimmed
interval misses in 6.0 % instead of 5 %.

The measured ratio is that of pooled tokens/s, with Taylor's variance over units: to first order its
log is linear in the four sums, so its variance is that of the sum over units of

    d_u = n / N - s / S  of the first  -  the same of the second      (capitals are sums)

with U - 1 degrees of freedom (Wolter, Introduction to Variance Estimation, ch. 6). It decides where
exact replay is not available, or where the two do not agree (`agree`). A replay that is 2 % off is
noticed in half of simulated evaluations, one that is 4 % off nearly always
(benchmarks/results/judge.md).

Shapes: U units, 4 sums by variant: tokens, seconds, tokens after the first, deliveries of those.
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
"""Least units that are trimmed."""

UNSEEN = 0.01
"""Difference of served and replayed log length ratios that `agree` often misses; the controlled
ratio's interval is wider by it on both sides."""

NEGLIGIBLE = 0.005
"""Difference of served and replayed log length ratios that is not a disagreement: a response's last
step is cut by its end."""


@dataclass(frozen=True)
class Units:
    """Two variants on the same requests, by unit."""

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
        """Whether both made steps after their first tokens."""
        return (self.over_U4[:, 3] > 0) & (self.under_U4[:, 3] > 0)

    @property
    def lengths_U(self) -> Array:
        """a_u: log ratios of counted acceptance lengths, of units in which both made steps."""
        over_U4, under_U4 = self.over_U4[self.stepped_U], self.under_U4[self.stepped_U]
        return _logs(over_U4, 2) - _logs(under_U4, 2)

    @property
    def left_U(self) -> Array:
        """y_u: log speed ratios without what acceptance explains, of the same units."""
        over_U4, under_U4 = self.over_U4[self.stepped_U], self.under_U4[self.stepped_U]
        speeds_U = _logs(over_U4, 0) - _logs(under_U4, 0)
        return speeds_U - self.later * self.lengths_U


def _logs(sums_U4: Array, place: int) -> Array:
    """Log of a count over the one after it."""
    return np.log(sums_U4[:, place] / sums_U4[:, place + 1])


def measured_ratio(units: Units, level: float = LEVEL) -> Estimate:
    """Ratio of pooled tokens/s; `level` is the look's where a measurement may end early."""
    sums_U4 = np.concatenate([units.over_U4[:, :2], units.under_U4[:, :2]], axis=1)
    sums_4, count = sums_U4.sum(axis=0), len(sums_U4)
    deviations_U = (sums_U4 / sums_4) @ np.array([1.0, -1.0, -1.0, 1.0])
    variance = count / (count - 1) * float((deviations_U**2).sum())
    value = float(speed_of(sums_4))
    margin = _t_quantile(level, count - 1) * math.sqrt(variance)
    return _estimate(value, margin, units)


def controlled_ratio(
    units: Units, replayed: ClusteredEstimate, level: float = LEVEL
) -> Estimate | None:
    """The ratio with `replayed`, the ratio of acceptance lengths, as control variate.

    `replayed` has the same level. None if it has no interval, or if fewer than two units made
    steps.
    """
    left_U = units.left_U
    if replayed.high is None or len(left_U) < 2:
        return None
    center, margin = trimmed_mean(left_U, level, units.alternated)
    value = math.exp(center + units.later * math.log(replayed.value))
    replay_margin = units.later * math.log(replayed.high / replayed.value)
    found = _estimate(value, math.hypot(margin, replay_margin) + units.later * UNSEEN, units)
    return found.model_copy(update={"estimator": "replay"})


def agree(units: Units, replayed_U: Array, controlled: Estimate) -> bool:
    """Whether replay describes what was served, so that it may decide.

    `replayed_U` are the log length ratios by replay of the logged responses to the same prompts,
    one for each unit: what a session's requests have in common is in both. Their distance to the
    counted ones must not differ from 0 beyond chance (or NEGLIGIBLE), and the controlled ratio must
    lie in the interval of the measured one, both at 95 %.
    """
    differences_U = units.lengths_U - replayed_U[units.stepped_U]
    center, margin = trimmed_mean(differences_U, trimmed=units.alternated)
    plain = measured_ratio(units)
    return abs(center) <= max(margin, NEGLIGIBLE) and plain.low <= controlled.value <= plain.high


def trimmed_mean(
    values_U: Array, level: float = LEVEL, trimmed: bool = True
) -> tuple[float, float]:
    """Mean without the highest and the lowest fifth, and half the width of its interval."""
    ordered_U, count = np.sort(values_U), len(values_U)
    cut = count // 5 if trimmed and count >= TRIMMED else 0
    kept = ordered_U[cut : count - cut]
    spread = float(np.clip(ordered_U, kept[0], kept[-1]).std(ddof=1))
    error = spread / ((1 - 2 * cut / count) * math.sqrt(count))
    return float(kept.mean()), _t_quantile(level, len(kept) - 1) * error


def widened(estimate: Estimate, margin: float) -> Estimate:
    """The interval with an independent margin of the log ratio added."""
    own = math.log(estimate.high / estimate.low) / 2
    factor = math.exp(math.hypot(own, margin))
    return estimate.model_copy(
        update={"low": estimate.value / factor, "high": estimate.value * factor}
    )


def speed_of(sums: Array) -> Array:
    """Ratio of tokens/s, from [..., 4]: tokens and seconds of the first, and of the second."""
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
