"""Bootstrap intervals of paired, clustered ratios, and Wilson's interval of a share.

    bootstrap(sums_NM, clusters, ratio_of_ratios, samples=2000, seed=0)

    def ratio_of_ratios(sums):
        return (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])

Requests of one session are alike, and base and custom are measured on the same requests. So whole
clusters are drawn with replacement, and each draw keeps both speculators' sums together. The ratio
is computed last, from pooled sums. A mean of ratios would give a short response the weight of a
long one, and would be biased by the ratio's curvature.

This needs many clusters. For timed blocks, which are few, see speed_ratio.py.

Shapes: N observations, M sums carried together, G clusters, S resamples.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

LEVEL = 0.95
"""Confidence level of every interval that is reported."""

Statistic = Callable[[np.ndarray], np.ndarray]
"""A function of pooled sums: [..., M] -> [...]."""


class Interval(Protocol):
    """Anything with a lower and an upper end."""

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float
    observations: int
    clusters: int
    """Independent units that the interval rests on."""

    @property
    def ci95(self) -> list[float]:
        """The interval as a pair."""
        return [self.low, self.high]

    def as_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)


def bootstrap(
    sums_NM: np.ndarray,
    clusters: Sequence[Hashable],
    statistic: Statistic,
    *,
    samples: int,
    seed: int,
    level: float = LEVEL,
) -> Estimate:
    """Percentile bootstrap of `statistic` over clusters.

    `level` other than 0.95 is for repeated looks at growing data (sequential.py).
    """
    sums_NM = np.asarray(sums_NM, dtype=np.float64)
    _, cluster_N = np.unique(np.asarray(clusters), return_inverse=True)
    groups = int(cluster_N.max()) + 1
    sums_GM = np.zeros((groups, sums_NM.shape[1]))
    np.add.at(sums_GM, cluster_N, sums_NM)
    draws_SG = np.random.default_rng(seed).multinomial(
        groups, np.full(groups, 1 / groups), size=samples
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(sums_GM.sum(axis=0)))
        drawn_S = statistic(draws_SG @ sums_GM)
    low, high = percentile_interval(drawn_S[np.isfinite(drawn_S)], level)
    return Estimate(value, low, high, len(sums_NM), groups)


def percentile_interval(drawn_S: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """The central `level` of resampled values."""
    low, high = np.quantile(drawn_S, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def share_interval(successes: int, trials: int) -> list[float]:
    """Wilson's interval of a share.

    Near 0 and 1 a bootstrap of few trials has no width; Wilson's interval has.
    """
    from scipy.stats import binomtest

    if not trials:
        return [0.0, 1.0]
    interval = binomtest(successes, trials).proportion_ci(LEVEL, method="wilson")
    return [float(interval.low), float(interval.high)]
