"""The loop's steps, killed at every one; what is expensive is replaced by arithmetic on the rows.

The whole loop with engines and training is in test_loop_with_engines.py (slow). Rounds are deployed
to the simulated endpoint of tests/live/world.py at the end of this file.
"""

import io
import json
import shutil
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from outrider.adapt import loop
from outrider.adapt.gate import GateVerdict
from outrider.adapt.loop import (
    BASE,
    Adapter,
    ServedRelease,
    adapter_summary,
    open_adapter,
    release_in_use,
)
from outrider.common.errors import OutriderError
from outrider.common.files import lock, read_json, write_json
from outrider.eval.results.parts import ClusteredEstimate
from outrider.live.endpoint_file import Endpoint
from outrider.live.journal import Journal, read_journal
from outrider.live.state import read_state
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.runner import StageFailed
from outrider.speculators.kinds import KINDS
from tests.cli.commands import assert_one_message, json_line, run
from tests.live.world import Killed, killed_around

ROWS, FIRST = 10, "r0000"


class Log:
    """A log whose rows have an acceptance length by speculator, and an endpoint."""

    def __init__(self, folder, nano_r1, monkeypatch, kinds="", *words):
        self.log = folder / "log.jsonl"
        self.traffic(*kinds)
        self.begin(folder)
        self.loaded = load_recipe(
            "resume_screening",
            [f"traffic.path={self.log}", f"target.model={nano_r1}", "adapt.fresh=null",
             "adapt.from_start=true", f"adapt.window={ROWS}", *words],
        )  # fmt: skip
        self.kill_at, self.reached = None, 0
        monkeypatch.setattr(loop, "MOST_BEHIND", 99)
        for name in (
            "run_stages",
            "measure_window",
            "judge_round",
            "write_bundle",
            "release_in_use",
        ):
            monkeypatch.setattr(loop, name, getattr(self, name))
        monkeypatch.setattr(Adapter, "_outcome", lambda adapter, bundle: self.deploy(bundle))
        monkeypatch.setattr(Journal, "append", killed_around(self.point, Journal.append))

    def begin(self, folder):
        """An endpoint that serves a speculator fitted to traffic of kind a."""
        folder.mkdir(mode=0o700, exist_ok=True)
        self.endpoint = Endpoint(
            name="small",
            state_dir=folder,
            replicas=[{"name": "a", "data": "unix:/a", "admin": "unix:/b"}],
        )
        self.folder = folder
        write_json(folder / "first" / "config.json", ["a"])
        self.serving = ServedRelease(FIRST, folder / "first", 5)

    def point(self):
        """A place where the process may be killed."""
        self.reached += 1
        if self.reached == self.kill_at:
            raise Killed

    def traffic(self, *kinds):
        """A window of each kind."""
        with self.log.open("a") as log:
            log.writelines(json.dumps({"kind": kind}) + "\n" for kind in kinds for _ in range(ROWS))

    def run_stages(self, *, run, recipe, names, options, console):
        self.point()
        if names == ["adapt_window"]:
            paths = sorted((run.root / "log").iterdir())
            rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
            if any(row["kind"] == "broken" for row in rows):
                raise StageFailed("the log is broken")
            write_json(run.root / "traffic" / "rows.json", rows)
            return {"adapt_window": {}}
        plan = read_json(run.root / "round.json")
        kinds = {
            row["kind"]
            for path in plan["newer"]
            for row in read_json(Path(path) / "traffic" / "rows.json")
        }
        if kinds == {"hopeless"}:
            raise StageFailed("does not train")
        write_json(run.speculator / "config.json", sorted(kinds - {"hopeless"}))
        self.point()
        return {"adapt_round": {"sequences": {"train": ROWS}}}

    def measure_window(self, window, serving_dir, base_dir, recipe, k):
        acceptance = self.replayed(window, serving_dir)
        if base_dir is None:
            return acceptance, None
        return acceptance, estimate(acceptance.value / self.replayed(window, base_dir).value)

    def replayed(self, run, directory):
        fitted = read_json(directory / "config.json")  # the base's has no kind of traffic
        kinds = [row["kind"] for row in read_json(run.root / "traffic" / "rows.json")]
        return estimate(sum(4.0 if kind in fitted else 3.0 for kind in kinds) / len(kinds))

    def judge_round(self, trained, *, windows, older, serving_dir, recipe, k):
        self.point()
        base, custom = (
            sum(self.replayed(run, speculator).value for run in windows) / len(windows)
            for speculator in (serving_dir, trained.speculator)
        )
        return GateVerdict(
            ships=custom > base, reason="", windows=[run.root.name for run in windows], k=k,
            sequences=ROWS, sessions=ROWS, base=estimate(base),
            custom=estimate(custom), ratio=estimate(custom / base),
        )  # fmt: skip

    def write_bundle(self, run, recipe, verdict, schedule):
        write_json(run.bundle / "config.json", read_json(run.speculator / "config.json"))
        self.point()

    def release_in_use(self, endpoint):
        return self.serving

    def deploy(self, bundle):
        self.point()
        self.serving = ServedRelease(bundle.parent.name, bundle, 5)
        self.point()
        return "promoted"

    def run(self, **how):
        with open_adapter(self.loaded, self.endpoint, Console(file=io.StringIO())) as adapter:
            adapter.run(once=True, **how)
            return adapter_summary(adapter)

    @property
    def entries(self):
        return read_journal(self.folder / "journal.jsonl")

    def facts(self, event):
        return [entry.facts for entry in self.entries if entry.event == event]


def estimate(value):
    return ClusteredEstimate(
        value=value, low=0.98 * value, high=1.02 * value, observations=ROWS, clusters=ROWS,
        over=f"{ROWS} sessions",
    )  # fmt: skip


@pytest.fixture(autouse=True)
def native_kind(monkeypatch):
    """Directories of these tests are of the target's own kind."""
    monkeypatch.setattr("outrider.adapt.loop.drafter_kind_of", lambda directory: KINDS["mtp"])


@pytest.fixture
def make_log(tmp_path, nano_r1, monkeypatch):
    """Makes a log with a window of each of these kinds, and an adaptation with these words."""
    return partial(Log, tmp_path, nano_r1, monkeypatch)


def story(entries):
    """What was done, without times."""
    return [
        (entry.event, {k: v for k, v in entry.facts.items() if k != "gpu_seconds"})
        for entry in entries
    ]


def test_a_shift_is_followed_by_a_round_and_a_release(make_log):
    shifting = make_log("aaabbbbaa")  # and comes back
    counts = shifting.run()
    assert (counts["windows"], counts["shipped"], counts["lost"]) == (9, 1, 0)
    (first,) = shifting.facts("round")
    watched = shifting.facts("watched")
    assert first["newer"] == [1, 2, 3, 4] and "fell to 0.75" in first["reason"]
    assert [one["release"] for one in watched] == [FIRST] * 5 + ["r0001"] * 4
    text = shifting.folder / "adapt" / "rounds" / "r0001"
    gate = read_json(text / "gate.json")
    assert gate["windows"] == ["w000005"] and gate["ships"] and not (text / "traffic").exists()
    assert windows_left(shifting.folder) == list(range(1, 10))
    assert not list(shifting.folder.rglob("log/*")), "rows are deleted once they are sequences"


def test_the_loop_can_be_killed_at_every_point(make_log, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # nothing is lost with the machine
    world = make_log("abbb")
    assert world.run()["shipped"] == 1
    whole = story(world.entries)
    points = world.reached
    assert points > 30
    for kill_at in range(1, points + 1):
        world.begin(world.log.parent / f"killed at {kill_at}")
        world.kill_at, world.reached = kill_at, 0
        with suppress(Killed):
            world.run()
        assert world.reached == kill_at
        world.kill_at = None
        world.run()
        assert story(world.entries) == whole, f"killed at point {kill_at}"


def test_a_round_that_loses_does_not_ship_and_the_next_waits(make_log):
    world = make_log(["a", "a", *["hopeless"] * 8])
    counts = world.run()
    assert counts["shipped"] == 0 and counts["serving"] == FIRST
    newer = [one["newer"] for one in world.facts("round")]
    assert newer == [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    assert "does not train" in world.facts("gated")[1]["reason"]


def test_a_window_that_cannot_be_used_is_left_out(make_log):
    world = make_log(["a", "broken", "a", "b", "b"])
    assert world.run()["shipped"] == 1
    assert world.facts("round")[0]["newer"] == [1, 3, 4]
    assert windows_left(world.folder) == [1, 3, 4, 5]
    world.traffic(*["broken"] * 4)
    with pytest.raises(OutriderError, match="the log is broken"):
        world.run()


def test_only_later_rows_are_read_and_more_than_can_be_captured_are_passed_over(
    make_log, monkeypatch
):
    world = make_log("aaaaa", "adapt.from_start=false")
    monkeypatch.setattr(loop, "MOST_BEHIND", 2)
    assert world.run()["windows"] == 0
    world.traffic(*"aaaaaaa")
    world.run()
    assert [one["skipped"] for one in world.facts("window")] == [5 * ROWS, 0]


def test_rounds_ends_the_loop_and_one_process_at_a_time(make_log):
    shifting = make_log("aaabbbbaa")
    with open_adapter(shifting.loaded, shifting.endpoint, Console(file=io.StringIO())) as adapter:
        with pytest.raises(OutriderError, match="follows this traffic already"):
            shifting.run()
        adapter.run(rounds=1)
        assert adapter_summary(adapter)["rounds"] == 1


def windows_left(folder):
    return sorted(int(path.name[1:]) for path in (folder / "adapt" / "windows").iterdir())


@pytest.mark.parametrize("retention", ["delete_features", "delete_all"])
def test_with_retention_windows_end_with_their_round(make_log, retention):
    world = make_log("aaabbbb", f"privacy.retention={retention}")
    assert world.run()["shipped"] == 1
    assert world.facts("round")[0]["newer"] == [1, 2, 3, 4]
    assert windows_left(world.folder) == [5, 6, 7]


def test_a_round_waits_for_another_deployment_and_is_deployed_once_also_if_not_recorded(
    make_world, monkeypatch, nano_r1
):
    world = make_world()
    waits = []

    @contextmanager
    def controlled(endpoint, say):
        with lock(endpoint.lock, "is deploying to this endpoint"), world.controller() as controller:
            yield controller

    monkeypatch.setattr(loop, "open_controller", controlled)
    loaded = load_recipe("resume_screening", [f"target.model={nano_r1}"])
    with open_adapter(loaded, world.endpoint, Console(file=io.StringIO())) as adapter:
        adapter.journal.append("round", round=1, newer=[1], older=[], reason="")
        adapter.journal.append("trained", round=1)
        adapter.journal.append("gated", round=1, ships=True, reason="")
        shutil.copytree(world.bundles["better"], adapter.round_run(1).bundle)
        adapter.wait = waits.append
        with lock(world.endpoint.lock, "is deploying"):
            assert adapter.step() and waits == [loop.POLL_S]
            assert not adapter.journal.read().rounds[0].settled
        assert release_in_use(world.endpoint) == ServedRelease(BASE, world.bundles["first"], 3)
        assert adapter.step() and world.everywhere("better")
        serving = release_in_use(world.endpoint)
        assert serving.directory.is_relative_to(world.endpoint.releases) and serving.k == 3
        done = read_state(world.endpoint).last
        assert adapter._outcome(adapter.round_run(1).bundle) == "promoted"
        assert read_state(world.endpoint).last == done and adapter.journal.read().rounds[0].won


def test_the_command_without_new_traffic(make_world, tmp_path):
    world = make_world()
    (tmp_path / "log.jsonl").write_text("{}\n")
    words = ["--recipe", "resume_screening", "traffic.path=log.jsonl", "--endpoint", world.file()]
    counts = json_line(run("outrider", "adapt", *words, "--once", cwd=tmp_path))
    assert (counts["windows"], counts["rounds"], counts["serving"]) == (0, 0, BASE)
    assert_one_message(
        run("outrider", "adapt", *words, "--rounds", "0", cwd=tmp_path),
        "--rounds 0: give 1 or more",
        status=2,
    )
