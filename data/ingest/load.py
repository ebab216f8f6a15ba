"""Load of the logged endpoint: how many requests it had in flight, and for how long.

    load = load_of(times=times_N, seconds=seconds_N, tokens=tokens_N, tpot_ms=30)
    load["p90"]                    # at most so many in 90 % of the busy time
    busy_time_shares(load, [1, 4, 8])       # {1: 0.62, 4: 0.3, 8: 0.06}; the rest is above 8

Time without a request in flight is left out. All replicas whose requests are in the log count as
one endpoint.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BUSY_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def load_of(
    *,
    times: NDArray[np.float64],
    seconds: NDArray[np.float64],
    tokens: NDArray[np.int64],
    tpot_ms: float,
) -> dict[str, Any] | None:
    """Describes the numbers of requests in flight; None if most requests have no time.

    NaN marks times and durations that were not logged. Missing durations are estimated as response
    tokens times time per output token: the median of those logged, else `tpot_ms`.
    """
    timed_N = ~np.isnan(times)
    if 2 * timed_N.sum() <= len(times):
        return None
    times, seconds, tokens = times[timed_N], seconds[timed_N], tokens[timed_N]
    logged_N = ~np.isnan(seconds)
    logged = int(logged_N.sum())
    if logged:
        tpot_ms = float(np.median(1000 * seconds[logged_N] / np.maximum(tokens[logged_N], 1)))
    durations = np.where(logged_N, seconds, tokens * tpot_ms / 1000)
    share = _busy_shares(times, times + durations)
    sizes = np.array([*share])
    reached = np.cumsum([*share.values()])
    # The last share is rounded, so the largest quantile may not be reached.
    places = np.minimum(np.searchsorted(reached, [*BUSY_SHARES.values()]), len(sizes) - 1)
    return {
        **{name: int(sizes[place]) for name, place in zip(BUSY_SHARES, places, strict=True)},
        "max": int(sizes.max()),
        "busy_share": {str(size): round(part, 6) for size, part in share.items()},
        "durations_logged": logged,
        "durations_estimated": len(times) - logged,
        "tpot_ms": round(tpot_ms, 2),
    }


def _busy_shares(begins: NDArray[np.float64], ends: NDArray[np.float64]) -> dict[int, float]:
    """Share of the busy time with each number of requests in flight, ascending."""
    moments = np.concatenate([begins, ends])
    changes = np.repeat([1, -1], len(begins))
    # At one moment, requests end before others begin.
    order = np.lexsort((changes, moments))
    # A request without a duration ends, for no time, before it has begun.
    in_flight = np.maximum(np.cumsum(changes[order])[:-1], 0)
    lasted = np.diff(moments[order])
    seconds = np.bincount(in_flight, weights=lasted)
    seconds[0] = 0.0
    total = seconds.sum()
    return {int(size): float(seconds[size] / total) for size in np.flatnonzero(seconds)}


def busy_time_shares(load: Mapping[str, Any], sizes: Sequence[int]) -> dict[int, float]:
    """Share of the busy time by size: at most so many in flight, and more than the size below."""
    shares = {}
    below = 0
    for size in sorted(sizes):
        parts = (part for n, part in load["busy_share"].items() if below < int(n) <= size)
        shares[size] = sum(parts)
        below = size
    return shares


def load_in_words(load: Mapping[str, Any] | None) -> str:
    """Describes the load and where its durations come from; empty without a load."""
    if load is None:
        return ""
    return (
        f"at most {load['p50']:,} / {load['p90']:,} / {load['p99']:,} requests in flight in"
        f" 50 / 90 / 99 % of the busy time, {load['max']:,} at the peak, all replicas together;"
        f" {durations_in_words(load)}"
    )


def durations_in_words(load: Mapping[str, Any]) -> str:
    """Where the durations of requests come from."""
    logged = load["durations_logged"]
    estimated = load["durations_estimated"]
    at = f"from response tokens at {load['tpot_ms']:g} ms per token"
    if not estimated:
        return "durations are logged"
    if not logged:
        return f"durations are estimated {at} (traffic.tpot_ms)"
    return f"{logged:,} durations are logged, {estimated:,} estimated {at}, their median"


def measured_sizes(load: Mapping[str, Any]) -> list[int]:
    """Concurrencies to measure: the median of the busy time, then its 90 and 99 % quantiles.

    Sizes below 5/4 of a smaller one are left out, because they would measure the same.
    """
    sizes = [load["p50"]]
    for size in (load["p90"], load["p99"]):
        if 4 * size >= 5 * sizes[-1]:
            sizes.append(size)
    return sizes
