"""Ratios of speeds, from few timed blocks or from alternated requests, with Student's intervals.

    noise = block_noise([blocks_at_1, blocks_at_4, blocks_at_8])
    speed_ratio(blocks_at_4, noise)
    alternated_ratio(pairs_at_1)

All requests of a block share the machine's noise, and there are two to eight blocks of a kind.
Percentiles over two resampled blocks cover the truth in about half of all cases. So the interval
is Student's t, from the distance of each block's log ratio to the mean of its kind. Two variances
are estimated: that of the kind's own blocks, and one pooled over all concurrencies and engine modes
(a one-way analysis of variance). The larger margin is the interval. The own blocks alone may be
equal by chance. The pooled variance alone is too small for a kind whose blocks are noisier than the
others: an equal custom was then shown to be faster in 10 to 12 % of simulations, and with the
larger margin in at most 2.5 % (benchmarks/results/judge.md). Where resampled prompts give a wider
interval, that one is reported.

Requests that alternate between the two variants do not share a block's noise: each pair is an
observation, and the spread of the pairs is all the noise there is.

Shapes: N requests, M = 4 sums, S resamples. A block is [N, 4], by request: tokens and seconds of
the first variant, tokens and seconds of the second.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from outrider.eval.config import BOOTSTRAP_SAMPLES, SEED
from outrider.eval.results.parts import Estimate
from outrider.eval.stats.intervals import LEVEL, percentile_interval


@dataclass(frozen=True)
class BlockNoise:
    """Variance of a block's log ratio around the mean of its kind."""

    variance: float
    """Of prompts and machine together."""
    degrees: int
    """Degrees of freedom: blocks minus kinds."""

    def margin(self, blocks: int, level: float = LEVEL) -> float:
        """Half the width of the interval of a log ratio from `blocks` blocks."""
        return _margin(self.variance / blocks, self.degrees, level)


def block_noise(kinds: Iterable[Sequence[np.ndarray]]) -> BlockNoise | None:
    """Pooled noise of the blocks of each kind (engine mode, concurrency).

    None where no kind has two blocks.
    """
    squares, degrees = 0.0, 0
    for blocks in kinds:
        logs = np.log([_ratio(block.sum(axis=0)) for block in blocks])
        squares += float(((logs - logs.mean()) ** 2).sum())
        degrees += len(logs) - 1
    return BlockNoise(squares / degrees, degrees) if degrees else None


def speed_ratio(
    blocks: Sequence[np.ndarray],
    noise: BlockNoise | None,
    *,
    samples: int = BOOTSTRAP_SAMPLES,
    level: float = LEVEL,
) -> Estimate:
    """Ratio of pooled tokens/s, from blocks.

    The margin is the larger of that from `noise`, which is pooled, and from these blocks alone.
    Where neither can be estimated, the interval holds the prompts' variation only. `level` is the
    look's where the measurement stops when it is decided (sequential.py).
    """
    value = float(_ratio(np.sum([block.sum(axis=0) for block in blocks], axis=0)))
    random, drawn_SM = np.random.default_rng(SEED), np.zeros((samples, 4))
    for block in blocks:
        even = np.full(len(block), 1 / len(block))
        drawn_SM += random.multinomial(len(block), even, size=samples) @ block
    low, high = percentile_interval(_ratio(drawn_SM), level)
    for variance in (noise, block_noise([blocks])):
        if variance is not None:
            factor = float(np.exp(variance.margin(len(blocks), level)))
            low, high = min(low, value / factor), max(high, value * factor)
    observations = sum(map(len, blocks))
    return Estimate(
        value=value, low=low, high=high, observations=observations, clusters=len(blocks)
    )


def alternated_ratio(pairs_N4: np.ndarray, level: float = LEVEL) -> Estimate:
    """Ratio of pooled tokens/s, from N >= 2 pairs of requests that follow each other.

    To first order the log ratio is linear in the four sums, so its variance is that of the sum over
    pairs of

        d_i = a_i / A - s_i / S - b_i / B + u_i / U

    (tokens and seconds of the first variant, tokens and seconds of the second; capitals are sums),
    estimated as N / (N - 1) times the sum of d_i squared, with N - 1 degrees of freedom (Taylor
    series: Wolter, Introduction to Variance Estimation, ch. 6). `level` as in `speed_ratio`.
    """
    sums_M, count = pairs_N4.sum(axis=0), len(pairs_N4)
    deviations_N = (pairs_N4 / sums_M) @ np.array([1.0, -1.0, -1.0, 1.0])
    variance = count / (count - 1) * float((deviations_N**2).sum())
    value = float(_ratio(sums_M))
    factor = float(np.exp(_margin(variance, count - 1, level)))
    return Estimate(
        value=value,
        low=value / factor,
        high=value * factor,
        observations=count,
        clusters=count,
    )


def _margin(variance: float, degrees: int, level: float) -> float:
    """Half the width of Student's interval of a mean with that variance."""
    return _t_quantile((1 + level) / 2, degrees) * float(np.sqrt(variance))


@functools.cache
def _t_quantile(probability: float, degrees: int) -> float:
    from scipy.stats import t

    return float(t.ppf(probability, degrees))


def _ratio(sums: np.ndarray) -> np.ndarray:
    return (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])
