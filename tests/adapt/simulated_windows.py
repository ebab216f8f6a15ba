"""Simulated windows of adaptation: journal entries with the ratio of custom over base."""

import dataclasses
import math

from outrider.adapt.policy import newest_acceptance_drop
from outrider.adapt.state import AdaptState
from outrider.live.journal import Entry
from outrider.pipeline.recipe.recipe import AdaptConfig

POLICY = AdaptConfig(window=100, fresh=None)


@dataclasses.dataclass(frozen=True)
class Ordinary:
    """How the log ratio of a stationary release varies between windows."""

    between: float = 0.03
    """Standard deviation between windows."""
    sessions: int = 30
    """Of a window; they differ by 10 %."""
    correlation: float = 0.0
    """Of a window with the next one."""
    long_tails: bool = False
    """Whether windows differ by Student's t with 3 degrees of freedom, not normally."""
    weekend: float = 0.0
    """Share by which the ratio is lower on two of seven days."""
    windows_a_day: int = 3


class Story:
    """Journal entries of a loop that watches windows of 100 rows."""

    def __init__(self, random, between=0.03, sessions=30, ordinary=None):
        self.state = AdaptState()
        self.random = random
        self.ordinary = ordinary or Ordinary(between, sessions)
        self.error = 0.1 / math.sqrt(self.ordinary.sessions)
        self.level = self.shock()
        self.began = int(random.integers(7 * self.ordinary.windows_a_day))

    def add(self, event, at=0.0, **facts):
        self.state = self.state.add(Entry(0, at, event, facts))

    def estimate(self, log):
        value = math.exp(log)
        half = math.exp(1.96 * self.error)
        return {
            "value": value, "low": value / half, "high": value * half,
            "observations": 90, "clusters": 30, "over": "30 sessions",
        }  # fmt: skip

    def shock(self):
        """A window's own change, of standard deviation 1."""
        if self.ordinary.long_tails:
            return self.random.standard_t(3) / math.sqrt(3)
        return self.random.standard_normal()

    def variation(self, number):
        """Log ratio of a window, relative to its mean."""
        ordinary = self.ordinary
        kept = ordinary.correlation
        self.level = kept * self.level + math.sqrt(1 - kept**2) * self.shock()
        day = (self.began + number) // ordinary.windows_a_day % 7
        log = ordinary.between * self.level + self.error * self.random.standard_normal()
        return log + (math.log(1 - ordinary.weekend) if day >= 5 else 0.0)

    def window(self, shift=0.0, *, release="base", length=4.0, ratio=True, seconds=1.0, at=0.0):
        number = len(self.state.windows) + 1
        self.add("window", at, window=number, rows=100, position={"a": number})
        log = shift + self.variation(number)
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
        fresh = self.state.fresh or self.state.usable[-1:]  # a round has at least one window
        newer = [window.n for window in fresh]
        self.add("round", round=number, newer=newer, older=[], reason="")
        self.add("trained", round=number)
        self.add("gated", round=number, ships=ships, reason="")
        if ships:
            self.add("deployed", round=number, outcome="promoted")


def alarm(story, shift, windows, gradual=1):
    """The window, counted from now, at which a fall is shown; None without one.

    The shift is reached after `gradual` windows.
    """
    for number in range(1, windows + 1):
        story.window(shift * min(number / gradual, 1))
        fall = newest_acceptance_drop(story.state, "base", POLICY.min_drop)
        if fall is not None and fall.shown:
            return number
    return None
