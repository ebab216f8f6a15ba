"""Confidence intervals over sessions or users by a jackknife of log ratios.

    clustered_estimate(sums_NM, sessions, ratio_of_ratios, users=users)

    def ratio_of_ratios(sums):
        return (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])

Requests of a session resemble each other, and base and custom are measured on the same requests. So
whole sessions are left out in turn, for both speculators together. The ratio is computed last, from
pooled sums: a mean of ratios would give short responses the weight of long ones and would be biased
by the ratio's curvature.

The standard error of the log ratio comes from its leave-one-session-out values (jackknife), and the
interval from Student's t distribution. Sessions are few and of unequal size. With a true ratio of 1
and log-normal sizes, a percentile bootstrap interval lies entirely above it in 25 % of cases with 2
sessions, 10 % with 5 and 5 % with 30; a t interval with G - 1 degrees of freedom does so in 4 to
5 %, still more than the nominal 2.5 %. So the degrees of freedom depend on the sizes (Bell and
McCaffrey, Survey Methodology 28, 2002): G - 1 for sessions of equal size, fewer if a few sessions
hold most tokens. With at least LEAST_SESSIONS sessions, the low end then exceeds the true ratio in
at most 3 % of cases (tests/eval/stats/test_clusters.py). With fewer, there is no interval.

Sessions of a user resemble each other too. If users differ by 10 % and sessions by 5 %, intervals
over sessions lie entirely above the true ratio in 8 to 38 % of cases. So the interval is also
computed over users, and the wider one is reported: with 5 to 30 users it is wrong in 1 to 3.5 % of
cases. With 2 to 4 users, an interval over users has almost no power (it detects a gain of 10 % in 7
to 17 % of cases), and one over sessions is wrong in 11 to 40 %. Users are then assumed to differ by
USER_NOISE, or by the measured noise if that is larger: the interval is then wrong in 1 to 4 % of
cases and detects a gain of 20 % in 60 to 85 %.

If no user is logged, or all requests have the same user id (a service account), the users are
unknown: sessions may be those of a few. With eight users whose gains differ by 10 %, an interval
over sessions then misses in up to 27 % of cases. So the wider interval of ASSUMED_USERS users who
differ by USER_NOISE is used, and `by_session` has the narrower one. `traffic.users` says that the
sessions are independent: their user is INDEPENDENT.

Shapes: N observations, M sums carried together, G clusters.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.common.jackknife import LEAST_SESSIONS, degrees_of_freedom
from outrider.data.ingest.traffic_facts import pluralize
from outrider.eval.results.parts import ClusteredEstimate
from outrider.eval.stats.intervals import LEVEL

Array = NDArray[np.float64]

Statistic = Callable[[Array], Any]
"""A positive function of pooled sums: [..., M] -> [...]."""

USER_NOISE = 0.1
"""Minimum standard deviation, on the log scale, assumed between users if there are 2 to 4, or if
they are unknown."""

ASSUMED_USERS = 3
"""Number of users with equal traffic that is assumed if users are unknown. Eight users whose
traffic follows Zipf's law vary as much as five equal ones; three allow for larger differences."""

INDEPENDENT = "(independent)"
"""User of requests whose sessions are independent although no user is logged (`traffic.users`)."""


@dataclass(frozen=True)
class Trend:
    """Change of a log ratio over the time of its sessions."""

    slope: float
    """Change from the mean of a time span to that of the next span of the same length"""
    error: float
    """Its standard error over sessions"""


def clustered_estimate(
    sums_NM: Array,
    sessions: Sequence[Hashable],
    statistic: Statistic,
    level: float = LEVEL,
    users: Sequence[str] = (),
) -> ClusteredEstimate:
    """`statistic` of the pooled sums, with an interval over sessions or users.

    The wider interval is returned. `users` has one user per observation; for "" (unknown), the
    session counts as the user. Without `users`, sessions are assumed to be independent.
    """
    sums_NM = np.asarray(sums_NM, dtype=np.float64)
    # Leaving out the only session with accepted drafts gives log(0); `_margin` then returns None.
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(sums_NM.sum(axis=0)))
        margin, clusters = _margin(sums_NM, sessions, statistic, level)
        over = pluralize(clusters, "session")
        by_session = None
        if margin is not None:
            if users_unknown(users):
                by_session = _around(value, margin)
                margin = math.hypot(margin, _assumed_noise(level, ASSUMED_USERS**-0.5))
                over += f" of unknown users, assumed to be {ASSUMED_USERS} who differ by"
                over += f" {USER_NOISE:.0%}"
            elif INDEPENDENT not in users and {*users} - {""}:
                names = [user or name for user, name in zip(users, sessions, strict=True)]
                known = pluralize(len({*users} - {""}), "user")
                margin, clusters, how = _over_users(
                    sums_NM=sums_NM, names=names, statistic=statistic, level=level, margin=margin
                )
                clusters = clusters or len({*sessions})
                over += f" of {known}{how}"
    low = high = None
    if margin is not None:
        low, high = _around(value, margin)
    return ClusteredEstimate(
        value=value,
        low=low,
        high=high,
        observations=len(sums_NM),
        clusters=clusters,
        over=over,
        by_session=by_session,
    )


def users_unknown(users: Sequence[str]) -> bool:
    """Whether the number of users is unknown: none is logged, or all have the same id."""
    return bool(users) and INDEPENDENT not in users and len({*users}) == 1


def _over_users(
    sums_NM: Array,
    names: Sequence[Hashable],
    statistic: Statistic,
    level: float,
    margin: float,
) -> tuple[float | None, int, str]:
    """The wider of `margin`, over sessions, and that over users; its number of users; in words.

    The number of users is 0 if the interval over sessions is the wider one. The margin is None if
    it is undefined over users.
    """
    of_users, count = _margin(sums_NM, names, statistic, level)
    how = ""
    if count < LEAST_SESSIONS:
        # Sessions within users and users vary independently, so their variances add.
        of_users = math.hypot(margin, _few_users(sums_NM, names, statistic, level))
        how = f", assumed to differ by {USER_NOISE:.0%}"
    if of_users is not None and of_users <= margin:
        return margin, 0, how
    return of_users, count, how or ", with the wider interval over users"


def _around(value: float, margin: float) -> tuple[float, float]:
    """Ends of the interval with this half-width of the log."""
    return value * math.exp(-margin), value * math.exp(margin)


def _margin(
    sums_NM: Array, clusters: Sequence[Hashable], statistic: Statistic, level: float
) -> tuple[float | None, int]:
    """Half-width of the log interval (None if undefined) and number of clusters."""
    without_G, share_G = _left_out(sums_NM, clusters, statistic)
    value = np.log(statistic(sums_NM.sum(axis=0)))
    if len(share_G) < LEAST_SESSIONS or not np.isfinite([*without_G, value]).all():
        return None, len(share_G)
    return float(jackknife_margin(without_G[None], share_G[None], level)[0]), len(share_G)


def _few_users(
    sums_NM: Array, users: Sequence[Hashable], statistic: Statistic, level: float
) -> float:
    """Half-width due to users, from the larger of assumed and measured noise."""
    without_G, share_G = _left_out(sums_NM, users, statistic)
    # Jackknife: variance = (G - 1) / G times the sum of squares, and `std` divides by G.
    measured = math.sqrt(len(share_G) - 1) * float(without_G.std())
    # The variance of a mean with weights w is the sum of w^2 times that of one user.
    assumed = _assumed_noise(level, float(np.linalg.norm(share_G)))
    if not math.isfinite(measured):
        return assumed
    return max(NormalDist().inv_cdf((1 + level) / 2) * measured, assumed)


def _assumed_noise(level: float, weight: float) -> float:
    """Half-width due to users who differ by USER_NOISE; `weight`: root of their shares' squares."""
    return NormalDist().inv_cdf((1 + level) / 2) * USER_NOISE * weight


def _left_out(
    sums_NM: Array, clusters: Sequence[Hashable], statistic: Statistic
) -> tuple[Array, Array]:
    """Leave-one-out log statistics [G], and each cluster's share of the sums [G]."""
    _, cluster_N = np.unique(np.asarray(clusters), return_inverse=True)
    sums_GM = np.zeros((int(cluster_N.max()) + 1, sums_NM.shape[1]))
    np.add.at(sums_GM, cluster_N, sums_NM)
    total_M = sums_GM.sum(axis=0)
    return np.log(statistic(total_M - sums_GM)), (sums_GM / total_M).mean(axis=1)


def trend_of(
    sums_N2: Array,
    times_N: Array,
    sessions: Sequence[Hashable],
    statistic: Statistic,
    span: float,
) -> Trend | None:
    """Change of the log of `statistic` per `span`, by weighted least squares over sessions.

    A session's time is the mean of its observations', and its weight its share of the sums. None
    with fewer than LEAST_SESSIONS sessions, or if all have one time.
    """
    _, session_N = np.unique(np.asarray(sessions), return_inverse=True)
    count_S = np.bincount(session_N)
    sums_SM = np.zeros((len(count_S), sums_N2.shape[1]))
    np.add.at(sums_SM, session_N, sums_N2)
    if len(count_S) < LEAST_SESSIONS or span == 0 or not (sums_SM > 0).all():
        return None
    time_S = np.bincount(session_N, weights=(times_N - times_N.min()) / span) / count_S
    weight_S = (sums_SM / sums_SM.sum(axis=0)).mean(axis=1)
    log_S = np.log(statistic(sums_SM))
    centered_S = time_S - weight_S @ time_S
    spread = float(weight_S @ centered_S**2)
    if spread == 0:
        return None
    slope = float(weight_S @ (centered_S * log_S)) / spread
    left_S = log_S - weight_S @ log_S - slope * centered_S
    # Leverage-corrected residuals (HC3: MacKinnon and White, Journal of Econometrics 29, 1985),
    # which approximates the jackknife.
    leverage_S = weight_S + weight_S * centered_S**2 / spread
    influence_S = weight_S * centered_S * left_S / (spread * (1 - leverage_S))
    return Trend(slope, float(np.linalg.norm(influence_S)))


def jackknife_margin(without_RG: Array, share_RG: Array, level: float = LEVEL) -> Array:
    """Half-width of the interval of each row's log ratio.

    `without_RG` holds leave-one-out log ratios; `share_RG`, each cluster's share of the sums.
    """
    from scipy.stats import t

    count = without_RG.shape[1]
    center_R1 = without_RG.mean(axis=1, keepdims=True)
    # Efron and Stein, Annals of Statistics 9, 1981.
    variance_R = (count - 1) / count * ((without_RG - center_R1) ** 2).sum(axis=1)
    return t.ppf((1 + level) / 2, degrees_of_freedom(share_RG)) * np.sqrt(variance_R)
