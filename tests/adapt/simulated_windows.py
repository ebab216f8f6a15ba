"""Simulated windows of adaptation: journal entries with the ratio of custom over base."""

import math

from outrider.adapt.policy import newest_fall
from outrider.adapt.state import AdaptState
from outrider.live.journal import Entry
from outrider.pipeline.recipe.recipe import AdaptConfig

POLICY = AdaptConfig(window=100, fresh=None)


class Story:
    """Journal entries of a loop that watches windows of 100 rows.

    The log ratio differs between windows by `between`, and by 10 % between their sessions.
    """

    def __init__(self, random, between=0.03, sessions=30):
        self.state = AdaptState()
        self.random = random
        self.between = between
        self.error = 0.1 / math.sqrt(sessions)

    def add(self, event, at=0.0, **facts):
        self.state = self.state.add(Entry(0, at, event, facts))

    def estimate(self, log):
        value = math.exp(log)
        half = math.exp(1.96 * self.error)
        return {
            "value": value, "low": value / half, "high": value * half,
            "observations": 90, "clusters": 30, "over": "30 sessions",
        }  # fmt: skip

    def window(self, shift=0.0, *, release="base", length=4.0, ratio=True, seconds=1.0, at=0.0):
        number = len(self.state.windows) + 1
        self.add("window", at, window=number, rows=100, position={"a": number})
        log = shift + math.hypot(self.between, self.error) * self.random.standard_normal()
        self.add(
            "watched",
            at,
            window=number,
            release=release,
            acceptance=self.estimate(math.log(length)),
            ratio=self.estimate(0.2 + log) if ratio else None,
            gpu_seconds=seconds,
        )

    def round(self, ships):
        number = len(self.state.rounds) + 1
        newer = [window.n for window in self.state.fresh]
        self.add("round", round=number, newer=newer, older=[], reason="")
        self.add("trained", round=number)
        self.add("gated", round=number, ships=ships, reason="")
        if ships:
            self.add("deployed", round=number, outcome="promoted")


def alarm(story, shift, windows):
    """The window, counted from now, at which a fall is shown; None without one."""
    for number in range(1, windows + 1):
        story.window(shift)
        fall = newest_fall(story.state, "base", POLICY.min_drop)
        if fall is not None and fall.shown:
            return number
    return None
