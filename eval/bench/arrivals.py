"""When the requests of an open-loop block are sent: as the customer's came, faster or slower.

    arrivals = customers_arrivals(times, count=160, rate=8.0, seed=0)
    arrivals.seconds       # [0.0, 0.31, 0.33, ...]: 160 of them, 8 a second on average
    arrivals.source        # "log", or "poisson" where the log has no times

A closed loop of C requests waits for an answer before it asks again, so it slows down with the server and never overruns it. Customers
do not: the rate is theirs, requests come in bursts, and what a server cannot take at once queues. The gaps between the log's requests
are kept in proportion, all multiplied by one factor, so that bursts stay bursts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Arrivals:
    """The times of one block's requests."""

    seconds: list[float]
    """After the block's start, not falling; the first is 0."""
    source: str
    """`log`: the customer's times, scaled. `poisson`: drawn, because the log has none."""
    spread: float
    """Standard deviation over mean of the gaps: 0 evenly spaced, about 1 for a Poisson process, more where requests come in bursts."""


def customers_arrivals(
    times: Sequence[float | None], count: int, rate: float, seed: int
) -> Arrivals:
    """`count` times, `rate` a second: the (count - 1) gaps are those of `times` (unix seconds, not falling), multiplied so that they last
    (count - 1) / rate seconds together.

    Where more are wanted than the log has, it is gone through again, a mean gap after its end. Without times in the log the gaps are
    drawn from an exponential distribution (a Poisson process), the same for the same seed, count and scaled alike.
    """
    if count < 2:
        raise ValueError(f"customers_arrivals: {count} arrivals have no gap between them")
    gaps, source = np.zeros(count - 1), "log"
    if has_times(times):
        log = np.diff([time for time in times if time is not None])
        gaps = np.resize([*log, log.mean()], count - 1)
    if not gaps.any():
        gaps, source = np.random.default_rng(seed).exponential(size=count - 1), "poisson"
    gaps *= (count - 1) / rate / gaps.sum()
    return Arrivals([0.0, *np.cumsum(gaps).tolist()], source, float(gaps.std() / gaps.mean()))


def has_times(times: Sequence[float | None]) -> bool:
    """Whether most requests of a log have a time, and these span some."""
    logged = [time for time in times if time is not None]
    return len(logged) > len(times) / 2 and logged[-1] > logged[0]
