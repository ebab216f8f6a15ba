"""The canary's decision: error rates over all looks, and every reason to roll back or to wait."""

import dataclasses

import numpy as np
import pytest

from outrider.live.endpoint_file import CanaryPolicy
from outrider.live.judge import decide_canary
from tests.live.simulated_traffic import BEGAN, Traffic, run_canary

POLICY = CanaryPolicy()


BASELINE = Traffic().draw(np.random.default_rng(9), 1000)


@pytest.mark.parametrize(
    ("traffic", "trials", "action", "least", "most"),
    [
        (Traffic(speed=0.97, replica=1.06), 60, "promote", 0, 0.05),
        (Traffic(replica=0.94), 60, "roll_back", 0, 0.05),
        (Traffic(later=0.94), 60, "roll_back", 0, 0.05),
        (Traffic(users=20), 60, "roll_back", 0, 0.05),
        (Traffic(speed=1.25, replica=0.9), 10, "promote", 0.9, 1),
        (Traffic(speed=0.75, replica=1.1), 10, "roll_back", 0.9, 1),
        (Traffic(speed=0.75, later=0.9), 10, "roll_back", 0.9, 1),
        (Traffic(speed=1.25, failures=(0.001, 0.1)), 10, "roll_back", 0.9, 1),
    ],
)
def test_wrong_decisions_are_rare_at_any_look_and_clear_cases_are_decided(
    traffic, trials, action, least, most
):
    policy = POLICY.model_copy(update={"baseline_requests": 600})
    actions = []
    for trial in range(trials):
        random = np.random.default_rng([0, trial])
        actions.append(run_canary(traffic, random, policy, requests=1200, looks=6)[0])
    assert least <= actions.count(action) / trials <= most


def drawn(**kwargs):
    return Traffic(**kwargs).draw(np.random.default_rng(1), 2000)


def decided(stable, canary, fair_since=BEGAN, baseline=BASELINE, is_second=False):
    return decide_canary((stable, canary), baseline, POLICY, fair_since, is_second)


def changed(arm, latency=1.0, **factors):
    """Each request with its latency and these counts multiplied."""
    return [
        dataclasses.replace(
            request,
            latency_s=request.latency_s * latency,
            live=dataclasses.replace(
                request.live, **{n: getattr(request.live, n) * f for n, f in factors.items()}
            ),
        )
        for request in arm
    ]


def test_speed_is_compared_at_the_fair_share_only():
    stable, canary = drawn(speed=0.7)
    assert decided(stable, canary, None).action == "wait"
    middle = np.median([request.started_at for request in stable])
    late = [
        [request for request in arm if request.started_at >= middle] for arm in (stable, canary)
    ]
    verdict = decided(stable, canary, middle)
    assert verdict.action == "second_baseline" and verdict.reason.startswith("speed")
    assert verdict.figures["speed"] == decided(*late).figures["speed"]


def test_a_slow_canary_is_rolled_back_only_if_a_second_baseline_is_not_as_slow():
    arms = drawn(speed=0.8)
    assert decided(*arms).action == "second_baseline"
    assert decided(*arms, is_second=True).action == "roll_back"
    slow = (BASELINE[0], changed(BASELINE[1], decode_s=1.25))
    verdict = decided(*arms, baseline=slow, is_second=True)
    assert verdict.action == "wait" and verdict.figures["replica"] < 0.85
    # What does not even look slow needs no second baseline.
    assert decided(*drawn()).action != "second_baseline"


def test_errors_roll_back_at_any_share_unless_stable_fails_too():
    for fair_since in (None, BEGAN):
        verdict = decided(*drawn(speed=1.25, failures=(0.001, 0.1)), fair_since)
        assert verdict.action == "roll_back" and verdict.reason.startswith("errors")
    assert decided(*drawn(speed=1.25, failures=(0.1, 0.1))).action == "promote"
    stable, canary = drawn()
    three = [dataclasses.replace(request, failed=True) for request in canary[:3]]
    assert decided(stable, three[:2], None).action == "wait"
    assert decided(stable, three, None).action == "roll_back", "before min_requests"


@pytest.mark.parametrize(
    ("factors", "name"),
    [
        ({"ttft_s": 1.7}, "ttft"),
        ({"accepted": 0.4}, "acceptance"),
        ({"latency": 2.0}, "latency_p99"),
    ],
)
def test_a_limit_that_is_exceeded_holds_a_promotion(factors, name):
    stable, canary = drawn(speed=1.25)
    assert decided(stable, canary).action == "promote"
    verdict = decided(stable, changed(canary, **factors))
    assert verdict.action == "wait" and verdict.reason.startswith(name)


@pytest.mark.parametrize("arms", [(0, 0), (None, 0), (0, None), (3, 3)])
def test_too_little_is_waited_for(arms):
    stable, canary = drawn()
    assert decided(stable[: arms[0]], canary[: arms[1]]).action == "wait"


def test_requests_that_count_for_nothing_change_no_speed():
    stable, canary = drawn(speed=1.25)
    slow = [dataclasses.replace(request, live=None) for request in canary[:50]]
    without, with_them = (decided(stable, [*canary, *more]) for more in ((), slow))
    assert without.figures["speed"] == with_them.figures["speed"]


def test_a_baseline_of_few_sessions_is_waited_for_and_its_ratios_are_divided_out():
    arms = drawn(speed=1.25)
    few = decided(*arms, baseline=(BASELINE[0], BASELINE[1][:3]))
    assert few.action == "wait" and few.reason.endswith("before the swap")
    slow_start = {"ttft_s": 1.7, "latency": 1.5, "accepted": 0.4}
    before = (BASELINE[0], changed(BASELINE[1], **slow_start))
    verdict = decided(arms[0], changed(arms[1], **slow_start), baseline=before)
    plain = decided(*arms)
    assert verdict.action == plain.action == "promote"
    assert verdict.figures["ttft"] == pytest.approx(plain.figures["ttft"])
