"""The canary's decision: error rates over all looks, and every reason to roll back."""

import dataclasses
import math

import numpy as np
import pytest

from outrider.live.endpoint_file import CanaryPolicy
from outrider.live.judge import ALPHA, ALPHA_GUARD, ALPHA_SPEED, decide, over_limit
from tests.live.simulated_traffic import Traffic, first_verdict, until

POLICY = CanaryPolicy(min_requests=20, min_seconds=0)


def shares(traffic, trials, requests=800, looks=5, seed=0):
    """Share of trials that end, at some look, in each verdict."""
    found = [
        first_verdict(traffic.draw(np.random.default_rng([seed, trial]), requests), POLICY, looks)[
            0
        ]
        for trial in range(trials)
    ]
    return {action: found.count(action) / trials for action in ("wait", "promote", "roll_back")}


def test_the_error_rates_are_spent_once():
    assert pytest.approx(ALPHA) == ALPHA_SPEED + 4 * ALPHA_GUARD


def test_a_speculator_that_is_three_percent_slower_is_seldom_promoted_at_any_look():
    assert shares(Traffic(speed=0.97), 40)["promote"] <= 0.05


def test_light_load_does_not_promote_a_slower_canary():
    # 5 % of the requests on one of two replicas: a step of the canary is 30 % shorter.
    traffic = Traffic(speed=0.97, per_replica=True, step_of_load=0.05)
    arms = traffic.draw(np.random.default_rng(0), 1600)
    stable, canary = ([each.completion_tokens / each.decode_s for each in arm] for arm in arms)
    assert np.median(canary) > 1.15 * np.median(stable)
    assert shares(traffic, 25)["promote"] <= 0.05


def test_an_equal_one_is_seldom_rolled_back_at_any_look():
    assert shares(Traffic(), 40)["roll_back"] <= 0.05


@pytest.mark.parametrize(
    ("traffic", "action", "least"),
    [
        (Traffic(speed=1.25), "promote", 0.9),
        (Traffic(speed=0.75), "roll_back", 0.9),
        (Traffic(speed=1.25, failures=(0.001, 0.4)), "roll_back", 0.8),
    ],
)
def test_a_clear_case_is_decided(traffic, action, least):
    assert shares(traffic, 10)[action] >= least


def drawn(**kwargs):
    stable, canary = Traffic(share=(0.5,), **kwargs).draw(np.random.default_rng(1), 1200)
    return stable, canary


def changed(arm, **factors):
    """Each request with these figures multiplied."""
    return [
        dataclasses.replace(each, **{n: getattr(each, n) * f for n, f in factors.items()})
        for each in arm
    ]


@pytest.mark.parametrize(
    ("factors", "reason"),
    [
        ({"ttft_s": 1.7}, "time to first token"),
        ({"accepted": 0.4}, "acceptance"),
        ({"decode_s": 1.3}, "speed"),
    ],
)
def test_each_guard_rolls_back_and_is_named(factors, reason):
    stable, canary = drawn()
    assert decide(stable, canary, POLICY).action == "promote" or factors
    found = decide(stable, changed(canary, **factors), POLICY)
    assert found.action == "roll_back" and found.reason.startswith(reason)


def test_a_slow_tail_rolls_back_though_the_median_is_the_same():
    stable, canary = drawn()
    random = np.random.default_rng(2)
    slow = [
        dataclasses.replace(each, latency_s=each.latency_s + 500.0 * (random.random() < 0.08))
        for each in canary
    ]
    found = decide(stable, slow, POLICY)
    assert found.action == "roll_back" and "max_p99_latency_ratio" in found.reason


def test_failures_of_both_are_no_reason_but_the_canary_s_own_are():
    both = drawn(speed=1.25, failures=(0.1, 0.1))
    assert decide(*both, POLICY).action == "promote"
    own = drawn(speed=1.25, failures=(0.001, 0.1))
    found = decide(*own, POLICY)
    assert found.action == "roll_back" and found.reason.startswith("errors")


def test_the_least_requests_and_time_hold_a_promotion_but_no_rollback():
    stable, canary = drawn(speed=1.3)
    assert decide(stable, canary, POLICY).action == "promote"
    for change in ({"min_requests": 10_000}, {"min_seconds": 1e6}):
        policy = POLICY.model_copy(update=change | {"max_seconds": 1e7})
        found = decide(stable, canary, policy)
        assert found.action == "wait" and next(iter(change)) in found.reason
        assert decide(stable, changed(canary, decode_s=1.8), policy).action == "roll_back"


def test_a_guard_that_looks_broken_holds_a_promotion():
    stable, canary = drawn(speed=1.4)
    few = until((stable, canary), 1200)  # too few to show that time to first token is over
    assert decide(*few, POLICY).action == "promote"
    found = decide(few[0], changed(few[1], ttft_s=1.35), POLICY)
    assert found.action == "wait" and found.reason.startswith("time to first token")


@pytest.mark.parametrize("which", ["none", "stable", "canary", "three"])
def test_too_little_is_waited_for(which):
    stable, canary = drawn()
    arms = {
        "none": ([], []),
        "stable": (stable, []),
        "canary": ([], canary),
        "three": (stable[:3], canary[:3]),
    }[which]
    found = decide(*arms, POLICY)
    assert found.action == "wait" and found.speed.low == 0


def test_long_requests_from_before_the_canary_are_left_out():
    stable, canary = drawn()
    begin = min(each.finished_at - each.latency_s for each in canary)
    early = [
        dataclasses.replace(each, finished_at=begin + 5, latency_s=1000.0, decode_s=900.0)
        for each in stable[:50]
    ]
    kept = [each for each in stable if each.finished_at - each.latency_s >= begin]
    assert decide([*early, *kept], canary, POLICY) == decide(kept, canary, POLICY)


def test_the_limit_is_a_fair_bet_and_a_broken_canary_shows_at_once():
    for limit, trials in ((0.01, 30), (0.2, 12)):
        chances = [
            math.comb(trials, k) * limit**k * (1 - limit) ** (trials - k) for k in range(trials + 1)
        ]
        gains = [over_limit(k, trials, limit) for k in range(trials + 1)]
        assert sum(c * g for c, g in zip(chances, gains, strict=True)) == pytest.approx(1)
    assert over_limit(3, 3, 0.01) > 1 / ALPHA_GUARD
    assert over_limit(2, 200, 0.01) < 10
    assert over_limit(0, 0, 0.01) == 1
