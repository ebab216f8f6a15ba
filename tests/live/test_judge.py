"""The canary's decision: error rates over all looks, and every reason to roll back or to wait."""

import dataclasses

import numpy as np
import pytest

from outrider.live.endpoint_file import CanaryPolicy
from outrider.live.judge import decide
from tests.live.simulated_traffic import BEGAN, Traffic, first_verdict

POLICY = CanaryPolicy()


def shares(traffic, trials, requests=1200, looks=6):
    """Share of trials that end, at some look, in each verdict."""
    found = [
        first_verdict(traffic.draw(np.random.default_rng([0, trial]), requests), POLICY, looks)[0]
        for trial in range(trials)
    ]
    return {action: found.count(action) / trials for action in ("wait", "promote", "roll_back")}


def test_a_speculator_that_is_three_percent_slower_is_seldom_promoted_at_any_look():
    assert shares(Traffic(speed=0.97), 60)["promote"] <= 0.05


def test_an_equal_one_is_seldom_rolled_back_at_any_look():
    assert shares(Traffic(), 60)["roll_back"] <= 0.05


@pytest.mark.parametrize(
    ("traffic", "action", "least"),
    [
        (Traffic(speed=1.25), "promote", 0.9),
        (Traffic(speed=0.75), "roll_back", 0.9),
        (Traffic(speed=1.25, failures=(0.001, 0.1)), "roll_back", 0.9),
    ],
)
def test_a_clear_case_is_decided(traffic, action, least):
    assert shares(traffic, 10)[action] >= least


def drawn(**kwargs):
    return Traffic(**kwargs).draw(np.random.default_rng(1), 2000)


def changed(arm, **factors):
    """Each request with these figures multiplied."""
    return [
        dataclasses.replace(each, **{n: getattr(each, n) * f for n, f in factors.items()})
        for each in arm
    ]


def test_speed_is_compared_at_the_fair_share_only():
    stable, canary = drawn(speed=0.7)
    assert decide(stable, canary, POLICY, None).action == "wait"
    middle = np.median([each.started_at for each in stable])
    late = [[each for each in arm if each.started_at >= middle] for arm in (stable, canary)]
    found = decide(stable, canary, POLICY, middle)
    assert found.action == "roll_back" and found.reason.startswith("speed")
    assert found.figures["speed"] == decide(*late, POLICY, 0.0).figures["speed"]


def test_errors_roll_back_at_any_share_unless_stable_fails_too():
    for fair_since in (None, BEGAN):
        found = decide(*drawn(speed=1.25, failures=(0.001, 0.1)), POLICY, fair_since)
        assert found.action == "roll_back" and found.reason.startswith("errors")
    assert decide(*drawn(speed=1.25, failures=(0.1, 0.1)), POLICY, BEGAN).action == "promote"
    stable, canary = drawn()
    three = [dataclasses.replace(each, failed=True) for each in canary[:3]]
    assert decide(stable, three[:2], POLICY, None).action == "wait"
    assert decide(stable, three, POLICY, None).action == "roll_back", "before min_requests"


@pytest.mark.parametrize(
    ("factors", "name"),
    [
        ({"ttft_s": 1.7}, "ttft"),
        ({"accepted": 0.4}, "acceptance"),
        ({"latency_s": 2.0}, "latency_p99"),
    ],
)
def test_a_limit_that_is_exceeded_holds_a_promotion(factors, name):
    stable, canary = drawn(speed=1.25)
    assert decide(stable, canary, POLICY, BEGAN).action == "promote"
    found = decide(stable, changed(canary, **factors), POLICY, BEGAN)
    assert found.action == "wait" and found.reason.startswith(name)


@pytest.mark.parametrize("arms", [(0, 0), (None, 0), (0, None), (3, 3)])
def test_too_little_is_waited_for(arms):
    stable, canary = drawn()
    assert decide(stable[: arms[0]], canary[: arms[1]], POLICY, BEGAN).action == "wait"


def test_requests_that_count_for_nothing_change_no_speed():
    stable, canary = drawn(speed=1.25)
    slow = [
        dataclasses.replace(each, id=f"x{i}", decode_s=9e9, counts=False)
        for i, each in enumerate(canary[:50])
    ]
    one, other = (decide(stable, [*canary, *more], POLICY, BEGAN) for more in ((), slow))
    assert one.figures["speed"] == other.figures["speed"]
