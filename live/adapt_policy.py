"""When to train again: after a fall of acceptance, or enough fresh traffic.

    why = reason_to_train(state, release="4f1d0c2a9b77", policy=recipe.adapt)     # None: wait

The speculator in use is watched by exact replay on every window. Its acceptance length on the
newest window is compared with that at its release, on the traffic that its gate measured; before
the first release, on the first window. Both have intervals over sessions, so the ratio has one too
(eval/report/drift.py).

A look after every window would find a fall sooner or later where there is none. So look j may be
wrong with probability 0.05 / (j (j + 1)), which sums to 0.05 over all looks of a release
(eval/stats/sequential.py).
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.eval.report.drift import Change, change
from outrider.eval.report.past_run import PastClustered
from outrider.live.adapt_state import AdaptState, Window
from outrider.pipeline.recipe.adapt_config import AdaptConfig

DAY_S = 24 * 3600.0

MAX_AGE_S = 30 * DAY_S
"""Windows are deleted after this time, in seconds."""

BACKOFF = 2.0
"""`adapt.fresh`, and the rows that show a fall, grow by this factor after each lost round."""


@dataclass(frozen=True)
class Fall:
    """The newest window against the release."""

    change: Change
    shown: bool
    """Whether the fall is beyond chance, and at least `adapt.min_drop`"""


def reason_to_train(state: AdaptState, release: str, policy: AdaptConfig) -> str | None:
    """Why a round should start now, in words; None to wait."""
    if not state.fresh:
        return None
    rows = sum(window.rows for window in state.usable if window.n > state.last_trained)
    factor = BACKOFF**state.losses
    fall = newest_fall(state, release, policy.min_drop)
    if fall is not None and fall.shown and (not state.losses or rows >= policy.window * factor):
        ratio = fall.change
        return (
            f"acceptance length fell to {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] of"
            " that at its release"
        )
    if policy.fresh is not None and rows >= policy.fresh * factor:
        return f"{rows:,} rows since the last round"
    return None


def newest_fall(state: AdaptState, release: str, min_drop: float) -> Fall | None:
    """The newest window against the release's own; None where there is nothing to compare."""
    watched = [window for window in state.usable if window.release == release]
    reference = _reference(state, watched, release)
    if not watched or reference is None:
        return None
    newest, first = watched[-1], reference[1]
    looks = len(watched) - (first is not None)
    if newest is first or newest.acceptance is None or newest.acceptance.low is None:
        return None
    found = change(reference[0], newest.acceptance, comparisons=looks * (looks + 1))
    return Fall(found, found.beyond_chance and found.value <= 1 - min_drop)


def _reference(
    state: AdaptState, watched: Sequence[Window], release: str
) -> tuple[PastClustered, Window | None] | None:
    """The acceptance length at the release, and the window it was measured on, if any."""
    for each in reversed(state.rounds):
        if each.won and each.release == release and each.custom and each.custom.low is not None:
            return each.custom, None
    for window in watched:
        if window.acceptance is not None and window.acceptance.low is not None:
            return window.acceptance, window
    return None


def within_budget(state: AdaptState, now: float, limit: float | None, gpus: int) -> bool:
    """Whether the last 24 hours leave some of `limit` GPU-hours for another step."""
    return limit is None or state.seconds_since(now - DAY_S) * gpus / 3600 < limit


def surplus(
    state: AdaptState, sizes: Mapping[int, int], keep_older: bool, now: float, policy: AdaptConfig
) -> list[int]:
    """Windows to delete: refused, too old, or beyond `adapt.max_gb`. Sizes are in bytes.

    Beyond it, those of earlier rounds with the smallest random numbers go first. The numbers are of
    the windows, so a restart draws the same ones, and what is left is a sample in which all
    are equally likely. Then the oldest since the last round go, but never the newest one.
    """
    alive = [window for window in state.windows.values() if window.settled and not window.deleted]
    kept = [
        window
        for window in alive
        if window.usable
        and now - window.at <= MAX_AGE_S
        and (keep_older or window.n > state.last_trained)
    ]
    older = [window for window in kept if window.n <= state.last_trained]
    older.sort(key=lambda window: random.Random(f"window {window.n}").random())
    fresh = [window for window in kept if window.n > state.last_trained]
    used = sum(sizes[window.n] for window in kept)
    for window in [*older, *fresh[:-1]]:
        if used <= policy.max_gb * 1e9:
            break
        kept.remove(window)
        used -= sizes[window.n]
    return sorted({window.n for window in alive} - {window.n for window in kept})
