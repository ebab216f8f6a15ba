"""The run directory: one user at a time, its recipe, a crashed stage named."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.common.fingerprint import path_digest
from outrider.pipeline import runner
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.runner import StageFailed, run_stage
from outrider.pipeline.stages.registry import STAGES
from tests.fuzzing import ANY_JSON, examples

HOLD = """
import sys, time
from pathlib import Path
from outrider.pipeline.run_dir import RunDirectory
with RunDirectory(Path(sys.argv[1])).locked():
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_run_is_told_who_holds_the_directory_and_may_enter_when_it_is_killed(tmp_path):
    run = RunDirectory(tmp_path / "demo")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.root)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(
                OutriderError, match=f"process {holder.pid} is using this run; .*--runs DIR"
            ),
            run.locked(),
        ):
            pass
        holder.kill()
    with run.locked():
        pass


@pytest.mark.attack("runs")
def test_what_killed_processes_left_is_removed(tmp_path):
    run = RunDirectory(tmp_path / "demo")
    left = [
        "traffic/.scratch-k2/rows.sqlite",
        "features/.scratch-a1/layer.bf16",
        "features/.summary.json.another-pod.17.tmp",
        "traffic/.sequences.another-pod.17.old/data.arrow",
        "evaluation/mtp/.scratch-b/prompts.jsonl",
    ]
    kept = ["traffic/.parts/000001.json", "traffic/.parts.json", ".lock", "logs/attempt_1/x.tmp"]

    def write(names):
        for name in names:
            (run.root / name).parent.mkdir(parents=True, exist_ok=True)
            (run.root / name).touch()

    def files():
        return {str(path.relative_to(run.root)) for path in run.root.rglob("*") if path.is_file()}

    write([*left, *kept])
    with run.locked():
        assert files() == set(kept)
        write(left)  # a stage is killed, not the command
    assert files() == set(kept)
    assert not list((run.root / "features").iterdir())


def test_the_recipe_comes_back_as_it_was(tmp_path):
    loaded = load_recipe("r1/social_chat", ["training.learning_rate=1e-5"])
    run = RunDirectory.of(loaded.recipe, tmp_path)
    run.begin_attempt(loaded.recipe, loaded.files, ["train-speculator"])
    assert run.read_resolved() == loaded.recipe


CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


def test_a_stage_that_crashes_is_named_with_its_log(tmp_path, monkeypatch):
    loaded = load_recipe("resume_screening", [])
    run = RunDirectory.of(loaded.recipe, tmp_path)
    run.begin_attempt(loaded.recipe, loaded.files, ["train-speculator"])
    supervised = runner.run_supervised
    monkeypatch.setattr(
        runner,
        "run_supervised",
        lambda argv, log, environment, end: supervised([argv[0], "-c", CRASH], log, environment),
    )
    with pytest.raises(StageFailed, match=r"split crashed with SIGSEGV; see .*split\.log"):
        run_stage(STAGES["split"], run, {})


def finished_split(tmp_path):
    """A run whose split is done, with its stage and recipe."""
    recipe = load_recipe("resume_screening", []).recipe
    run = RunDirectory.of(recipe, tmp_path)
    stage = STAGES["split"]
    write_json(run.split / "parts.json", {"train": [1]})
    write_json(run.split / "slices.json", {"tenant": {"acme": ["1"]}})
    finish(stage, run)
    return run, stage, recipe


def finish(stage, run):
    """Writes a stage's record."""
    digest = path_digest(stage.identity(run))
    record = {"inputs": {}, "artifact": digest, "files": stage.digests(run), "result": {}}
    write_json(run.stage_record(stage.name), record)


@pytest.mark.attack("runs")
@pytest.mark.parametrize("name", ["parts.json", "slices.json"])
@pytest.mark.parametrize("content", ["{", "", "\0" * 40, '{"train": [2]}'])
def test_a_damaged_output_names_its_file_and_the_stage_to_repeat(tmp_path, name, content):
    run, stage, recipe = finished_split(tmp_path)
    stage.check_output(run)
    (run.split / name).write_text(content)
    message = rf"split/{name}: changed.* to repeat split"
    with pytest.raises(OutriderError, match=message):
        stage.check_output(run)
    with pytest.raises(OutriderError, match=message):
        runner._require_needed(STAGES["capture"], run, recipe, {"ingest": {}})
    (run.split / name).unlink()
    assert stage.reasons(run, recipe, {}) == [f"{name} is missing"]


@pytest.mark.attack("runs")
def test_what_any_earlier_stage_wrote_is_compared_and_foreign_files_are_not(tmp_path):
    run, _, recipe = finished_split(tmp_path)
    write_json(run.traffic / "summary.json", {"time": None})
    write_json(run.sequences / "data.json", {})
    finish(STAGES["ingest"], run)
    for name in ("capture", "train", "evaluate"):
        write_json(run.stage_record(name), {"inputs": {}, "result": {}})
    for name in (".DS_Store", "Thumbs.db", "mine.txt"):
        (run.sequences / name).write_text("foreign")
    assert runner._before(STAGES["export"], recipe)[0] == "ingest"
    runner._require_needed(STAGES["export"], run, recipe, {})
    (run.traffic / "summary.json").write_text("\0" * 40)
    with pytest.raises(OutriderError, match=r"traffic/summary\.json: changed.* to repeat ingest"):
        runner._require_needed(STAGES["export"], run, recipe, {})


@pytest.mark.attack("runs")
def test_the_manifest_of_the_states_is_compared(tmp_path):
    run = RunDirectory(tmp_path)
    for name in ("manifest.json", "quarantine.json"):
        write_json(run.features / name, {"version": 4})
    (run.features / "shard-00000.safetensors").touch()
    finish(STAGES["capture"], run)
    assert list(STAGES["capture"].digests(run)) == [
        "features/manifest.json", "features/quarantine.json"
    ]  # fmt: skip
    write_json(run.features / "manifest.json", {"version": 5})
    with pytest.raises(OutriderError, match=r"manifest\.json: changed.* to repeat capture"):
        STAGES["capture"].check_output(run)


@pytest.mark.attack("runs")
@examples(100)
@given(content=ANY_JSON.map(json.dumps) | st.text(max_size=20))
def test_a_damaged_record_names_the_stage_to_repeat(tmp_path_factory, content):
    run, stage, recipe = finished_split(tmp_path_factory.mktemp("run"))
    run.stage_record("split").write_text(content)
    with pytest.raises(OutriderError, match=r"split\.json.*to repeat split"):
        stage.reasons(run, recipe, {})


@pytest.mark.attack("runs")
def test_foreign_names_among_the_attempts_are_left_alone(tmp_path):
    loaded = load_recipe("resume_screening", [])
    run = RunDirectory.of(loaded.recipe, tmp_path)
    for name in ("attempt_old", "attempt_3", "attempt_4.zip", "attempt_", "attempt_²"):
        (run.root / "logs" / name).mkdir(parents=True)
    run.begin_attempt(loaded.recipe, loaded.files, ["outrider"])
    assert run.attempt().name == "attempt_4"
