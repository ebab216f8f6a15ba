"""What all intervals share: the level, percentiles, and how many units would decide.

units_needed(1.1, 0.98, 1.2, threshold=1.0, units=3)      # 4
given_passed(1.10, 1.04, threshold=1.0)                   # 1.096
"""

import math

import numpy as np

LEVEL = 0.95
"""Confidence level of every interval that is reported."""


def units_needed(value: float, low: float, high: float, threshold: float, units: int) -> float:
    """How many units would take the interval of a ratio off the threshold, if it stays.

    The width of a log ratio's interval falls with the root of the number of units. Infinite where
    the ratio is the threshold.
    """
    half_width, distance = math.log(high / low) / 2, abs(math.log(value / threshold))
    return math.ceil(units * (half_width / distance) ** 2) if distance else math.inf


def given_passed(value: float, low: float, threshold: float) -> float:
    """The ratio, corrected for being seen only because its interval lies above `threshold`.

    Where the power is low, only estimates that came out high pass. In standard errors s (half of
    the interval's half-width, of the log) a passed estimate r is a normal variable above the
    threshold + 2 s. The median-unbiased mean m of it solves P(R > r | R > threshold + 2 s; m) =
    1/2; it is at least the threshold. A true 1.10 is then reported within 1 % on average at a power
    of 0.35 to 0.9, where r itself is 0.6 to 7 % too large.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    error = math.log(value / low) / 2
    if error == 0:
        return value
    above = math.log(low / threshold) / error

    def excess(mean: float) -> float:
        return float(norm.logcdf(mean - above) - norm.logcdf(mean) + math.log(2))

    mean = -2.0 if excess(-2.0) >= 0 else brentq(excess, -2.0, above + 1)
    return threshold * math.exp((mean + 2) * error)


def percentile_interval(drawn_S: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """The central `level` of resampled values."""
    low, high = np.quantile(drawn_S, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
