"""TOST: are as many tasks solved with speculation as without?

    equivalence(differences, sessions).within(0.1)

A test that finds no difference is no evidence of equality: with few responses it never finds one.
So the null hypothesis is a difference as large as the margin, and two one-sided tests at 5 % must
reject it from above and from below (Schuirmann 1987). Both do exactly when the 90 % interval lies
inside the margins.

Differences are +1 (solved with speculation only), -1 (without only) or 0. Where all are 0 a
bootstrap or a plain Wald interval has no width, however few they are. So half a response of each
kind is added (Agresti and Min 2005), here to the variance over sessions.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import norm

from outrider.eval.results.verification import Equivalence

LEVEL = 0.05
"""Level of each of the two tests."""

Z = float(norm.isf(LEVEL))


def equivalence(differences: Sequence[float], clusters: Sequence[str]) -> Equivalence:
    """The mean difference with its 90 % interval."""
    difference_N, n = np.asarray(differences, np.float64), len(differences)
    value = float(difference_N.mean())
    _, cluster_N = np.unique(np.asarray(clusters), return_inverse=True)
    residual_G = np.bincount(cluster_N, difference_N - value)
    spread = float((residual_G**2).sum())
    error = _error(spread, n)
    low, high = value - Z * error, value + Z * error
    return Equivalence(
        value=value,
        low=low,
        high=high,
        variance=spread / n,
        observations=n,
        clusters=len(residual_G),
    )


def responses_needed(variance: float, margin: float) -> int:
    """Least number of responses whose interval around 0 lies inside the margins.

    `variance` is what each response adds to the sum of squares.
    """
    # Z sqrt(v n + 1) < margin (n + 2), a quadratic in n.
    ratio = (margin / Z) ** 2
    linear, constant = 4 * ratio - variance, 4 * ratio - 1
    root = (-linear + math.sqrt(max(0.0, linear**2 - 4 * ratio * constant))) / (2 * ratio)
    needed = max(1, math.floor(root))
    while Z * _error(variance * needed, needed) >= margin:
        needed += 1
    return needed


def _error(spread: float, n: int) -> float:
    return math.sqrt(spread + 1) / (n + 2)
