"""Deployments on small servers: promoted, rolled back, refused, and everything that may break."""

import contextlib
from collections.abc import Iterator

import pytest

from outrider.common.errors import OutriderError
from outrider.live.controller import read_state
from tests.live.bundles import write_bundle
from tests.live.rig import Rig, TestClock
from tests.live.small_endpoint import SmallEndpoint


@pytest.fixture
def small() -> Iterator[SmallEndpoint]:
    with SmallEndpoint(stable=2) as endpoint:
        yield endpoint


def everywhere(small: SmallEndpoint, bundle: str) -> None:
    assert small.served() == dict.fromkeys(("canary", "stable0", "stable1"), bundle)
    assert small.share() == 33.33


def test_a_better_release_is_promoted_and_taken_back_by_request(small: SmallEndpoint) -> None:
    with Rig(small) as controller:
        controller.recover()
        done = controller.deploy(small.bundles["better"])
        assert (done.outcome, done.by, done.behind) == ("promoted", "judge", [])
        assert done.figures["acceptance"] == pytest.approx(1.5, abs=0.1)
        assert 1 < done.figures["speed"][1] < 1.5 < done.figures["speed"][2]
        everywhere(small, "better")
        back = controller.roll_back()
        assert (back.outcome, back.by, back.mode) == ("promoted", "operator", "rollback")
        everywhere(small, "first")
        with pytest.raises(OutriderError, match="no release before the one in use"):
            controller.roll_back()
    state = read_state(small.endpoint)
    assert state.counts == {"promoted": 1, "rolled_back": 1}


def test_a_worse_release_is_rolled_back_and_no_stable_replica_had_it(small: SmallEndpoint) -> None:
    rig = Rig(small)
    with rig as controller:
        done = controller.deploy(small.bundles["worse"])
    assert (done.outcome, done.by) == ("rolled_back", "judge")
    assert done.ended_at is not None and done.decided_at is not None
    assert done.ended_at - done.decided_at <= 10
    everywhere(small, "first")
    swaps = [e.facts["replica"] for e in rig.journal.entries if e.event == "swap"]
    assert swaps == ["canary", "canary"]


def test_the_canary_gets_the_shares_of_the_policy_and_no_more_than_its_own() -> None:
    with SmallEndpoint(stable=1, shares=[5, 25, 80, 100]) as small:
        rig = Rig(small, TestClock(small, requests=100))
        with rig as controller:
            controller.deploy(small.bundles["better"])
    shares = [e.facts["percent"] for e in rig.journal.entries if e.event == "share"]
    assert shares == [50, 0, 5, 25, 50], "the baseline, then the test"


@pytest.mark.parametrize(("k", "method", "what"), [(5, "mtp", "K is 5"), (3, "eagle3", "kind is")])
def test_a_release_for_other_servers_is_refused(small, k: int, method: str, what: str) -> None:
    bundle = write_bundle(small.folder / "other" / "bundle", b"9.0", k=k, method=method)
    with Rig(small) as controller, pytest.raises(OutriderError, match=what):
        controller.deploy(bundle)
    assert read_state(small.endpoint).counts["refused"] == 1
    assert small.served() == dict.fromkeys(("canary", "stable0", "stable1"), "first")


def test_a_bundle_that_was_changed_is_refused_and_the_one_in_use_too(small) -> None:
    (small.bundles["better"] / "model.safetensors").write_bytes(b"9.9")
    with Rig(small) as controller:
        with pytest.raises(OutriderError, match=r"model\.safetensors: changed"):
            controller.deploy(small.bundles["better"])
        with pytest.raises(OutriderError, match="is in use already"):
            controller.deploy(small.bundles["first"])


def test_a_replica_that_refuses_keeps_the_old_release_everywhere(small: SmallEndpoint) -> None:
    for replica, exchanged in (("canary", []), ("stable1", ["canary", "stable0"])):
        small.restart()
        small.test("/test/fault", replica=replica, fault="refuse")
        rig = Rig(small)
        with rig as controller:
            done = controller.deploy(small.bundles["better"])
        assert done.outcome == "rolled_back" and "refused on purpose" in done.reason
        everywhere(small, "first")
        new = read_state(small.endpoint).last.new
        swaps = [e.facts for e in rig.journal.entries if e.event == "swap"]
        tried = [facts["replica"] for facts in swaps if facts["release"] == new]
        assert tried == [*exchanged, replica]


def test_the_watch_of_a_replica_rolls_back(small: SmallEndpoint) -> None:
    bundle = write_bundle(small.folder / "vain" / "bundle", b"2.4", evidence=promised(3.5))
    small.bundles["vain"] = bundle
    with Rig(small) as controller:
        done = controller.deploy(bundle)
    assert (done.outcome, done.by) == ("rolled_back", "watch")
    assert "canary took release" in done.reason and "2.4 tokens per step" in done.reason
    everywhere(small, "first")


def test_in_place_only_the_watch_decides(small: SmallEndpoint) -> None:
    vain = write_bundle(small.folder / "vain" / "bundle", b"1.9", evidence=promised(3.5))
    with Rig(small) as controller:
        done = controller.deploy(vain, in_place=True)
        assert (done.outcome, done.by) == ("rolled_back", "watch")
        everywhere(small, "first")
        done = controller.deploy(small.bundles["worse"], in_place=True)
        assert done.outcome == "promoted", "its evidence promises nothing"
        everywhere(small, "worse")


def promised(length: float):
    """The evidence of an acceptance length."""
    return {"acceptance_length": {"custom": length}}


def watched_bundle(small: SmallEndpoint, weights: bytes, length: float):
    small.bundles["watched"] = write_bundle(
        small.folder / "watched" / "bundle", weights, evidence=promised(length)
    )
    return small.bundles["watched"]


def test_a_watch_that_decides_nothing_in_time_takes_the_release_back() -> None:
    with SmallEndpoint(stable=1, max_seconds=200) as small:
        rig = Rig(small)
        rig.clock.requests = 0
        with rig as controller:
            done = controller.deploy(watched_bundle(small, b"4.0", length=3.5), in_place=True)
        assert (done.outcome, done.by) == ("rolled_back", "controller")
        assert "undecided after 201 s: a replica had fewer than 32 requests" in done.reason
        assert set(small.served().values()) == {"first"}


def test_a_release_that_is_taken_back_after_its_promotion_is_replaced() -> None:
    """A person promotes what the watch has not decided; `recover` finds the outcome."""
    with SmallEndpoint(stable=1, max_seconds=50) as small:
        rig = Rig(small)
        with rig as controller:
            controller.deploy(small.bundles["better"])
            rig.clock.requests = 0
            rig.clock.then = lambda now: rig.ask("promote")
            done = controller.deploy(watched_bundle(small, b"1.9", length=3.5), in_place=True)
            assert done.outcome == "promoted"
            assert small.served() == dict.fromkeys(("canary", "stable0"), "watched")
            small.test("/test/traffic", at=rig.clock.now, requests=4)  # and the watch decides
            controller.recover()
            assert small.served() == dict.fromkeys(("canary", "stable0"), "better")
            last = read_state(small.endpoint).last
            assert (last.mode, last.by, last.old) == ("rollback", "watch", done.new)
            assert "took release" in last.reason and "reverted" in {
                e.event for e in rig.journal.entries
            }
            swaps = len(rig.journal.entries)
            controller.recover()
            assert len(rig.journal.entries) == swaps, "it is settled"


def test_a_replica_that_refuses_to_go_back_does_not_keep_the_others(small: SmallEndpoint) -> None:
    rig = Rig(small)

    def refusing(now: float) -> None:
        opened = read_state(small.endpoint).open
        if opened is not None and "stable0" in opened.swapped:  # and its watch continues
            small.test("/test/fault", replica="canary", fault="refuse")
            small.test("/test/fault", replica="stable1", fault="refuse")

    rig.clock.then = refusing
    with rig as controller:
        done = controller.deploy(watched_bundle(small, b"4.0", length=1.0))
        assert (done.outcome, done.behind) == ("rolled_back", ["canary"])
        assert small.share() == 0
        assert small.served() == {"canary": "watched", "stable0": "first", "stable1": "first"}
        rig.clock.then = lambda now: None
        controller.recover()
    everywhere(small, "first")


def test_requests_of_a_stable_replica_with_another_speculator_are_no_baseline() -> None:
    with SmallEndpoint(stable=1, max_seconds=20) as small:
        equal = write_bundle(small.folder / "equal" / "bundle", b"2.00")
        small.bundles["equal"] = equal
        worse, restarts = str(small.bundles["worse"]), []

        def restart(now: float) -> None:
            if small.served()["canary"] == "equal" and not restarts:
                restarts.append(now)
                small.test("/test/start", replica="stable0", directory=worse)

        rig = Rig(small)
        rig.clock.then, rig.clock.requests = restart, 2
        with rig as controller:
            done = controller.deploy(equal)
        assert done.outcome == "rolled_back" and "undecided" in done.reason


def test_a_baseline_begins_again_with_a_replica_that_is_started_again() -> None:
    with SmallEndpoint(stable=1) as small:
        rig = Rig(small)

        def restart(now: float) -> None:
            if now == 1002:
                small.test("/test/start", replica="stable0")

        rig.clock.then, rig.clock.requests = restart, 4
        with rig as controller:
            done = controller.deploy(small.bundles["better"])
        assert (done.outcome, done.by) == ("promoted", "judge")
        # 2 requests a second at the canary: 6 of them after 3 s, or 2 s after the start.
        swapped = next(e.at for e in rig.journal.entries if e.event == "swap")
        assert swapped >= 1005


@pytest.mark.parametrize("fault", ["die_before", "die_after"])
@pytest.mark.parametrize("replica", ["canary", "stable0"])
def test_a_replica_killed_in_its_exchange(small: SmallEndpoint, fault, replica) -> None:
    small.test("/test/fault", replica=replica, fault=fault)
    with Rig(small) as controller:
        done = controller.deploy(small.bundles["better"])
        assert done.outcome == ("rolled_back" if replica == "canary" else "promoted")
        assert done.behind == [replica]
        small.test("/test/start", replica=replica)  # with its first command
        controller.recover()
    everywhere(small, "first" if replica == "canary" else "better")


def test_the_share_is_set_again_after_a_restart_of_the_router(small: SmallEndpoint) -> None:
    rig, shares = Rig(small), []

    def restart(now: float) -> None:
        shares.append(small.share())
        if now == 1002:
            small.test("/test/router", alive=False)
        if now == 1005:
            small.test("/test/router", alive=True)

    rig.clock.then, rig.clock.requests = restart, 3
    with rig as controller:
        done = controller.deploy(small.bundles["better"])
    assert done.outcome == "promoted"
    assert shares[0] == 33.33 and 0 in shares and shares[-1] == 33.33
    everywhere(small, "better")


def test_a_request_stops_a_promotion_between_two_replicas(small: SmallEndpoint) -> None:
    rig = Rig(small)

    def ask_later(now: float) -> None:
        if "stable0" in read_state(small.endpoint).open.swapped:  # and its watch continues
            rig.ask("roll_back")

    rig.clock.then = ask_later
    small.bundles["slow"] = write_bundle(
        small.folder / "slow" / "bundle", b"4.0", evidence=promised(1.0)
    )
    with rig as controller:
        done = controller.deploy(small.bundles["slow"])
    assert (done.outcome, done.by) == ("rolled_back", "tester")
    assert done.swapped == {"canary", "stable0"}
    everywhere(small, "first")


def test_replicas_that_serve_different_speculators_are_no_endpoint(small: SmallEndpoint) -> None:
    with Rig(small) as controller:
        controller.deploy(small.bundles["better"])
    (small.endpoint.state_dir / "journal.jsonl").unlink()
    small.test("/test/start", replica="stable1")
    with Rig(small) as controller, pytest.raises(OutriderError, match="different speculators"):
        controller.deploy(small.bundles["worse"])
    small.test("/test/start", replica="stable0")
    small.test("/test/start", replica="canary")
    with Rig(small) as controller:
        assert controller.deploy(small.bundles["better"]).outcome == "promoted"


@pytest.mark.parametrize(
    ("event", "reason", "behind"),
    [
        ("die", "canary does not answer", ["canary"]),
        ("sicken", "canary does not answer", ["canary"]),
        ("break", "canary drafts wrongly until it is started again", ["canary"]),
        ("hang", "ended none of them in 30 s", []),
        ("start", "canary was started again", []),
    ],
)
def test_a_canary_that_fails_is_rolled_back_and_recovered(
    small: SmallEndpoint,
    monkeypatch: pytest.MonkeyPatch,
    event: str,
    reason: str,
    behind: list[str],
) -> None:
    monkeypatch.setattr("outrider.live.canary.STALL_S", 30.0)
    rig = Rig(small)
    rig.clock.requests = 1
    rig.clock.then = lambda now: (
        small.test(f"/test/{event}", replica="canary")
        if small.served().get("canary") == "better"
        else None
    )
    with rig as controller:
        done = controller.deploy(small.bundles["better"])
        assert (done.outcome, done.by, done.behind) == ("rolled_back", "controller", behind)
        assert reason in done.reason
        assert small.share() == (0 if behind else 33.33)
        rig.clock.then = lambda now: None
        if event == "break":
            controller.recover()
            assert small.share() == 0, "no requests until it is started again"
        small.test("/test/start", replica="canary")
        controller.recover()
    everywhere(small, "first")


def test_undecided_goes_back_and_a_person_may_promote_before() -> None:
    with SmallEndpoint(stable=2, max_seconds=20) as small:
        small.bundles["equal"] = write_bundle(small.folder / "equal" / "bundle", b"2.00")
        with Rig(small) as controller:
            done = controller.deploy(small.bundles["equal"])
        assert done.outcome == "rolled_back" and "undecided after 20 s" in done.reason
        rig = Rig(small)
        rig.clock.then = lambda now: rig.ask("promote")
        with rig as controller:
            done = controller.deploy(small.bundles["equal"])
        assert (done.outcome, done.by) == ("promoted", "tester")
        everywhere(small, "equal")


def test_a_canary_gets_no_requests_once_the_disk_is_full(small_disk) -> None:
    with SmallEndpoint(state_dir=small_disk / "state") as small:
        rig, filler = Rig(small), small_disk / "filler"

        def fill(now: float) -> None:
            if small.served()["canary"] == "first":
                return
            with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))
            while True:  # the journal's last block has room for some lines
                controller.journal.append("note", text="x" * 4096)

        rig.clock.then = fill
        with rig as controller, pytest.raises(OutriderError, match="no space left on the disk"):
            controller.deploy(small.bundles["better"])
        assert small.share() == 0
        filler.unlink()
        with Rig(small) as controller:
            controller.recover()
            everywhere_one(small, "first")
            assert controller.deploy(small.bundles["better"]).outcome == "promoted"


def everywhere_one(small: SmallEndpoint, bundle: str) -> None:
    assert set(small.served().values()) == {bundle} and small.share() == 50
