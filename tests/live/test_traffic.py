"""Observations from the router's log and the replicas' counts, and what a release promises."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.live.endpoint_file import CanaryPolicy
from outrider.live.releases import WATCH_LEVEL, Release, watch_of
from outrider.live.traffic import observations, read_log
from outrider.serving.admin.replica import LiveRequest
from tests.fuzzing import changed, examples

IDS = [f"0000000{n}-0000-4000-8000-000000000000" for n in range(9)]


ROLES = {"s": "stable", "c": "canary"}


def routed(number, role="stable", **changes):
    return {
        "started_at": str(100.0 + number),
        "cluster": role,
        "host": role[0],
        "status": 200,
        "flags": "-",
        "duration_ms": 2000,
        "request_id": IDS[number],
        "session": "Ann",
    } | changes


def live(number, **changes):
    plain = LiveRequest(
        index=number,
        request_id=f"chatcmpl-{IDS[number]}",
        version="new",
        finished_at=102.0 + number,
        completion_tokens=50,
        drafts=20,
        accepted=30,
        ttft_s=0.1,
        decode_s=1.5,
        e2e_s=1.9,
        failed=False,
    )
    return dataclasses.replace(plain, **changes)


@pytest.mark.parametrize("form", ["cmpl-{}-0", "chatcmpl-{}", "{}"])
def test_a_request_has_the_replica_s_counts_and_the_router_s_latency(form):
    answered = live(0, request_id=form.format(IDS[0]))
    stable, (request,) = observations([routed(0, "canary")], [answered], ROLES)
    assert stable == [] and not request.failed
    assert request.live == answered and request.latency_s == 2.0 and "Ann" not in request.session


def test_what_has_not_arrived_in_both_waits_but_failures_do_not():
    none = [routed(0), routed(1)]
    assert observations(none, [live(2)], ROLES) == ([], [])
    stable, _ = observations([routed(n, session=None) for n in (0, 1)], [live(0), live(1)], ROLES)
    assert len({request.session for request in stable}) == 2, "without a session, each is one"


def test_requests_with_one_value_of_the_sticky_header_are_one_cluster():
    rows = [routed(0), routed(1), routed(2, session="Bob"), routed(3, session=None)]
    stable, _ = observations(rows, [live(n) for n in range(4)], ROLES)
    first, second, third, fourth = (request.session for request in stable)
    assert first == second and len({first, third, fourth}) == 3


def test_a_canary_s_request_that_stable_had_to_answer_is_the_canary_s_failure():
    tried = live(0, aborted=True, completion_tokens=3)
    answered = live(0, version="old")
    for order in ([tried, answered], [answered, tried]):
        stable, canary = observations([routed(0, "canary", host="s")], order, ROLES)
        assert stable == [] and canary[0].failed and canary[0].live == answered


@pytest.mark.parametrize(
    ("routed_as", "replica_s", "failed", "counts"),
    [
        ({"flags": "DC"}, [live(0)], False, True),  # the client left
        ({"flags": "UC"}, [live(0)], True, True),  # the response broke off
        ({"status": 404}, [live(0)], False, True),
        ({"status": 503, "host": None}, [], True, False),
        ({}, [live(0, mixed=True)], False, False),  # with a swap inside
        ({}, [live(0, aborted=True)], False, False),
        ({}, [live(0, failed=True)], True, True),
    ],
)
def test_which_requests_failed_and_which_count_for_more_than_that(
    routed_as, replica_s, failed, counts
):
    (request,), _ = observations([routed(0, **routed_as)], replica_s, ROLES)
    assert (request.failed, request.live is not None) == (failed, counts)


def release(evidence):
    return Release(
        name="4f",
        digest="4f1d",
        serve_digest="",
        added_at=0.0,
        directory=Path("bundle"),
        manifest={"evidence": evidence},
    )


def test_the_watch_is_the_evidence_s_low_end_and_the_policy_s_ratio():
    lengths = {"base": 2.0, "custom": 3.0, "ratio": 1.5, "ratio_ci95": [1.35, 1.65]}
    policy = CanaryPolicy(min_acceptance_ratio=0.9, watch_requests=12)
    for interval, least in (([1.35, 1.65], 3.0 * 0.9 * 0.9), ([None, None], 3.0 * 0.9)):
        evidence = {"acceptance_length": lengths | {"ratio_ci95": interval}}
        watch = watch_of(release(evidence), policy)
        assert (watch.requests, watch.level) == (12, WATCH_LEVEL)
        assert watch.min_tokens_per_step == pytest.approx(least)
    none = policy.model_copy(update={"watch_requests": 0})
    assert watch_of(release({"acceptance_length": lengths}), none) is None
    for evidence in (None, {}, {"acceptance_length": {"custom": None}}):
        assert watch_of(release(evidence), policy) is None


@examples(200)
@given(rows=st.lists(changed(routed(1)), max_size=4))
def test_any_line_of_the_routers_log_is_read_or_left_out(tmp_path_factory, rows) -> None:
    path = tmp_path_factory.mktemp("log") / "access.log"
    lines = [json.dumps(row) for row in [*rows, routed(2)]]
    path.write_text("\n".join(lines) + "\n")
    read, end = read_log(path, 0)
    assert read[-1] == routed(2) and end == path.stat().st_size
    stable, _ = observations(read, [live(2)], ROLES)
    assert len(stable) >= 1
