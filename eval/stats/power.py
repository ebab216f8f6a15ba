"""Expected power: how often evaluations show a true gain.

    power(gain=0.1, sessions=30, settings=recipe.eval)      # 0.85
    power_in_words(sessions=30, settings=recipe.eval)             # "30 held-out sessions: a true
    ..."

An evaluation shows that custom is faster if the interval of the log ratio lies above 0. The
estimate has three errors (stats/speed_ratio.py): of replayed lengths over sessions, of the
machine over pairs of requests or blocks, and of the trend. With their standard errors s_l, s_m and
s_t, and M, the interval's half-width,

    power = Phi((log(1 + gain) - M) / sqrt(s_l^2 + s_m^2 + s_t^2))

Prefill is neglected. Custom over no speculation, whose gain is not known before, is not included.
"""

import math
from statistics import NormalDist

from outrider.data.ingest.traffic_facts import pluralize
from outrider.eval.config import EvalConfig
from outrider.eval.results.parts import ClusteredEstimate
from outrider.eval.stats.clusters import ASSUMED_USERS, USER_NOISE
from outrider.eval.stats.intervals import LEVEL
from outrider.eval.stats.sequential import interim_looks
from outrider.eval.stats.speed_ratio import UNSEEN, trend_posterior

GAIN = 0.1
"""The gain over base whose power is printed."""

SESSION_NOISE = 0.1
"""Standard deviation of custom's log gain between sessions, before it is measured."""

UNIT_NOISE = 0.07
"""Standard deviation of the log ratio of two blocks, or of a pair of requests (judge.md)."""

DESIGN = 1.6
"""Variance of a mean over sessions of unequal size, relative to sessions of equal size: 1 + the
squared coefficient of variation, for log-normal sizes with a standard deviation of 0.7."""


def power(
    *,
    gain: float,
    sessions: int,
    settings: EvalConfig,
    spread: float = SESSION_NOISE,
    unknown_users: bool = False,
) -> float:
    """Probability that an evaluation shows a true `gain` of custom over base, in one engine.

    `spread` is the standard deviation of custom's log gain between sessions.
    """
    from scipy.stats import t

    normal = NormalDist().inv_cdf((1 + LEVEL) / 2)
    lengths = spread * math.sqrt(DESIGN / sessions)
    length_margin = t.ppf((1 + LEVEL) / 2, max(sessions / DESIGN - 1, 1)) * lengths
    user_margin = normal * USER_NOISE / math.sqrt(ASSUMED_USERS) if unknown_users else 0.0
    # At concurrency 1 variants alternate by request, so every request is a pair.
    units = settings.repeats * (settings.block_requests(1) if settings.main == 1 else 1)
    level = interim_looks(settings).level(settings.repeats)
    machine = UNIT_NOISE / math.sqrt(units)
    # Noise of blocks is pooled over concurrencies (speed_ratio.pooled_noise).
    degrees = (units - 1) * (1 if settings.main == 1 else len(settings.concurrency))
    machine_margin = t.ppf((1 + level) / 2, degrees) * machine
    # The slope over validation and held-out time, 1.5 spans, of sessions spread evenly in it; in
    # spans, their variance is 1.5^2 / 12.
    slope = spread * math.sqrt(DESIGN / (1.5 * sessions)) * math.sqrt(12) / 1.5
    weight, trend_deviation = trend_posterior(slope)
    trend_margin = normal * trend_deviation
    margin = math.hypot(machine_margin, length_margin, user_margin, trend_margin, UNSEEN)
    error = math.hypot(machine, lengths, weight * slope)
    return NormalDist().cdf((math.log(1 + gain) - margin) / error)


def spread_of(ratio: ClusteredEstimate, sessions: int) -> float | None:
    """Standard deviation of the log ratio between `sessions` sessions; None without an interval."""
    from scipy.stats import t

    high = ratio.by_session[1] if ratio.by_session else ratio.high
    if high is None:
        return None
    effective = sessions / DESIGN
    margin = math.log(high / ratio.value)
    spread = margin / t.ppf((1 + LEVEL) / 2, max(effective - 1, 1)) * math.sqrt(effective)
    return float(spread)


def power_in_words(
    *,
    sessions: int,
    settings: EvalConfig,
    spread: float | None = None,
    unknown_users: bool = False,
) -> str:
    """Expected power with this many held-out sessions, and with twice as many."""
    seen = SESSION_NOISE if spread is None else spread
    assumed = f"blocks by {UNIT_NOISE:.0%}"
    if spread is None:
        assumed = f"gains by {seen:.0%} between sessions and {assumed}"

    def tenths(count: int, unknown: bool) -> str:
        share = power(
            gain=GAIN, sessions=count, settings=settings, spread=seen, unknown_users=unknown
        )
        return f"{math.floor(10 * share):.0f} of 10"

    text = (
        f"{pluralize(sessions, 'held-out session')}: a true +{GAIN:.0%} over base is shown in about"
        f" {tenths(sessions, unknown_users)} evaluations, with {2 * sessions} sessions in"
        f" {tenths(2 * sessions, unknown_users)}"
    )
    if unknown_users:
        text += f"; with logged users or traffic.users, in {tenths(sessions, False)}"
    return f"{text} (assumed to differ: {assumed})"
