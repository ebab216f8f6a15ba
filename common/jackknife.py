"""Degrees of freedom of intervals from a few sessions of unequal size.

degrees_of_freedom([[0.25, 0.25, 0.25, 0.25]])      # [3.]

Shapes: R rows, G clusters.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

LEAST_SESSIONS = 5
"""Minimum number of held-out sessions, or groups of prompts, for an interval. With fewer, the
variance has so few degrees of freedom that the interval would be too wide to decide anything."""

ENOUGH_SESSIONS = 30
"""Minimum number of held-out sessions for an interval about as narrow as the spread allows:
Student's t is then within 5 % of the normal quantile."""


def degrees_of_freedom(share_RG: ArrayLike) -> Array:
    """Satterthwaite's degrees of freedom of the jackknife variance, by row.

    The variance is a quadratic form sum_g a_g e_g^2 of the clusters' residuals e, with weights a =
    w^2 / (1 - w)^2 from their shares w. For identically distributed clusters the residuals have the
    covariance C = 1[g = h] - w_g - w_h + sum(w^2), and the form has tr(AC)^2 / tr(ACAC) degrees of
    freedom (Bell and McCaffrey, Survey Methodology 28, 2002). Expanding the squares of C leaves
    only sums over clusters.
    """
    share_RG = np.asarray(share_RG, dtype=np.float64)
    weight = share_RG**2 / (1 - share_RG) ** 2
    total = (share_RG**2).sum(axis=1)
    zeroth, first, second = ((weight * share_RG**power).sum(axis=1) for power in range(3))
    trace = (1 + total) * zeroth - 2 * first
    between = total**2 * zeroth**2 + 2 * (zeroth * second + first**2) - 4 * total * zeroth * first
    within = (weight**2 * (1 + 2 * (total[:, None] - 2 * share_RG))).sum(axis=1)
    return np.maximum(trace**2 / (between + within), 1.0)
