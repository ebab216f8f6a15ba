"""Stages' processes: which start before their turn, and what they do until then."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys

import pytest

from outrider.common.supervision import Supervised
from outrider.pipeline import stage_process
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import State
from outrider.pipeline.stage_runner import StageFailed, StageRunner
from outrider.pipeline.stages.registry import OTHER_STAGES, STAGES, STAGES_OF_KINDS

ALL = [*STAGES.values(), *STAGES_OF_KINDS.values(), *OTHER_STAGES.values()]


@pytest.fixture
def run(tmp_path):
    loaded = load_recipe("resume_screening", [])
    run = RunDirectory.of(loaded.recipe, tmp_path)
    run.begin_attempt(loaded.recipe, loaded.files, ["train-speculator"])
    return run


def test_what_a_stage_imports_early_exists():
    names = {name for stage in ALL for name in stage.imports}
    assert len(names) > 5
    assert [name for name in names if importlib.util.find_spec(name) is None] == []


def test_the_next_two_stages_with_work_start_early_and_none_while_speed_is_measured(
    run, monkeypatch
):
    events = []

    class Child(contextlib.nullcontext):
        def __init__(self, name):
            super().__init__()
            self.name = name
            events.append(f"starts {name}")

        def run(self):
            events.append(f"runs {self.name}")
            return 0

        def close(self):
            events.append(f"closes {self.name}")

    monkeypatch.setattr(StageRunner, "_start", lambda self, stage: Child(stage.name))
    done = dataclasses.replace(STAGES["capture"], name="done")
    object.__setattr__(done, "state", lambda *_: State(True))
    ingest, split, train, evaluate = (
        STAGES[name] for name in ("ingest", "split", "train", "evaluate")
    )
    with StageRunner(run, run.read_resolved(), {}) as runner:
        runner.perform(ingest, [done, split, train, evaluate])
        assert events == ["starts ingest", "starts split", "starts train", "runs ingest"]
        runner.perform(split, [train, evaluate])
        assert events[4:] == ["starts evaluate", "runs split"]
        runner.perform(evaluate, [train, STAGES["export"]])
        assert events[6:] == ["runs evaluate"]
    assert events[7:] == ["closes train"]


def test_a_process_that_waits_leaves_nothing_if_its_turn_never_comes(run, monkeypatch):
    started = []

    def start(self, stage):
        script = "import sys; print('imported', flush=True); sys.exit(not sys.stdin.readline())"
        log = run.attempt() / f"{stage.name}.log"
        started.append(Supervised([sys.executable, "-c", script], log, dict(os.environ)))
        return started[-1]

    monkeypatch.setattr(StageRunner, "_start", start)
    with StageRunner(run, run.read_resolved(), {}) as runner:
        runner.perform(STAGES["ingest"], [STAGES["split"]])
    assert len(started) == 2
    assert (run.attempt() / "ingest.log").read_text() == "imported\n"
    assert not (run.attempt() / "split.log").exists()


def test_a_stage_without_work_to_do_ends_before_it_begins(run):
    argv = [sys.executable, "-m", "outrider.pipeline.stage_process", "ingest"]
    ended = subprocess.run([*argv, str(run.root), json.dumps({})], stdin=subprocess.DEVNULL)
    assert ended.returncode == stage_process.INTERRUPTED
    assert not (run.root / "stages").exists() and not run.traffic.exists()


def test_an_import_that_fails_is_left_to_the_stage(run, monkeypatch):
    imported = []
    monkeypatch.setattr(stage_process, "work_is_there", lambda: "json" in imported)
    monkeypatch.setattr(stage_process.importlib, "import_module", imported.append)
    stage = dataclasses.replace(STAGES["split"], imports=("no_such_module", "json", "csv"))
    stage_process.prepare(stage, run.read_resolved())
    assert imported == ["no_such_module", "json"], "it stops when there is work"

    def fails(name):
        raise ImportError(name)

    monkeypatch.setattr(stage_process.importlib, "import_module", fails)
    imported.clear()
    stage_process.prepare(stage, run.read_resolved())


def test_a_stage_that_crashes_is_named_with_its_log(run, monkeypatch):
    def start(self, stage):
        script = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
        log = run.attempt() / f"{stage.name}.log"
        return Supervised([sys.executable, "-c", script], log, dict(os.environ))

    monkeypatch.setattr(StageRunner, "_start", start)
    with (
        StageRunner(run, run.read_resolved(), {}) as runner,
        pytest.raises(StageFailed, match=r"split crashed with SIGSEGV; see .*split\.log"),
    ):
        runner.perform(STAGES["split"])
