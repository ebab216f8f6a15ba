"""Arrival times of an open-loop block: the customer's, scaled to a rate.

    arrivals = customers_arrivals(times, count=160, rate=8.0, seed=0)
    arrivals.seconds       # [0.0, 0.31, 0.33, ...]: 160 of them, 8 a second on average
    arrivals.source        # "log", or "poisson" where the log has no times

A closed loop of C requests sends the next one when one is answered, so it slows down with the
server and never overruns it. Customers do not wait: requests come in bursts, and queue. The gaps
between the log's requests are multiplied by one factor, so that bursts stay bursts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Arrivals:
    """Send times of a block's requests."""

    seconds: list[float]
    """After the block's start, non-decreasing; the first is 0."""
    source: str
    """`log`: the customer's times, scaled. `poisson`: drawn, because the log has none."""
    spread: float
    """Standard deviation over mean of the gaps: 0 evenly spaced, 1 for a Poisson process, more for
    bursts."""


def customers_arrivals(
    times: Sequence[float | None], count: int, rate: float, seed: int
) -> Arrivals:
    """`count` send times at a mean rate of `rate` per second.

    The gaps are those of `times` (unix seconds, non-decreasing), scaled so that they sum to
    (count - 1) / rate seconds. A log with fewer requests is repeated, a mean gap after its end.
    Without times in the log the gaps are exponential (a Poisson process), drawn from `seed`.
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
    """Whether most requests of a log have a time, and these are not all equal."""
    logged = [time for time in times if time is not None]
    return len(logged) > len(times) / 2 and logged[-1] > logged[0]
