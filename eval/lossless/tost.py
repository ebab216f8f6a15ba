"""Are tasks solved as often with speculation as without? Two one-sided tests against a margin, on paired responses.

"No difference was found" is no evidence of none: few responses find nothing. So the burden is turned round (Schuirmann 1987): the
difference is taken to be as large as the margin until the data speak against it, from above and from below. Each side is tested at 5 %,
which is the same as the 90 % interval lying inside the margins.

    equivalence(differences, sessions, margin=0.1)["equivalent"]

Differences are +1 (solved with, not without), -1 or 0. Where all are 0 a bootstrap or a plain Wald interval has no width however few
they are; half a response of each kind is added (Agresti and Min 2005), here to the variance over sessions.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Z = 1.644854
"""Of one test at 5 %."""


def equivalence(
    differences: Sequence[float], clusters: Sequence[str], margin: float
) -> dict[str, Any]:
    """`value` and its 90 % interval, `p_value` (the larger of the two tests'), `equivalent`, and `responses_needed`: how many would have
    an interval inside the margins if there were no difference and responses varied as these do."""
    difference_N = np.asarray(differences, np.float64)
    n, value = len(difference_N), float(difference_N.mean())
    _, cluster_N = np.unique(np.asarray(clusters), return_inverse=True)
    residual_G = np.bincount(cluster_N, difference_N - value)
    spread = float((residual_G**2).sum())
    error = _error(spread, n)
    p_value = max(_above((value + margin) / error), _above((margin - value) / error))
    low, high = value - Z * error, value + Z * error
    return {
        "value": value,
        "low": low,
        "high": high,
        "confidence": 0.9,
        "margin": margin,
        "p_value": p_value,
        "equivalent": low > -margin and high < margin,
        "variance": spread / n,
        "responses_needed": responses_needed(spread / n, margin),
        "observations": n,
        "clusters": len(residual_G),
    }


def responses_needed(variance: float, margin: float) -> int:
    """The least number of responses whose interval around 0 lies inside the margins, each adding `variance` to the sum of squares."""
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


def _above(z: float) -> float:
    """The normal distribution's tail above z."""
    return math.erfc(z / math.sqrt(2)) / 2
