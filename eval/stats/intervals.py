"""What all intervals share: the level, percentiles, and how many units would decide.

units_needed(1.1, 0.98, 1.2, threshold=1.0, units=3)      # 4
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


def percentile_interval(drawn_S: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """The central `level` of resampled values."""
    low, high = np.quantile(drawn_S, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
