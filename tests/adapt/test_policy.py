"""When a round starts: a fall against the base, fresh traffic, budget; which windows go."""

import math

import numpy as np

from outrider.adapt.policy import newest_fall, reason_to_train, surplus, within_budget
from outrider.pipeline.recipe.recipe import AdaptConfig
from tests.adapt.simulated_windows import POLICY, Story, alarm


def test_at_most_one_in_twenty_releases_has_a_false_alarm():
    random = np.random.default_rng(0)
    alarms = sum(alarm(Story(random), 0.0, windows=40) is not None for _ in range(60))
    # A plain 5 % at each of 39 looks alarms in most stories.
    assert alarms <= 0.05 * 60


def test_traffic_that_becomes_harder_for_both_is_no_reason():
    story = Story(np.random.default_rng(1), between=0.0)
    for length in (4.0, 4.0, 2.0, 2.0):
        story.window(release="r1", length=length)
    assert story.state.usable[-1].acceptance.value == 2.0
    assert reason_to_train(story.state, "r1", POLICY) is None


def test_half_of_the_falls_of_a_tenth_are_shown_within_five_windows():
    windows = []
    for seed in range(40):
        story = Story(np.random.default_rng(seed))
        alarm(story, 0.0, windows=10)
        windows.append(alarm(story, math.log(0.9), windows=12))
    assert sum(window in range(1, 6) for window in windows) >= 20 and windows.count(None) <= 8


def test_a_release_is_compared_with_its_own_windows_only():
    story = Story(np.random.default_rng(0), between=0.0)
    for _ in range(4):
        story.window(shift=0.3, release="r1")
    story.window(release="r2")
    assert newest_fall(story.state, "r2", 0.03) is None
    story.window(shift=-0.3, release="r2")
    reason = reason_to_train(story.state, "r2", POLICY)
    assert reason and "fell to 0.7" in reason and "on the last 1 windows" in reason


def test_while_the_base_serves_every_window_is_enough_without_fresh():
    story = Story(np.random.default_rng(0))
    story.window(ratio=False)
    assert reason_to_train(story.state, "base", POLICY) == "100 rows since the last round"


def test_fresh_traffic_starts_a_round_and_losing_rounds_wait_longer():
    policy = AdaptConfig(window=100, fresh=300)
    story = Story(np.random.default_rng(0))
    waits = []
    for ships in (True, False, False, True, True):
        waited = 0
        while reason_to_train(story.state, "base", policy) is None:
            story.window()
            waited += 100
        waits.append(waited)
        story.round(ships)
    assert waits == [300, 300, 600, 1200, 300]


def test_the_budget_is_that_of_the_last_24_hours(monkeypatch):
    story = Story(np.random.default_rng(0))
    story.window(seconds=1000.0, at=1000.0)
    story.window(seconds=900.0, at=50_000.0)
    for now, hours, within in ((60_000, 0.5, False), (87_401, 0.5, True), (60_000, None, True)):
        monkeypatch.setattr("time.time", lambda now=now: now)
        assert within_budget(story.state, AdaptConfig(gpu_hours_per_day=hours)) == within


def test_which_windows_are_deleted(monkeypatch):
    """Refused and old ones, with retention those of ended rounds, and beyond the space the oldest.

    All are a gigabyte each.
    """
    monkeypatch.setattr("time.time", lambda: 2000.0)

    def doomed(keep_older=True, gigabytes=99.5):
        sizes = {n: 10**9 * (not window.deleted) for n, window in story.state.windows.items()}
        policy = AdaptConfig(window=100, max_gb=gigabytes)
        return surplus(story.state, sizes, keep_older, policy)

    story = Story(np.random.default_rng(0))
    story.window(at=1000.0)
    story.window(at=1000.0)
    story.round(ships=False)
    story.add("window", 2000.0, window=3, rows=100, position={})
    story.add("refused_window", 2000.0, window=3, reason="broken")
    for _ in range(4):
        story.window(at=2000.0)
    for limits, expected in (
        ({}, [3]),
        ({"keep_older": False}, [1, 2, 3]),
        ({"gigabytes": 4.5}, [1, 2, 3]),
        ({"gigabytes": 0.1}, [1, 2, 3, 4, 5, 6]),  # never the newest one
    ):
        assert doomed(**limits) == expected
    monkeypatch.setattr("time.time", lambda: 1000.0 + 30 * 86_400 + 1)
    assert doomed() == [1, 2, 3]
