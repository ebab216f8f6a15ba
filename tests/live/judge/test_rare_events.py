"""Evidence from rare events: against sums over subsets, and its chance of a false alarm."""

import itertools
import math

import numpy as np
import pytest

from outrider.live.judge.rare_events import more_often, over_limit

TIMES = (2.0, 5.0, 25.0)


def literal(events, canary, blocks, sessions):
    """The gain of each bet, from all subsets of those at risk, block by block."""
    gains = [1.0] * len(TIMES)
    done = set()
    for block in sorted(set(blocks)):
        here = [i for i in range(len(events)) if blocks[i] == block]
        at_risk = sorted({(sessions[i], canary[i]) for i in here} - done)
        hit = {(sessions[i], canary[i]) for i in here if events[i]} - done
        done |= hit
        for which, times in enumerate(TIMES):
            draws = list(itertools.combinations(at_risk, len(hit)))
            expected = sum(times ** sum(unit[1] for unit in draw) for draw in draws) / len(draws)
            gains[which] *= times ** sum(unit[1] for unit in hit) / expected
    return sum(gains) / len(gains)


@pytest.mark.parametrize("seed", range(4))
def test_the_evidence_is_that_of_all_draws(seed):
    random = np.random.default_rng(seed)
    sessions = random.integers(0, 14, 40)
    canary = random.random(40) < 0.4
    events = random.random(40) < np.where(canary, 0.4, 0.1)
    blocks = np.arange(40) // 8
    found = more_often(events, canary, blocks, sessions)
    expected = literal(events.tolist(), canary.tolist(), blocks.tolist(), sessions.tolist())
    assert found == pytest.approx(expected)


def test_a_session_that_keeps_failing_is_one_event():
    canary = np.arange(200) % 20 == 0
    blocks = np.arange(200) // 20
    sessions = np.where(canary, 1000, np.arange(200))
    once = more_often(canary & (np.arange(200) < 20), canary, blocks, sessions)
    assert more_often(canary.copy(), canary, blocks, sessions) == pytest.approx(once) and once < 20
    own = np.where(canary, 1000 + np.arange(200), np.arange(200))
    assert more_often(canary.copy(), canary, blocks, own) > 1e4


def test_no_requests_and_no_events_are_no_evidence():
    nothing = np.zeros(0, int)
    assert more_often(nothing.astype(bool), nothing.astype(bool), nothing, nothing) == 1
    some = np.zeros(40, bool)
    assert more_often(some, np.arange(40) < 9, np.arange(40) // 20, np.arange(40)) == 1
    assert over_limit(0, 0, 0.01) == 1


def test_equal_failures_in_bursts_seldom_reach_the_threshold_ever():
    """An outage hits both: at some times half of the requests fail. Threshold 1 / 0.05."""
    reached = 0
    for trial in range(150):
        random = np.random.default_rng([5, trial])
        canary = random.random(600) < 0.1
        outage = np.repeat(random.random(30) < 0.2, 20)
        events = random.random(600) < np.where(outage, 0.5, 0.01)
        evidence = [
            more_often(events[:end], canary[:end], np.arange(end) // 20, np.arange(end))
            for end in range(100, 601, 100)
        ]
        reached += max(evidence) >= 20
    assert reached / 150 <= 0.05


def test_the_limit_is_a_fair_bet_and_a_broken_canary_shows_at_once():
    for limit, trials in ((0.01, 30), (0.2, 12)):
        chances = [
            math.comb(trials, k) * limit**k * (1 - limit) ** (trials - k) for k in range(trials + 1)
        ]
        gains = [over_limit(k, trials, limit) for k in range(trials + 1)]
        assert sum(c * g for c, g in zip(chances, gains, strict=True)) == pytest.approx(1)
    assert over_limit(3, 3, 0.01) > 250
    assert over_limit(2, 200, 0.01) < 10
    assert over_limit(1, 1, 0.0) > 250  # none are allowed
