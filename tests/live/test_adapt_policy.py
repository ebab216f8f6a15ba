import math
import random
from collections import Counter

from outrider.live.adapt_policy import (
    newest_fall,
    reason_to_train,
    surplus,
    within_budget,
)
from outrider.live.state import Entry, fold
from outrider.pipeline.recipe.recipe import AdaptConfig

SPREAD = 0.01
"""Standard error of a window's log acceptance length."""


class Story:
    """Journal entries of a loop that watches windows of 100 rows."""

    def __init__(self, seed=0):
        self.entries, self.rng = [], random.Random(seed)

    def add(self, event, at=0.0, **facts):
        self.entries.append(Entry(len(self.entries) + 1, at, event, facts))

    @property
    def state(self):
        return fold(self.entries)

    def estimate(self, length):
        value = length * math.exp(self.rng.gauss(0, SPREAD))
        half = math.exp(1.96 * SPREAD)
        low, high = value / half, value * half
        return {"value": value, "low": low, "high": high, "observations": 90, "clusters": 30}

    def window(self, length=4.0, release="base", seconds=1.0, at=0.0):
        number = len(self.state.windows) + 1
        self.add("window", at, window=number, rows=100, position={"a": number})
        acceptance = self.estimate(length)
        self.add(
            "watched",
            at,
            window=number,
            release=release,
            acceptance=acceptance,
            gpu_seconds=seconds,
        )

    def round(self, ships, release="base", length=4.0):
        number, state = len(self.state.rounds) + 1, self.state
        newer = [window.n for window in state.fresh]
        self.add("round", round=number, newer=newer, older=[], reason="")
        self.add("trained", round=number)
        acceptance = {"custom": self.estimate(length)} if ships else None
        self.add("gated", round=number, ships=ships, reason="", acceptance=acceptance)
        if ships:
            self.add("deployed", round=number, outcome="promoted", release=release)


POLICY = AdaptConfig(window=100, fresh=None).model_copy(update={"min_drop": 0.0})


def alarm(story, length, windows):
    """The window, counted from now, at which a fall is shown; None without one."""
    for number in range(1, windows + 1):
        story.window(length)
        fall = newest_fall(story.state, "base", POLICY.min_drop)
        if fall is not None and fall.shown:
            return number
    return None


def test_at_most_one_in_twenty_releases_has_a_false_alarm():
    alarms = sum(alarm(Story(seed), 4.0, windows=30) is not None for seed in range(100))
    # A fall is half of what "beyond chance" is, so 2.5 % at most; a plain 5 % at each of 29 looks
    # alarms in most stories.
    assert alarms <= 0.025 * 100 + 3 * math.sqrt(0.025 * 100)


def test_a_fall_of_a_tenth_is_shown_by_the_first_window_that_has_it():
    found = []
    for seed in range(50):
        story = Story(seed)
        alarm(story, 4.0, windows=10)
        found.append(alarm(story, 3.6, windows=3))
    assert Counter(found)[1] >= 48


def test_a_release_is_compared_with_what_its_gate_measured():
    story = Story()
    story.window(3.0)
    story.window(3.0)
    story.round(ships=True, release="r1", length=5.0)
    story.window(3.0)  # it serves from here on, but this window arrived before it
    story.window(4.9, release="r1")
    assert not newest_fall(story.state, "r1", 0.05).shown
    story.window(4.0, release="r1")
    reason = reason_to_train(story.state, "r1", POLICY)
    assert reason and "fell to 0.8" in reason
    assert newest_fall(story.state, "r2", 0.05) is None


def test_fresh_traffic_starts_a_round_and_losing_rounds_wait_longer():
    policy = AdaptConfig(window=100, fresh=300)
    story, waits = Story(), []
    for ships in (True, False, False, True, True):
        waited = 0
        while reason_to_train(story.state, "base", policy) is None:
            story.window()
            waited += 100
        waits.append(waited)
        story.round(ships, release="base")
    assert waits == [300, 300, 600, 1200, 300]


def test_the_budget_is_that_of_the_last_24_hours():
    story = Story()
    story.window(seconds=1000.0, at=1000.0)
    story.window(seconds=900.0, at=50_000.0)
    assert not within_budget(story.state, 60_000.0, 0.5)  # 1,900 s
    assert within_budget(story.state, 1000.0 + 86_401, 0.5)
    assert within_budget(story.state, 60_000.0, None)


def limited(windows, **limits):
    """A policy that has space for so many windows of a gigabyte each."""
    return AdaptConfig(window=100, max_gb=windows + 0.5, **limits)


def doomed(story, policy, keep_older=True, now=0.0):
    sizes = dict.fromkeys(story.state.windows, 10**9)
    for number, window in story.state.windows.items():
        sizes[number] *= not window.deleted
    return surplus(story.state, sizes, keep_older, now, policy)


def test_refused_and_old_windows_go_and_with_retention_those_of_ended_rounds():
    story = Story()
    story.window(at=1000.0)
    story.window(at=1000.0)
    story.round(ships=False)
    story.add("window", 2000.0, window=3, rows=100, position={})
    story.add("refused_window", 2000.0, window=3, reason="broken")
    story.window(at=2000.0)
    policy = limited(99)
    assert doomed(story, policy, now=2000.0) == [3]
    assert doomed(story, policy, keep_older=False, now=2000.0) == [1, 2, 3]
    assert doomed(story, policy, now=1000.0 + 30 * 86_400 + 1) == [1, 2, 3]


def test_beyond_the_disk_space_the_oldest_windows_go_and_never_the_newest():
    story = Story()
    for _ in range(7):
        story.window()
    assert doomed(story, limited(5)) == [1, 2]
    assert doomed(story, limited(0.1)) == [1, 2, 3, 4, 5, 6]
