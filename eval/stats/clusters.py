"""Intervals of ratios of sums over sessions: Student's t on the jackknifed log ratio.

    clustered(sums_NM, sessions, ratio_of_ratios)

    def ratio_of_ratios(sums):
        return (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])

Requests of one session are alike, and base and custom are measured on the same requests. So whole
sessions are left out in turn, and both speculators' sums of a session stay together. The ratio is
computed last, from pooled sums. A mean of ratios would give a short response the weight of a long
one, and would be biased by the ratio's curvature.

The error of the log ratio comes from its values without each session (jackknife). Sessions are few
and of unequal size: with a true ratio of 1 and log-normal sizes, percentiles of resampled sessions
are wholly above 1 in 25 % of cases with 2 sessions, 10 % with 5 and 5 % with 30, and Student's t
with G - 1 degrees of freedom in 4 to 5 %. So the degrees of freedom follow from the sizes (Bell and
McCaffrey, Survey Methodology 28, 2002): G - 1 for equal sessions, few where a few sessions hold
most tokens. The low end is then above the truth in at most 3 % of cases from LEAST_SESSIONS
sessions on (tests/eval/stats/test_clusters.py). With fewer, no interval is given.

Shapes: N observations, M sums carried together, G clusters.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.common.jackknife import LEAST_SESSIONS, degrees_of_freedom
from outrider.eval.results.parts import ClusteredEstimate
from outrider.eval.stats.intervals import LEVEL

Array = NDArray[np.float64]

Statistic = Callable[[Array], Any]
"""A positive function of pooled sums: [..., M] -> [...]."""


def clustered(
    sums_NM: Array, clusters: Sequence[Hashable], statistic: Statistic, level: float = LEVEL
) -> ClusteredEstimate:
    """`statistic` of the pooled sums, with Student's interval over clusters."""
    sums_NM = np.asarray(sums_NM, dtype=np.float64)
    _, cluster_N = np.unique(np.asarray(clusters), return_inverse=True)
    count = int(cluster_N.max()) + 1
    sums_GM = np.zeros((count, sums_NM.shape[1]))
    np.add.at(sums_GM, cluster_N, sums_NM)
    low, high = None, None
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(sums_GM.sum(axis=0)))
        if count >= LEAST_SESSIONS:
            without_G = np.log(statistic(sums_GM.sum(axis=0) - sums_GM))
            if np.isfinite(without_G).all() and value > 0:
                share_G = (sums_GM / sums_GM.sum(axis=0)).mean(axis=1)
                margin = float(jackknife_margin(without_G[None], share_G[None], level)[0])
                low, high = value * math.exp(-margin), value * math.exp(margin)
    return ClusteredEstimate(
        value=value, low=low, high=high, observations=len(sums_NM), clusters=count
    )


def jackknife_margin(without_RG: Array, share_RG: Array, level: float = LEVEL) -> Array:
    """Half the width of the interval of a log ratio, by row.

    `without_RG` is the log ratio without each cluster, `share_RG` each cluster's share of the sums.
    """
    from scipy.stats import t

    count = without_RG.shape[1]
    center_R1 = without_RG.mean(axis=1, keepdims=True)
    variance_R = (count - 1) / count * ((without_RG - center_R1) ** 2).sum(axis=1)
    quantile_R = t.ppf((1 + level) / 2, degrees_of_freedom(share_RG))
    margin: Array = quantile_R * np.sqrt(variance_R)
    return margin
