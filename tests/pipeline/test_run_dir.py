"""The run directory: one user at a time, attempts numbered, no secret in what is written down."""

import json
import stat
import subprocess
import sys

import pytest

from outrider.common.errors import OutriderError
from outrider.pipeline.provenance import provenance
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory

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
    command = [sys.executable, "-c", HOLD, str(run.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
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


def test_attempts_are_numbered_and_the_recipe_comes_back_as_it_was(tmp_path):
    loaded = load_recipe("r1/social_chat", ["training.learning_rate=1e-5"])
    run = RunDirectory.of(loaded.recipe, tmp_path)
    for number in (1, 2):
        run.begin_attempt(loaded.recipe, loaded.files, ["train-speculator"])
        assert run.attempt().name == f"attempt_{number}"
    assert run.read_resolved() == loaded.recipe
    private = (run.resolved_recipe, run.root / "provenance.json")
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}


def test_provenance_holds_versions_and_no_secret(monkeypatch):
    for name in ("HF_TOKEN", "VLLM_API_KEY", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "s3cret")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    story = provenance(
        [
            "train-speculator", "traffic.path=https://user:s3cret@host/log.jsonl?signature=s3cret",
            "--api-key", "s3cret", "--hf-token=s3cret", "x.api_key=s3cret", "HF_TOKEN=s3cret",
            "--from-serve-command", "MY_KEY=s3cret vllm serve x --api-key s3cret s3cret",
            "training.max_tokens=5",
        ],
        (),
    )  # fmt: skip
    assert "training.max_tokens=5" in story["command_line"]
    assert "s3cret" not in json.dumps(story)
    assert story["environment"]["OMP_NUM_THREADS"] == "2"
    assert {"outrider", "torch", "transformers"} <= set(story["versions"])
    assert story["hardware"]["cores"] >= 1
