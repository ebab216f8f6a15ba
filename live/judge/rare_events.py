"""Evidence that rare events, such as failures, fall on the canary more often than on stable.

    more_often(failed_N, canary_N, blocks_N, sessions_N)     # over 250 ever: in 0.4 % if equal
    over_limit(failures, trials, limit=0.01)

An e-value is the gain of a fair bet against the hypothesis. It is followed over time, and reaches
1 / alpha ever with probability alpha at most (Ville's inequality).

`more_often` is the safe log-rank test (ter Schure et al., arXiv:2011.06931). Sessions that are
active in a block of requests and had no event before are at risk. If canary and stable are alike,
those with an event are a random draw from those at risk, whatever the load does to both: the number
k of the canary's is hypergeometric. The bet that a canary's session has events theta times as
likely pays theta^k / E[theta^K]. Only a session's first event counts, since a session that failed
once tends to fail again, on the same replica.

Shapes: N requests, B blocks, T values of theta, K values of k.
"""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_TIMES_T = np.array([2.0, 5.0, 25.0])
"""Bets on how much more likely the canary's events are, with equal stakes."""


def more_often(
    event_N: NDArray[np.bool_],
    canary_N: NDArray[np.bool_],
    block_N: Indices,
    session_N: Indices,
) -> float:
    """E-value that a session of the canary is more likely to have an event than one of stable.

    Requests are in order of time. A block must be complete: what it holds must not change.
    """
    # A session and the replicas it is on: it may move to the canary when the share rises.
    unit_N = session_N * 2 + canary_N
    size = int(unit_N.max()) + 1 if len(unit_N) else 1
    first_U = np.full(size, np.iinfo(np.intp).max)
    np.minimum.at(first_U, unit_N[event_N], block_N[event_N])
    at_risk_N = block_N <= first_U[unit_N]
    pair_P = np.unique(block_N[at_risk_N] * size + unit_N[at_risk_N])
    block_P, unit_P = pair_P // size, pair_P % size
    event_P, canary_P = first_U[unit_P] == block_P, unit_P % 2 == 1
    blocks = int(block_P.max()) + 1 if len(block_P) else 0
    with_event_B = np.bincount(block_P[event_P], minlength=blocks)
    k_B = np.bincount(block_P[event_P & canary_P], minlength=blocks)
    canary_B = np.bincount(block_P[canary_P], minlength=blocks)
    risk_B = np.bincount(block_P, minlength=blocks)
    told_B = (with_event_B > 0) & (canary_B > 0) & (canary_B < risk_B)
    logs_T = np.zeros(len(_TIMES_T))
    if told_B.any():
        expected_TB = _log_expected(with_event_B[told_B], canary_B[told_B], risk_B[told_B])
        logs_T = (k_B[told_B] * np.log(_TIMES_T)[:, None] - expected_TB).sum(axis=1)
    return _mean_exp(logs_T)


def _log_expected(drawn_B: Indices, canary_B: Indices, risk_B: Indices) -> Array:
    """log E[theta^K] for K of the canary's among those drawn, [T, B]."""
    from scipy.special import gammaln, logsumexp

    k_1K = np.arange(int(canary_B.max()) + 1)[None]
    drawn_B1, canary_B1, risk_B1 = drawn_B[:, None], canary_B[:, None], risk_B[:, None]

    def choose(n: Indices, k: Indices) -> Array:
        inside = (k >= 0) & (k <= n)
        k = np.where(inside, k, 0)
        logs = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
        return np.where(inside, logs, -np.inf)

    log_BK = choose(canary_B1, k_1K) + choose(risk_B1 - canary_B1, drawn_B1 - k_1K)
    log_BK = log_BK - choose(risk_B1, drawn_B1)
    expected: Array = logsumexp(log_BK + np.log(_TIMES_T)[:, None, None] * k_1K, axis=2)
    return expected


def over_limit(events: int, trials: int, limit: float) -> float:
    """E-value that an event has a probability above `limit` in each trial, whatever came before."""
    limit = min(max(limit, 1e-6), 1 - 1e-6)
    # Bets on probabilities from just above the limit to nearly 1, evenly in log odds.
    odds = math.log(limit / (1 - limit))
    bets_T = 1 / (1 + np.exp(-(odds + (6 - odds) * np.array([0.15, 0.3, 0.5, 0.75, 1.0]))))
    gain_T = np.log(bets_T / limit)
    loss_T = np.log((1 - bets_T) / (1 - limit))
    return _mean_exp(events * gain_T + (trials - events) * loss_T)


def _mean_exp(logs_T: Array) -> float:
    return float(np.exp(np.minimum(logs_T, 700.0)).mean())
