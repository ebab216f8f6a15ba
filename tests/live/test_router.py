"""A real Envoy in front of small replicas: shares, sessions, deaths, drains, restarts."""

import json
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from outrider.common.errors import OutriderError
from outrider.live.local import running_router
from outrider.live.router import Router, RouterUnavailable
from outrider.live.traffic import observations, read_log
from outrider.serving.admin.address import Address
from tests.live.fleet import Fleet, stat, wait_for


@pytest.fixture(scope="module")
def fleet():
    """Replicas that no test kills."""
    with Fleet(stable=["a", "b"], canary=["c"]) as fleet:
        yield fleet


def logged(fleet: Fleet, count: int, offset: int = 0) -> list[dict[str, Any]]:
    """The log's requests from an offset on, as soon as there are `count`."""
    wait_for(lambda: len(read_log(fleet.endpoint.access_log, offset)[0]) >= count)
    return read_log(fleet.endpoint.access_log, offset)[0]


def host(fleet: Fleet, row: dict[str, Any]) -> str:
    """Name of the replica that answered."""
    (name,) = (r.name for r in fleet.endpoint.replicas if r.name == row["host"])
    return name


@pytest.fixture
def router(fleet):
    with running_router(fleet.endpoint) as router:
        yield router


def test_a_share_is_that_of_the_requests_and_a_larger_one_only_adds_sessions(fleet, router) -> None:
    assert router.share() == 0 and set(fleet.names(30)) == {"a", "b"}
    router.set_canary_share(25)
    assert router.share() == 25
    assert 45 < fleet.names(400).count("c") < 155  # 100, and 6 standard deviations of 8.7
    cohorts = []
    for share in (10, 40, 10):
        router.set_canary_share(share)
        seen = defaultdict(set)
        for name in [f"session-{index}" for index in range(60)] * 2:
            seen[name] |= set(fleet.names(1, headers={"x-session-id": name}))
        # Every session has one replica, so that it finds its prefixes cached.
        assert all(len(replicas) == 1 for replicas in seen.values())
        assert {"a", "b"} < set.union(*seen.values())
        cohorts.append({name for name, replicas in seen.items() if replicas == {"c"}})
    assert 0 < len(cohorts[0]) < len(cohorts[1]) < 60
    assert cohorts[0] < cohorts[1] and cohorts[0] == cohorts[2]


def test_the_log_has_each_request_and_no_text_and_clients_set_no_header_of_it(
    fleet, router
) -> None:
    _, offset = read_log(fleet.endpoint.access_log, 0)
    router.set_canary_share(100)
    headers = {"x-session-id": "Ann", "x-envoy-upstream-rq-timeout-ms": "1", "x-request-id": "own"}
    answer = fleet.ask({"seconds": 0.05, "prompt": "a secret"}, headers=headers)
    fleet.ask(path="/v1/models?name=hidden", method="GET")
    fleet.ask(path="/pause")
    first, second, refused = logged(fleet, 3, offset)
    assert (first["cluster"], host(fleet, first), first["status"]) == ("canary", "c", 200)
    assert first["duration_ms"] >= 50 and first["session"] == "Ann" and second["session"] is None
    assert first["request_id"] == answer.body["headers"]["x-request-id"] != "own"
    assert float(second["started_at"]) >= float(first["started_at"]) > 1.7e9
    assert (refused["status"], refused["cluster"], refused["host"]) == (404, None, None)
    log = fleet.endpoint.access_log
    assert not {"secret", "hidden"} & set(log.read_text().replace('"', " ").split())
    for private in (log, fleet.state / "envoy.sock"):
        assert private.stat().st_mode & 0o777 == 0o600


def test_a_killed_canary_costs_only_requests_that_it_had() -> None:
    plain = {"seconds": 0.05}
    stream = {"stream": 10}
    large = {"seconds": 0.02, "p": "x" * 2**21}
    bodies = [plain] * 4 + [stream] * 3 + [large]
    with Fleet() as fleet, running_router(fleet.endpoint) as router:
        router.set_canary_share(100)
        with fleet.load(bodies) as answers:
            wait_for(lambda: len(answers) >= 30)
            fleet.kill("c")
            killed_at = len(answers)
            wait_for(lambda: len(answers) >= killed_at + 60)
        lost = [answer for answer in answers if answer.status != 200 or not answer.complete]
        # A client has one at a time, and its next may reach the process while the kernel ends it.
        assert len(lost) <= 2 * len(bodies) < len(answers) / 4
        assert {answer.name for answer in answers} >= {"a", "c"}
        rows = [row for row in logged(fleet, 90) if row["host"] and host(fleet, row) == "a"]
        assert {row["cluster"] for row in rows} == {"canary"}


def test_a_request_that_kills_its_replica_is_not_repeated_on_the_next() -> None:
    with Fleet() as fleet, running_router(fleet.endpoint) as router:
        router.set_canary_share(100)
        with ThreadPoolExecutor() as pool:
            deadly = [pool.submit(fleet.ask, {"never": "c"}) for _ in range(3)]
            wait_for(lambda: stat(router, "canary", "upstream_rq_active") == 3)
            fleet.kill("c")
            assert [answer.result().status for answer in deadly] == [503] * 3
        assert [(host(fleet, row), row["attempts"]) for row in logged(fleet, 3)] == [("c", 1)] * 3
        assert fleet.names(5) == ["a"] * 5  # unread requests cannot have killed it


def test_an_answer_that_is_an_error_is_not_asked_for_again(fleet, router) -> None:
    _, offset = read_log(fleet.endpoint.access_log, 0)
    for _ in range(8):  # a request that the server refuses leaves its replica to the others
        assert fleet.ask({"status": 500}).status == 500
    assert stat(router, "stable") == 2
    for status in (502, 503, 504):  # three of these on one replica eject it
        assert fleet.ask({"status": status}).status == status
    assert [row["attempts"] for row in logged(fleet, 11, offset)] == [1] * 11


def test_a_response_that_breaks_off_is_a_failure_of_the_replica(tmp_path) -> None:
    """It breaks off after its first event, which the client has by then."""
    with Fleet() as fleet, running_router(fleet.endpoint) as router:
        router.set_canary_share(100)
        address = Address.parse(fleet.endpoint.router.listen)
        body = json.dumps({"until": str(tmp_path / "never")})
        left = address.connect(60)
        broken = address.connect(60)
        for connection in (left, broken):
            connection.request("POST", "/v1/completions", body)
            assert connection.getresponse().readline().endswith(b" 0\n")
            if connection is left:
                connection.close()
                logged(fleet, 1)
        fleet.kill("c")
        rows = logged(fleet, 2)
        broken.close()
        assert [row["status"] for row in rows] == [200, 200]
        _, canary = observations(rows, [], {})
        assert [observation.failed for observation in canary] == [
            True
        ]  # a client that left did not fail


def test_a_killed_stable_replica_is_replaced_by_its_peers_then_by_the_canary() -> None:
    with Fleet(stable=["a", "b"]) as fleet, running_router(fleet.endpoint) as router:
        with fleet.load([{"seconds": 0.02}] * 4) as answers:
            wait_for(lambda: len(answers) >= 12)
            fleet.kill("a")
            wait_for(lambda: stat(router, "stable") == 1)
            wait_for(lambda: fleet.ask().name == "b")
            assert set(fleet.names(60)) == {"b"}  # and not the canary
            fleet.kill("b")
            wait_for(lambda: answers[-1].name == "c")
        # At each of two kills a client may lose a request, and its next one to the dying process.
        assert sum(answer.status != 200 for answer in answers) <= 2 * 2 * 4
        fleet.launch("b")
        wait_for(lambda: fleet.ask().name == "b")


def test_an_engine_that_died_under_its_server_gets_no_requests() -> None:
    # vLLM's server outlives its engine for a while: /health is 503, requests fail with 500.
    with Fleet() as fleet, running_router(fleet.endpoint) as router:
        router.set_canary_share(100)
        sick = fleet.state / "c.sock.sick"
        sick.touch()
        wait_for(lambda: stat(router, "canary") == 0)
        wait_for(lambda: set(fleet.names(10)) == {"a"})
        sick.unlink()
        wait_for(lambda: set(fleet.names(10)) == {"c"})


def test_envoy_is_killed_and_started_again_by_a_supervisor(fleet) -> None:
    command = [sys.executable, "-m", "outrider.live.router", str(fleet.file)]
    router = Router(fleet.endpoint)
    first = subprocess.Popen(command)
    try:
        wait_for(router.ready)
        second = subprocess.run(command, capture_output=True, text=True)
        assert second.returncode == 1 and "a router already runs there" in second.stderr
        router.set_canary_share(100)
    finally:
        first.kill()
        first.wait()
    for call in (router.share, lambda: router.set_canary_share(5)):
        with pytest.raises(RouterUnavailable, match="start the router"):
            call()
    with running_router(fleet.endpoint):
        assert router.share() == 0  # shares are the controller's: it sets them again
    listen = fleet.endpoint.router.model_copy(update={"listen": "203.0.113.1:1"})
    elsewhere = fleet.endpoint.model_copy(update={"router": listen})
    with (
        pytest.raises(OutriderError, match=r"(?s)Envoy ended with code 1: .*203.*\(log"),
        running_router(elsewhere),
    ):
        pass
