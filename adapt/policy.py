"""Retraining policy: after losing ground to the base, or with fresh traffic.

    why = reason_to_train(state, release="4f1d0c2a9b77", policy=recipe.adapt)     # None: wait

The speculator in use and the base are both replayed on every window, so traffic that becomes harder
for both is no reason to train. The log ratio of their acceptance lengths in the latest windows of a
release is compared with that in its earlier windows, for every split into earlier and latest ones.

Traffic is not a sequence of independent windows: it drifts, and weekends differ from weekdays. A
test for any change would start rounds for changes that end by themselves. So falls up to `min_drop`
are allowed, and what exceeds it must add up over the latest windows (a cumulative sum: Page,
Biometrika 41, 1954):

    (fall - min_drop) x latest windows >= LEAST_EXCESS

With 0.07 and 0.21, a fall of 10 % must last for 6 windows, one of 25 % for 1. The fall must also be
significant in Student's t test, which matters while a release has few windows. Windows differ by
more than their sessions explain, so the variance is estimated between windows. The prior variance,
`PRIOR_SD` squared plus that from sessions, counts as `PRIOR_WINDOWS` windows.

Both numbers are a compromise, found by simulation (benchmarks/results/live.md). A change that looks
like a lasting fall while it is new starts a round, for example a release's first weekend if
weekends are 10 % lower.

Shapes: W windows, S splits of them into earlier and latest windows.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from outrider.adapt.state import AdaptState
from outrider.eval.results.parts import ClusteredEstimate
from outrider.pipeline.recipe.recipe import AdaptConfig

DAY_S = 24 * 3600.0

MAX_AGE_S = 30 * DAY_S
"""Age at which windows are deleted, in seconds."""

BACKOFF = 2.0
"""`adapt.fresh`, and the rows required after a fall, grow by this factor with each
consecutive lost round."""

LEVEL = 0.002
"""Level of the t test of one split."""

LEAST_EXCESS = 0.21
"""Sum of the falls beyond `min_drop` over the latest windows, from which on a round starts."""

PRIOR_SD = 0.03
"""Prior standard deviation of the log ratio between windows, beyond what sessions explain."""

PRIOR_WINDOWS = 4
"""Weight of the prior variance, as a number of windows."""


@dataclass(frozen=True)
class AcceptanceDrop:
    """Change in custom / base from earlier to latest windows; 95 % interval."""

    value: float
    low: float
    high: float
    windows: int
    """Number of latest windows"""
    shown: bool
    """Whether the fall is significant, and large for long enough, to start a round"""


def reason_to_train(state: AdaptState, release: str, policy: AdaptConfig) -> str | None:
    """Returns the reason to start a round now; None to wait.

    If `adapt.fresh` is null and there is no ratio because the base is in use, `adapt.window` rows
    suffice.
    """
    if not state.fresh:
        return None
    rows = sum(window.rows for window in state.usable if window.n > state.last_trained)
    factor = BACKOFF**state.losses
    fall = newest_acceptance_drop(state, release, policy.min_drop)
    if fall is not None and fall.shown and (not state.losses or rows >= policy.window * factor):
        return (
            f"custom over base fell to {fall.value:.3f} [{fall.low:.3f}, {fall.high:.3f}] of its"
            f" earlier value, on the last {fall.windows} windows"
        )
    enough = policy.fresh
    if enough is None and state.usable[-1].ratio is None:
        enough = policy.window
    if enough is not None and rows >= enough * factor:
        return f"{rows:,} rows since the last round"
    return None


def newest_acceptance_drop(
    state: AdaptState, release: str, min_drop: float = AdaptConfig.min_drop
) -> AcceptanceDrop | None:
    """Most significant recent fall; None with fewer than two ratios.

    A `min_drop` below the policy's counts as the policy's, because smaller falls come and go.
    """
    ratios = [w.ratio for w in state.usable if w.release == release and w.ratio is not None]
    count = len(ratios)
    if count < 2:
        return None
    log_W = np.log([ratio.value for ratio in ratios])
    sampled = _variance_from_sessions(ratios)
    last_S = np.arange(1, count)
    first_S = count - last_S
    # Means before and after each split, and the sum of squared deviations from them.
    sum_W = log_W.cumsum()
    before_S = sum_W[first_S - 1] / first_S
    after_S = (sum_W[-1] - sum_W[first_S - 1]) / last_S
    deviation_S = (log_W**2).sum() - first_S * before_S**2 - last_S * after_S**2
    degrees = PRIOR_WINDOWS + count - 2
    prior = PRIOR_WINDOWS * (PRIOR_SD**2 + sampled)
    variance_S = np.maximum(sampled, (prior + deviation_S) / degrees)
    error_S = np.sqrt(variance_S * (1 / first_S + 1 / last_S))
    p_S = stdtr(degrees, (after_S - before_S) / error_S)
    allowed = max(min_drop, AdaptConfig.min_drop)
    excess_S = last_S * (before_S - after_S - allowed)
    shown_S = (p_S < LEVEL) & (excess_S >= LEAST_EXCESS)
    # The most significant of those that are shown, if any is.
    best = int((p_S - shown_S).argmin())
    value = math.exp(after_S[best] - before_S[best])
    margin = math.exp(stdtrit(degrees, 0.975) * error_S[best])
    return AcceptanceDrop(
        value=value,
        low=value / margin,
        high=value * margin,
        windows=int(last_S[best]),
        shown=bool(shown_S[best]),
    )


def _variance_from_sessions(ratios: Sequence[ClusteredEstimate]) -> float:
    """Mean variance of a window's log ratio from its sessions; 0 without intervals."""
    variances = []
    for ratio in ratios:
        # Unknown users are the same from window to window, so what is assumed of them cancels.
        low, high = ratio.by_session or (ratio.low, ratio.high)
        if low is not None and high is not None:
            # A 95 % interval is 2 x 1.96 errors wide.
            variances.append((math.log(high / low) / (2 * 1.96)) ** 2)
    return float(np.mean(variances)) if variances else 0.0


def within_budget(state: AdaptState, policy: AdaptConfig) -> bool:
    """Whether the last 24 hours' use leaves GPU-hours for another step."""
    limit = policy.gpu_hours_per_day
    if limit is None:
        return True
    since = time.time() - DAY_S
    return sum(seconds for at, seconds in state.spent if at > since) / 3600 < limit


def surplus_windows(
    state: AdaptState, sizes: Mapping[int, int], keep_older: bool, policy: AdaptConfig
) -> list[int]:
    """Windows to delete: refused, too old, or beyond `adapt.max_gb`.

    Without `keep_older`, windows that were already trained on are also deleted. `sizes` are in
    bytes. Beyond the limit, the oldest are deleted first, but never the newest.
    """
    remaining = [
        window for window in state.windows.values() if window.settled and not window.deleted
    ]
    retained = [
        window.n
        for window in remaining
        if window.acceptance is not None
        and time.time() - window.at <= MAX_AGE_S
        and (keep_older or window.n > state.last_trained)
    ]
    while len(retained) > 1 and sum(sizes[number] for number in retained) > policy.max_gb * 1e9:
        del retained[0]
    return [window.n for window in remaining if window.n not in retained]
