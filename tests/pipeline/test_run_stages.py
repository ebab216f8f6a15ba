"""Failures of the stages' processes name the stage."""

from pathlib import Path

import pytest

from outrider.pipeline import run_stages
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.run_stages import StageFailed, run_stage
from outrider.pipeline.stages.registry import STAGES

CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


def test_a_stage_that_crashes_is_named_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_recipe("resume_screening", [])
    run = RunDirectory.of(loaded.recipe, tmp_path)
    run.begin_attempt(loaded.recipe, loaded.files, ["train-speculator"])
    supervised = run_stages.run_supervised
    monkeypatch.setattr(
        run_stages,
        "run_supervised",
        lambda argv, log, environment: supervised([argv[0], "-c", CRASH], log, environment),
    )
    with pytest.raises(StageFailed, match=r"split crashed with SIGSEGV; see .*split\.log"):
        run_stage(STAGES["split"], run, {})
