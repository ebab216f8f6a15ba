"""Ratios of speeds from few timed blocks, with intervals that hold.

A block meets the machine in one mood, all its requests alike, and there are two or three blocks of a kind. Percentiles over resampled blocks
then span little more than the blocks themselves: at two blocks they cover the truth in about half of all cases, not in 95 %. But blocks of all
concurrencies and engine modes meet the same machine. So their noise is estimated together, from how far each block's log ratio lies from the
mean of its own kind, and the interval is Student's t with as many degrees of freedom (a one-way analysis of variance with common variance).
Where the prompts alone leave more doubt, by bootstrap within blocks, that interval holds.

Requests asked of the two in turn, one by one, are not bound to a block's mood: each pair is an observation of its own, and their spread is all
the noise there is.

    noise = block_noise([blocks_at_1, blocks_at_4, blocks_at_8])
    speed_ratio(blocks_at_4, noise, samples=2000, seed=0)
    alternated_ratio(pairs_at_1)

Shapes: N requests, M = 4 sums, S resamples. A block is [N, 4]: tokens and seconds of the one variant, tokens and seconds of the other, by request.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from outrider.eval.stats.bootstrap import Estimate


@dataclass(frozen=True)
class BlockNoise:
    """How far a block's log ratio lies from others of its kind: prompts and the machine together."""

    variance: float
    degrees: int
    """Of freedom: blocks less kinds."""

    def margin(self, blocks: int) -> float:
        """Half the width of the 95 % interval of a log ratio that so many blocks have."""
        return _margin(self.variance / blocks, self.degrees)


def block_noise(kinds: Iterable[Sequence[np.ndarray]]) -> BlockNoise | None:
    """From the blocks of each kind (engine mode, concurrency); None where no kind has two."""
    squares, degrees = 0.0, 0
    for blocks in kinds:
        logs = np.log([_ratio(block.sum(axis=0)) for block in blocks])
        squares += float(((logs - logs.mean()) ** 2).sum())
        degrees += len(logs) - 1
    return BlockNoise(squares / degrees, degrees) if degrees else None


def speed_ratio(
    blocks: Sequence[np.ndarray], noise: BlockNoise | None, *, samples: int, seed: int
) -> Estimate:
    """The ratio of pooled tokens over pooled seconds. Without `noise` its interval is the prompts' alone."""
    value = float(_ratio(np.sum([block.sum(axis=0) for block in blocks], axis=0)))
    random, drawn_SM = np.random.default_rng(seed), np.zeros((samples, 4))
    for block in blocks:
        drawn_SM += (
            random.multinomial(len(block), np.full(len(block), 1 / len(block)), size=samples)
            @ block
        )
    low, high = np.quantile(_ratio(drawn_SM), [0.025, 0.975])
    if noise is not None:
        factor = np.exp(noise.margin(len(blocks)))
        low, high = min(low, value / factor), max(high, value * factor)
    return Estimate(value, float(low), float(high), sum(map(len, blocks)), len(blocks))


def alternated_ratio(pairs_N4: np.ndarray) -> Estimate:
    """The ratio of pooled tokens over pooled seconds of N >= 2 pairs, each of two requests asked one right after the other.

    Student's interval of its logarithm: log r is linear in the four sums to first order, so its variance is that of the sum over pairs of

        d_i = a_i / A - s_i / S - b_i / B + u_i / U

    (tokens and seconds of the one and of the other, capitals their sums), estimated as N / (N - 1) times the sum of d_i squared, with N - 1
    degrees of freedom (Taylor series: Wolter, Introduction to Variance Estimation, ch. 6).
    """
    sums_M, count = pairs_N4.sum(axis=0), len(pairs_N4)
    deviations_N = (pairs_N4 / sums_M) @ np.array([1.0, -1.0, -1.0, 1.0])
    variance = count / (count - 1) * float((deviations_N**2).sum())
    value, factor = float(_ratio(sums_M)), float(np.exp(_margin(variance, count - 1)))
    return Estimate(value, value / factor, value * factor, count, count)


def _margin(variance: float, degrees: int) -> float:
    """Half the width of Student's 95 % interval of a mean with that variance."""
    from scipy.stats import t

    return float(t.ppf(0.975, degrees) * np.sqrt(variance))


def _ratio(sums: np.ndarray) -> np.ndarray:
    return (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])
