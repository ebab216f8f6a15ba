"""Deployments on a simulated endpoint: promoted, rolled back, refused, and all that may break."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from outrider.common.errors import OutriderError
from outrider.common.files import SCRATCH, Locked, read_json, write_json
from outrider.live import controller as live_controller
from outrider.live.controller import end_deployment
from outrider.live.fleet import PATIENCE_S
from outrider.live.journal import Journal
from outrider.live.releases import release_name
from outrider.live.state import State, read_state
from outrider.serving.bundle.bundle_digest import bundle_digest, list_files
from outrider.serving.bundle.erase import holds_sessions
from outrider.speculators.lookup_history import HISTORY_FILE, EarlierResponse, History
from tests.serving.exported import write_exported


def test_a_better_release_is_promoted_and_taken_back_by_request(world) -> None:
    with world.controller() as controller:
        controller.recover()
        done = controller.deploy(world.bundles["better"])
        assert (done.outcome, done.verdict.by, done.behind) == ("promoted", "judge", ())
        assert done.verdict.figures["acceptance"] == pytest.approx(1.5, abs=0.1)
        _, low, high = done.verdict.figures["speed"]
        assert 1 < low < 1.5 < high
        assert world.everywhere("better")
        back = controller.roll_back()
        assert (back.outcome, back.verdict.by, back.mode) == ("promoted", "operator", "rollback")
        assert world.everywhere("first")
        with pytest.raises(OutriderError, match="no release before the one in use"):
            controller.roll_back()
    assert read_state(world.endpoint).counts == {"promoted": 1, "rolled_back": 1}


def test_a_worse_release_is_rolled_back_and_no_stable_replica_had_it(world) -> None:
    done = world.deploy("worse")
    assert (done.outcome, done.verdict.by) == ("rolled_back", "judge")
    assert world.everywhere("first")
    assert {facts["replica"] for facts in world.events("swap")} == {"canary"}
    assert done.swapped == ("canary",)
    assert "slower" in done.verdict.reason


def canary_swaps(world) -> list[str]:
    """The bundles that the canary got, in order."""
    names = {release_name(bundle_digest(path)): name for name, path in world.bundles.items()}
    return [names[facts["release"]] for facts in world.events("swap")]


def test_a_replica_that_becomes_slower_after_the_baseline_is_not_read_as_the_release(
    make_world,
) -> None:
    world = make_world(stable=2, baseline_requests=12)
    reasons = []

    def slow_down(now: float) -> None:
        if world.served()["canary"] == "better":
            world.replicas["canary"].slowness = 2.0
        opened = read_state(world.endpoint).open
        if opened is not None and opened.verdict.reason:
            reasons.append((opened.verdict.action, world.served()["canary"], world.percent))

    done = world.deploy("better", then=slow_down)
    assert (done.outcome, done.verdict.by) == ("promoted", "judge")
    assert world.everywhere("better")
    assert canary_swaps(world)[:3] == ["better", "first", "better"]
    assert done.swapped == ("canary", "stable0", "stable1")
    assert reasons[0] == ("wait", "first", 33.33), "the old release, at the fair share"
    _, low, high = done.verdict.figures["speed"]
    assert 1 < low < 1.5 < high
    assert done.verdict.figures["replica"] == pytest.approx(0.5, abs=0.1)


def test_a_release_that_is_slower_by_both_baselines_is_rolled_back(make_world) -> None:
    world = make_world(stable=2, baseline_requests=40)
    done = world.deploy("worse", requests=30)
    assert (done.outcome, done.verdict.by) == ("rolled_back", "judge")
    assert done.verdict.figures["speed"][2] < 1
    assert canary_swaps(world) == ["worse", "first"], "it serves the old release already"
    first, last = world.events("verdict")
    assert (first["action"], last["action"]) == ("wait", "roll_back")
    assert world.everywhere("first")


@pytest.mark.parametrize(
    ("fault", "by", "reason"),
    [
        ("refuse", "controller", "refused on purpose"),
        ("die_before", "controller", "no answer"),
        ("start", "controller", "canary was started again"),
        ("ask", "tester", "by request"),
    ],
)
def test_what_ends_a_second_baseline(make_world, fault, by, reason) -> None:
    world = make_world(stable=2, baseline_requests=1000)
    canary = world.replicas["canary"]

    def fail(now: float) -> None:
        opened = read_state(world.endpoint).open
        if opened is None or world.served().get("canary") is None:
            return
        if fault in ("refuse", "die_before") and world.served()["canary"] == "worse":
            canary.fault = fault
        elif opened.verdict.reason and fault == "start":
            canary.start(world.bundles["better"])
        elif opened.verdict.reason and fault == "ask":
            world.ask("promote")

    done = world.deploy("worse", then=fail)
    assert done.outcome == ("promoted" if fault == "ask" else "rolled_back")
    assert done.verdict.by == by and reason in done.verdict.reason
    if fault == "die_before":
        canary.start(world.bundles["first"])
    world.recover()
    assert world.everywhere("worse" if fault == "ask" else "first")


def test_the_canary_gets_the_shares_of_the_policy_and_no_more_than_its_own(make_world) -> None:
    world = make_world(shares=[5, 25, 80, 100])
    world.deploy("better", requests=100)
    shares = [facts["percent"] for facts in world.events("share")]
    assert shares == [50, 0, 5, 25, 50], "the baseline, then the test"


@pytest.mark.parametrize(
    ("manifest", "what"),
    [({"k": 5}, "K is 5"), ({"method": "eagle3"}, "kind is"), ({}, r"model\.safetensors: changed")],
)
def test_a_release_for_other_servers_or_with_a_changed_byte_is_refused(
    world, manifest, what
) -> None:
    bundle = write_exported(world.folder / "other", weights=b"9.0", **manifest)
    if not manifest:
        (bundle / "model.safetensors").write_bytes(b"9.1")
    with world.controller() as controller:
        with pytest.raises(OutriderError, match=what):
            controller.deploy(bundle)
        with pytest.raises(OutriderError, match="is in use already"):
            controller.deploy(world.bundles["first"])
    assert set(world.served().values()) == {"first"} and not world.events("begin")


@pytest.mark.parametrize("key", ["method", "num_speculative_tokens"])
def test_a_bundle_json_without_a_key_is_refused(world, key: str) -> None:
    bundle = write_exported(world.folder / "other", weights=b"9.0")
    manifest = read_json(bundle / "bundle.json")
    del manifest[key]
    write_json(bundle / "bundle.json", manifest)
    refused = pytest.raises(OutriderError, match=rf"bundle\.json: no key {key}; export")
    with world.controller() as controller, refused:
        controller.deploy(bundle)
    assert set(world.served().values()) == {"first"} and not world.events("begin")


@pytest.mark.parametrize(("replica", "swapped"), [("canary", 1), ("stable1", 3)])
def test_a_replica_that_refuses_keeps_the_old_release_everywhere(world, replica, swapped) -> None:
    world.replicas[replica].fault = "refuse"
    done = world.deploy("better")
    assert done.outcome == "rolled_back" and "refused on purpose" in done.verdict.reason
    assert world.everywhere("first")
    assert done.swapped == ("canary", "stable0", "stable1")[:swapped]


def test_the_watch_of_a_replica_rolls_back(world) -> None:
    vain = world.bundle("vain", b"2.4", promised=3.5)
    for in_place in (False, True):
        done = world.deploy(vain, in_place)
        assert (done.outcome, done.verdict.by) == ("rolled_back", "watch")
        assert "canary took release" in done.verdict.reason
        assert world.everywhere("first")
    assert world.deploy("worse", in_place=True).outcome == "promoted", "it promises nothing"


def test_a_replica_that_refuses_to_go_back_does_not_keep_the_others(world) -> None:
    def refusing(now: float) -> None:
        opened = read_state(world.endpoint).open
        if opened is not None and "stable0" in opened.swapped:  # and its watch continues
            world.replicas["canary"].fault = world.replicas["stable1"].fault = "refuse"

    done = world.deploy(world.bundle("watched", b"4.0", promised=1.0), then=refusing)
    assert (done.outcome, done.behind) == ("rolled_back", ("canary",))
    assert world.percent == 0
    assert world.served() == {"canary": "watched", "stable0": "first", "stable1": "first"}
    world.recover()
    assert world.everywhere("first")


def test_requests_of_a_stable_replica_with_another_speculator_are_not_compared(make_world) -> None:
    world = make_world(max_seconds=20)
    restarts = []

    def restart(now: float) -> None:
        if world.served()["canary"] == "equal" and not restarts:
            restarts.append(now)
            world.replicas["stable0"].start(world.bundles["worse"])

    done = world.deploy(world.bundle("equal", b"2.00"), then=restart, requests=2)
    assert done.outcome == "rolled_back" and "undecided after 20 s" in done.verdict.reason


def test_a_baseline_begins_again_with_a_replica_that_is_started_again(make_world) -> None:
    world = make_world()

    def restart(now: float) -> None:
        if now == 1002:
            world.replicas["stable0"].start(world.bundles["first"])

    done = world.deploy("better", then=restart, requests=4)
    assert (done.outcome, done.verdict.by) == ("promoted", "judge")
    # 2 requests a second at the canary: 6 of them after 3 s, or 2 s after the start.
    assert next(e.at for e in world.journal.entries if e.event == "swap") >= 1005


@pytest.mark.parametrize("fault", ["die_before", "die_after", "fail_after"])
@pytest.mark.parametrize("replica", ["canary", "stable0"])
def test_a_replica_killed_in_its_swap_and_a_swap_whose_answer_is_lost(
    world, fault, replica
) -> None:
    world.replicas[replica].fault = fault
    reached = "first" if replica == "canary" else "better"
    killed = fault != "fail_after"
    done = world.deploy("better")
    assert done.outcome == ("rolled_back" if reached == "first" else "promoted")
    assert done.behind == ((replica,) if killed else ())
    if killed:
        world.replicas[replica].start(world.bundles["first"])  # with its first command
    world.recover()
    assert world.everywhere(reached)


@pytest.mark.parametrize(
    ("restarted", "outcome"), [("canary", "rolled_back"), ("stable1", "promoted")]
)
def test_a_replica_that_starts_again_with_other_weights_does_not_keep_them(
    world, restarted: str, outcome: str
) -> None:
    """Neither the release that it replaces nor the one that is deployed."""
    restarts: list[float] = []

    def restart(now: float) -> None:
        if world.served()["canary"] == "better" and not restarts:
            restarts.append(now)
            world.replicas[restarted].start(world.bundles["worse"])

    done = world.deploy("better", then=restart)
    assert done.outcome == outcome
    world.recover()
    assert restarts
    assert world.everywhere("better" if outcome == "promoted" else "first")


def test_the_share_is_set_again_after_a_restart_of_the_router(world) -> None:
    shares = []

    def restart(now: float) -> None:
        shares.append(world.percent)
        if now in (1002, 1005):
            world.router_alive = now == 1005
            world.percent = 0.0

    assert world.deploy("better", then=restart, requests=3).outcome == "promoted"
    assert shares[0] == 33.33 and 0 in shares and shares[-1] == 33.33
    assert world.everywhere("better")


def test_a_request_stops_a_promotion_between_two_replicas(world) -> None:
    def ask_later(now: float) -> None:
        if "stable0" in read_state(world.endpoint).open.swapped:  # and its watch continues
            world.ask("roll_back")

    done = world.deploy(world.bundle("slow", b"4.0", promised=1.0), then=ask_later)
    assert (done.outcome, done.verdict.by) == ("rolled_back", "tester")
    assert done.swapped == ("canary", "stable0")
    assert world.everywhere("first")


def test_replicas_that_serve_different_speculators_are_no_endpoint(world) -> None:
    world.replicas["stable1"].start(world.bundles["worse"])
    with pytest.raises(OutriderError, match="different speculators"):
        world.deploy("better")


@pytest.mark.parametrize(
    ("event", "reason", "behind"),
    [
        ("die", "canary does not answer", ("canary",)),
        ("sicken", "canary does not answer", ("canary",)),
        ("break", "canary drafts wrongly until it is started again", ("canary",)),
        ("hang", "finished no request in 30 s", ()),
        ("start", "canary was started again", ()),
    ],
)
def test_a_canary_that_fails_is_rolled_back_and_recovered(
    world, monkeypatch, event: str, reason: str, behind: tuple[str, ...]
) -> None:
    monkeypatch.setattr("outrider.live.canary.STALL_S", 30.0)
    canary = world.replicas["canary"]

    def fail(now: float) -> None:
        if world.served().get("canary") != "better":
            return
        canary.alive = event != "die"
        canary.sick = event == "sicken"
        canary.hangs = event == "hang"
        if event == "break":
            object.__setattr__(canary.now, "broken", "not restored")
        if event == "start":
            canary.start(world.bundles["first"])

    done = world.deploy("better", then=fail, requests=1)
    assert (done.outcome, done.verdict.by, done.behind) == ("rolled_back", "controller", behind)
    assert reason in done.verdict.reason
    assert world.percent == (0 if behind else 33.33)
    world.recover()
    assert not behind or world.percent == 0, "no requests until it is started again"
    canary.start(world.bundles["first"])
    world.recover()
    assert world.everywhere("first")


def test_without_traffic_it_goes_back_as_undecided_and_a_person_may_promote(
    make_world, monkeypatch
) -> None:
    monkeypatch.setattr("outrider.live.canary.STALL_S", 5.0)
    world = make_world(stable=2, max_seconds=20)
    equal = world.bundle("equal", b"2.00")
    watched = world.bundle("watched", b"4.0", promised=3.5)
    done = world.deploy(equal, requests=0)
    assert done.outcome == "rolled_back" and "undecided after 20 s" in done.verdict.reason
    done = world.deploy(watched, in_place=True, requests=0)
    assert (done.outcome, done.verdict.by) == ("rolled_back", "controller")
    assert "its watch is undecided" in done.verdict.reason
    assert world.everywhere("first")
    done = world.deploy(equal, then=lambda now: world.ask("promote"), requests=0)
    assert (done.outcome, done.verdict.by) == ("promoted", "tester")
    assert world.everywhere("equal")


def test_a_canary_without_requests_in_a_later_step_has_not_stalled(make_world, monkeypatch) -> None:
    monkeypatch.setattr("outrider.live.canary.STALL_S", 5.0)
    world = make_world(shares=[25, 100], max_seconds=20)

    def nightfall(now: float) -> None:
        shares = [facts["percent"] for facts in world.events("share")]
        if shares == [50, 0, 25]:  # the first step has its requests
            world.requests = 0

    done = world.deploy(world.bundle("equal", b"2.00"), then=nightfall, requests=100)
    assert (done.outcome, done.verdict.by) == ("rolled_back", "controller")
    assert "undecided after 20 s" in done.verdict.reason


def test_a_canary_gets_no_requests_once_the_controller_fails(world) -> None:
    def fail(now: float) -> None:
        if world.served()["canary"] == "better":
            raise OutriderError("no space left on the disk")

    with pytest.raises(OutriderError, match="no space left"):
        world.deploy("better", then=fail)
    assert world.percent == 0
    world.recover()
    assert world.everywhere("first")


@pytest.mark.parametrize("ends", [True, False])
def test_a_request_to_a_process_that_ends_right_after_its_deployment(
    world, monkeypatch, ends
) -> None:
    with Journal(world.endpoint.journal, State()) as journal:
        journal.append("begin", new="new", old="old", mode="canary")

        def gone(path) -> None:
            if ends:
                journal.append("end", outcome="rolled_back", serving="old", behind=[])

        def locked(*arguments) -> None:
            raise Locked("is deploying")

        monkeypatch.setattr(live_controller, "open_controller", locked)
        monkeypatch.setattr(live_controller, "lock_holder", gone)
        if ends:
            assert end_deployment(world.endpoint, "roll_back").outcome == "rolled_back"
        else:
            with pytest.raises(OutriderError, match="its process ended before the deployment did"):
                end_deployment(world.endpoint, "roll_back")


def test_a_bundle_that_changed_under_its_path_is_unknown_and_repaired(world) -> None:
    """Servers start from a run's folder, which the next run of the recipe replaces."""
    with world.controller() as controller:
        first = controller.adopt_release()
        (world.bundles["first"] / "model.safetensors").write_bytes(b"9.0")
        write_json(
            world.bundles["first"] / "bundle.json",
            read_json(world.bundles["first"] / "bundle.json") | list_files(world.bundles["first"]),
        )
        replica = world.replicas["stable0"]
        replica.start(world.bundles["first"])
        assert controller.fleet.served_by(replica.status()) not in (None, first)
        controller.recover()
        assert controller.fleet.served_by(replica.status()) == first
        assert replica.status().directory == str(controller.releases.get(first).directory)


def test_replicas_with_an_older_outrider_are_brought_to_a_known_release(world) -> None:
    """They report no digest of the speculator that they were started with."""
    for replica in world.replicas.values():
        replica.now = dataclasses.replace(replica.now, digest="")
    assert world.deploy("better").outcome == "promoted"
    assert world.everywhere("better")


def test_a_bundle_that_changed_before_the_first_deployment_is_not_adopted(world) -> None:
    add_history(world.bundles["first"], "later")
    with (
        world.controller() as controller,
        pytest.raises(OutriderError, match="changed since canary was started with it"),
    ):
        controller.adopt_release()
    assert world.events("adopt") == []


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_set_changes_no_limit_of_a_replica(world, monkeypatch, hours) -> None:
    """A silent replica is left behind after the same wait; the others get the release."""
    world.deploy("better")
    with world.controller() as controller:
        world.replicas["stable0"].alive = False
        set_by = 0.0
        waits = []

        def set_clock(now: float) -> None:
            nonlocal set_by
            set_by = hours * 3600.0
            waits.append(now)

        world.then = set_clock
        monkeypatch.setattr(world, "time", lambda: world.now + set_by)
        assert controller.roll_back().behind == ("stable0",)
    assert PATIENCE_S <= waits[-1] - waits[0] + 1 < 2 * PATIENCE_S


def add_history(bundle: Path, *sessions: str) -> None:
    """Adds a history with a response of each session."""
    responses = [EarlierResponse(np.array([1, 2], np.int32), name) for name in sessions]
    History.of(responses, 1.0, shared=True).write(bundle / HISTORY_FILE)
    manifest = read_json(bundle / "bundle.json")
    write_json(bundle / "bundle.json", {**manifest, **list_files(bundle)})


def test_erased_sessions_leave_all_releases_and_all_replicas(world) -> None:
    add_history(world.bundles["first"], "kept", "gone")
    add_history(world.bundles["better"], "gone", "kept")
    world.restart()  # with the bundle that has a history
    with world.controller() as controller:
        controller.recover()
        controller.deploy(world.bundles["better"])
        before = controller.journal.read()
        erased = controller.erase(["gone"])
        state = controller.journal.read()
        assert erased.responses == 2 and erased.behind == ()
        assert erased.replaced == {before.serving: state.serving, before.previous: state.previous}
        releases = controller.releases.all()
        assert {release.name for release in releases} == {state.serving, state.previous}
        for release in releases:
            assert not holds_sessions(release.directory, ["gone"])
            assert holds_sessions(release.directory, ["kept"])
        for replica in world.replicas.values():
            assert replica.status().digest.startswith(state.serving)
        assert controller.erase(["gone"]).responses == 0
        controller.roll_back()
        for replica in world.replicas.values():
            assert replica.status().digest.startswith(state.previous)


def test_erased_sessions_do_not_come_back_with_a_later_bundle(world) -> None:
    """For instance of a round of adaptation that began before they were erased."""
    for name in ("first", "better"):
        add_history(world.bundles[name], "kept", "gone")
    world.restart()
    with world.controller() as controller:
        controller.recover()
        assert controller.adopt_release()
        controller.erase(["gone"])
    before = bundle_digest(world.bundles["better"])
    with world.controller() as controller:  # another process
        controller.recover()
        assert controller.deploy(world.bundles["better"]).outcome == "promoted"
        state = controller.journal.read()
        for release in controller.releases.all():
            assert not holds_sessions(release.directory, ["gone"])
            assert holds_sessions(release.directory, ["kept"])
        assert controller.add_release(world.bundles["better"]).name == state.serving
    assert bundle_digest(world.bundles["better"]) == before


def test_what_a_killed_erasure_leaves_is_removed_by_the_next_one(world) -> None:
    add_history(world.bundles["first"], "gone")
    world.restart()
    with world.controller() as controller:
        controller.adopt_release()
        left = controller.releases.folder / f"{SCRATCH}killed"
        left.mkdir()
        (left / HISTORY_FILE).write_text("text")
        controller.erase(["gone"])
        assert not left.exists()


def test_a_replica_that_keeps_what_is_erased_is_named_and_brought_later(world) -> None:
    add_history(world.bundles["first"], "gone")
    world.restart()
    with world.controller() as controller:
        controller.adopt_release()
        world.replicas["stable0"].fault = "refuse"
        assert controller.erase(["gone"]).behind == ("stable0",)
        state = controller.recover()
        assert world.replicas["stable0"].status().digest.startswith(state.serving)
