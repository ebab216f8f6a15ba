"""Intervals that respect how the data came: paired, clustered, and on sums.

Requests of one session resemble each other, and base and custom are measured on the same requests. So whole clusters are drawn
with replacement, each draw takes both speculators' sums along, and the ratio is formed last: a ratio of pooled sums, never a mean of
ratios (short responses would weigh as much as long ones, and the ratio's own curvature biases it).

    bootstrap(sums_NM, clusters, lambda s: (s[..., 0] / s[..., 1]) / (s[..., 2] / s[..., 3]), samples=2000, seed=0)

Clusters must be many. Timed blocks are few: timed_ratios.py.

Shapes: N observations, M sums carried together, G clusters, S resamples.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Estimate:
    """A figure, its 95 % interval, and what it rests on."""

    value: float
    low: float
    high: float
    observations: int
    clusters: int

    @property
    def ci95(self) -> list[float]:
        """The interval as a pair."""
        return [self.low, self.high]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def bootstrap(
    sums_NM: np.ndarray,
    clusters: Sequence,
    statistic: Callable[[np.ndarray], np.ndarray],
    *,
    samples: int,
    seed: int,
) -> Estimate:
    """Percentile bootstrap over clusters of `statistic`, a function of pooled sums [..., M] -> [...]."""
    sums_NM = np.asarray(sums_NM, dtype=np.float64)
    _, cluster_N = np.unique(np.asarray(clusters), return_inverse=True)
    groups = int(cluster_N.max()) + 1
    sums_GM = np.zeros((groups, sums_NM.shape[1]))
    np.add.at(sums_GM, cluster_N, sums_NM)
    draws_SG = np.random.default_rng(seed).multinomial(
        groups, np.full(groups, 1 / groups), size=samples
    )
    return _estimate(statistic, sums_GM.sum(axis=0), draws_SG @ sums_GM, len(sums_NM), groups)


def share_interval(successes: int, trials: int) -> list[float]:
    """Wilson's 95 % interval of a share: honest near 0 and 1, where a bootstrap of few trials has no width."""
    if not trials:
        return [0.0, 1.0]
    z, share = 1.959964, successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = (
        z
        * np.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
        / (1 + z * z / trials)
    )
    return [float(max(0.0, middle - half)), float(min(1.0, middle + half))]


def _estimate(
    statistic: Callable[[np.ndarray], np.ndarray],
    pooled_M: np.ndarray,
    drawn_SM: np.ndarray,
    n: int,
    clusters: int,
) -> Estimate:
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = statistic(drawn_SM)
        low, high = np.quantile(drawn[np.isfinite(drawn)], [0.025, 0.975])
        return Estimate(float(statistic(pooled_M)), float(low), float(high), n, clusters)
