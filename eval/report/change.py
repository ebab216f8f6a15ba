"""The change of a figure between two runs, and whether it is beyond chance.

    change(march.replay.ratio, april.replay.ratio, comparisons=1).beyond_chance

Runs are treated as independent samples. The standard error of a figure's logarithm is half the
width of its interval's logarithm, divided by 1.96.
"""

import math

from pydantic import BaseModel
from scipy.stats import norm

from outrider.eval.results.parts import ClusteredEstimate, Estimate

Z = float(norm.isf(0.025))

LEVEL = 0.05
"""Significance level of all comparisons together."""


class Change(BaseModel):
    """Ratio of a later run's figure to the first's, with its interval."""

    value: float
    low: float
    """Low end of the interval, at a confidence of 1 - LEVEL for all comparisons together"""
    high: float
    """High end"""
    beyond_chance: bool
    """Whether the interval excludes 1"""

    def __str__(self) -> str:
        return f"× {self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def change(
    first: ClusteredEstimate | Estimate, later: ClusteredEstimate | Estimate, comparisons: int
) -> Change:
    """Returns later / first, its interval, and whether it differs from 1.

    The estimates must be independent and positive, and must have intervals. By Bonferroni, since
    any of the `comparisons` may differ by chance, each has the level LEVEL / `comparisons`.
    """
    widths = [
        math.log(estimate.high / estimate.low)
        for estimate in (first, later)
        if estimate.low and estimate.high
    ]
    # The two runs are on different responses, so their variances add; a width is 2 Z standard
    # errors.
    error = math.hypot(*widths) / (2 * Z)
    shift = math.log(later.value / first.value)
    half_width = error * float(norm.isf(LEVEL / comparisons / 2))
    return Change(
        value=math.exp(shift),
        low=math.exp(shift - half_width),
        high=math.exp(shift + half_width),
        beyond_chance=abs(shift) > half_width,
    )
