"""When to train again: after a fall of acceptance, or enough fresh traffic.

    why = reason_to_train(state, release="4f1d0c2a9b77", policy=recipe.adapt)     # None: wait

The speculator in use is watched by exact replay on every window. Its acceptance length on the
newest window is compared with that at its release, on the traffic that its gate measured; before
the first release, on the first window. Both have intervals over sessions, so the ratio has one too:
the windows are independent samples, and standard errors are half an interval's width in logs over
1.96.

A look after every window would find a fall sooner or later where there is none. So look j may be
wrong with probability 0.05 / (j (j + 1)), which sums to 0.05 over all looks of a release.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import norm

from outrider.eval.results.parts import ClusteredEstimate
from outrider.live.state import State, Window
from outrider.pipeline.recipe.recipe import AdaptConfig

DAY_S = 24 * 3600.0

MAX_AGE_S = 30 * DAY_S
"""Windows are deleted after this time, in seconds."""

BACKOFF = 2.0
"""`adapt.fresh`, and the rows that show a fall, grow by this factor after each lost round."""

LEVEL = 0.05
"""Probability of a fall that is none, over all looks of a release."""


@dataclass(frozen=True)
class Fall:
    """The newest window's acceptance length over that at the release, with its 95 % interval."""

    value: float
    low: float
    high: float
    shown: bool
    """Whether the fall is beyond chance, and at least `adapt.min_drop`"""


def reason_to_train(state: State, release: str, policy: AdaptConfig) -> str | None:
    """Why a round should start now, in words; None to wait."""
    if not state.fresh:
        return None
    rows = sum(window.rows for window in state.usable if window.n > state.last_trained)
    factor = BACKOFF**state.losses
    fall = newest_fall(state, release, policy.min_drop)
    if fall is not None and fall.shown and (not state.losses or rows >= policy.window * factor):
        return (
            f"acceptance length fell to {fall.value:.3f} [{fall.low:.3f}, {fall.high:.3f}] of that"
            " at its release"
        )
    if policy.fresh is not None and rows >= policy.fresh * factor:
        return f"{rows:,} rows since the last round"
    return None


def newest_fall(state: State, release: str, min_drop: float) -> Fall | None:
    """The newest window against the release's own; None where there is nothing to compare."""
    watched = [window for window in state.usable if window.release == release]
    reference = _reference(state, watched, release)
    if not watched or reference is None:
        return None
    at_release, first = reference
    newest, looks = watched[-1], len(watched) - (first is not None)
    if newest is first or newest.acceptance is None or newest.acceptance.low is None:
        return None
    error = math.hypot(_log_error(at_release), _log_error(newest.acceptance))
    shift = math.log(newest.acceptance.value / at_release.value)
    beyond_chance = 2 * norm.sf(abs(shift) / error) < LEVEL / (looks * (looks + 1))
    value, margin = math.exp(shift), math.exp(norm.isf(0.025) * error)
    return Fall(
        value, value / margin, value * margin, bool(beyond_chance and value <= 1 - min_drop)
    )


def _reference(
    state: State, watched: Sequence[Window], release: str
) -> tuple[ClusteredEstimate, Window | None] | None:
    """The acceptance length at the release, and the window it was measured on, if any."""
    for each in reversed(state.rounds):
        if each.won and each.release == release and each.custom and each.custom.low is not None:
            return each.custom, None
    for window in watched:
        if window.acceptance is not None and window.acceptance.low is not None:
            return window.acceptance, window
    return None


def _log_error(estimate: ClusteredEstimate) -> float:
    assert estimate.low is not None and estimate.high is not None
    return math.log(estimate.high / estimate.low) / (2 * float(norm.isf(0.025)))


def within_budget(state: State, now: float, limit: float | None) -> bool:
    """Whether the last 24 hours leave some of `limit` GPU-hours for another step."""
    return limit is None or state.gpu_seconds_since(now - DAY_S) / 3600 < limit


def surplus(
    state: State, sizes: Mapping[int, int], keep_older: bool, now: float, policy: AdaptConfig
) -> list[int]:
    """Windows to delete: refused, too old, or beyond `adapt.max_gb`. Sizes are in bytes.

    Beyond it the oldest go first, and never the newest one.
    """
    alive = [window for window in state.windows.values() if window.settled and not window.deleted]
    kept = [
        window.n
        for window in alive
        if window.acceptance is not None
        and now - window.at <= MAX_AGE_S
        and (keep_older or window.n > state.last_trained)
    ]
    while len(kept) > 1 and sum(sizes[n] for n in kept) > policy.max_gb * 1e9:
        del kept[0]
    return [window.n for window in alive if window.n not in kept]
