"""When a round starts: a fall against the base, fresh traffic, budget; which windows go."""

import math

import numpy as np
import pytest

from outrider.adapt.policy import (
    newest_acceptance_drop,
    reason_to_train,
    surplus_windows,
    within_budget,
)
from outrider.pipeline.recipe.recipe import AdaptConfig
from tests.adapt.simulated_windows import POLICY, Ordinary, Story, alarm


@pytest.mark.parametrize(
    "ordinary",
    [
        Ordinary(),
        Ordinary(sessions=100, long_tails=True),
        Ordinary(correlation=0.8),
        Ordinary(correlation=0.9),
        Ordinary(weekend=0.06),
        Ordinary(weekend=0.06, windows_a_day=1),
    ],
)
def test_ordinary_traffic_seldom_starts_a_round_in_60_windows(ordinary):
    random = np.random.default_rng(0)
    stories = [Story(random, ordinary=ordinary) for _ in range(100)]
    # At most 3.4 % of 1,000; with 5 %, 100 stories have more than 9 in 3 % of cases. A test for any
    # significant fall starts rounds in 20 to 95 of the correlated and weekly ones.
    assert sum(alarm(story, 0.0, windows=60) is not None for story in stories) <= 9


def test_traffic_that_becomes_harder_for_both_is_no_reason():
    story = Story(np.random.default_rng(1), between=0.0)
    for length in (4.0, 4.0, 2.0, 2.0):
        story.window(release="r1", length=length)
    assert story.state.usable[-1].acceptance.value == 2.0
    assert reason_to_train(story.state, "r1", POLICY) is None


@pytest.mark.parametrize(
    ("fall", "gradual", "ordinary", "within", "least"),
    [
        (0.1, 1, Ordinary(), 8, 0.5),
        (0.1, 1, Ordinary(), 30, 0.95),
        (0.1, 1, Ordinary(correlation=0.8), 8, 0.5),
        (0.1, 1, Ordinary(weekend=0.06), 30, 0.9),
        (0.1, 10, Ordinary(), 30, 0.9),
        (0.2, 1, Ordinary(correlation=0.8), 4, 0.9),
        (0.5, 1, Ordinary(), 1, 1),
    ],
)
def test_a_lasting_fall_is_shown_and_a_large_one_at_once(fall, gradual, ordinary, within, least):
    random = np.random.default_rng(1)
    shown = 0
    for _ in range(60):
        story = Story(random, ordinary=ordinary)
        for _ in range(10):
            story.window()
        shown += alarm(story, math.log(1 - fall), within, gradual) is not None
    assert shown >= least * 60


def test_a_fall_that_ends_by_itself_and_one_that_is_too_small_start_no_round():
    for fall, windows in ((0.12, 3), (0.06, 40)):
        story = Story(np.random.default_rng(0), between=0.0)
        for _ in range(10):
            story.window()
        assert alarm(story, math.log(1 - fall), windows) is None
        assert alarm(story, 0.0, windows=20) is None


def test_a_release_is_compared_with_its_own_windows_only():
    story = Story(np.random.default_rng(0), between=0.0)
    for _ in range(4):
        story.window(shift=0.3, release="r1")
    story.window(release="r2")
    assert newest_acceptance_drop(story.state, "r2", 0.03) is None
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
        return surplus_windows(story.state, sizes, keep_older, policy)

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
