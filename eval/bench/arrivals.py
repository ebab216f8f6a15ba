"""When the requests of an open-loop block are sent: as the customer's came, faster or slower.

    arrivals = customers_arrivals(times, count=160, rate=8.0, seed=0)
    arrivals.seconds       # [0.0, 0.31, 0.33, ...]: 160 of them, 8 a second on average
    arrivals.source        # "log", or "poisson" where the log has no times

A closed loop of C requests waits for an answer before it asks again, so it slows down with the server and never overruns it. Customers
do not: the rate is theirs, requests come in bursts, and what a server cannot take at once queues. The gaps between the log's requests
are kept in proportion, all multiplied by one factor, so that bursts stay bursts.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider.data.ingest.assemble import TIME_STEP

CLOCK_S = 1e-6
"""Seconds by which float64 unix times may round."""

EARLIEST = 1e8
"""Unix seconds (1973): no log's times lie before."""


@dataclass(frozen=True)
class Arrivals:
    """The times of one block's requests."""

    seconds: list[float]
    """After the block's start, not falling; the first is 0."""
    source: str
    """`log`: the customer's times, scaled. `poisson`: drawn, because the log has none."""
    spread: float
    """Standard deviation over mean of the gaps: 0 evenly spaced, about 1 for a Poisson process, more where requests come in bursts."""


def customers_arrivals(times: Sequence[float], count: int, rate: float, seed: int) -> Arrivals:
    """`count` times, `rate` a second: the (count - 1) gaps are those of `times` (unix seconds, not falling), multiplied so that they last
    (count - 1) / rate seconds together.

    Where more are wanted than the log has, it is gone through again, a mean gap after its end. Without times in the log the gaps are
    drawn from an exponential distribution (a Poisson process), the same for the same seed, count and scaled alike.
    """
    if count < 2:
        raise ValueError(f"customers_arrivals: {count} arrivals have no gap between them")
    gaps, source = np.zeros(count - 1), "log"
    if has_times(times):
        log = np.diff(np.asarray(times, dtype=np.float64))
        gaps = np.resize([*log, log.mean()], count - 1)
    if not gaps.any():
        gaps, source = np.random.default_rng(seed).exponential(size=count - 1), "poisson"
    gaps *= (count - 1) / rate / gaps.sum()
    return Arrivals([0.0, *np.cumsum(gaps).tolist()], source, float(gaps.std() / gaps.mean()))


def has_times(times: Sequence[float]) -> bool:
    """Whether requests of a log, in its order, came with times: the ingest puts a row without one a millisecond after the row before
    it, and counts from 0 where none has."""
    if len(times) < 2 or times[-1] <= times[0]:
        return False
    made_up = sum(
        abs(later - earlier - TIME_STEP) < CLOCK_S for earlier, later in itertools.pairwise(times)
    )
    return times[0] > EARLIEST and made_up < len(times) / 2
