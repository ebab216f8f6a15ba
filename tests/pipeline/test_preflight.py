"""Lines of the preflight check about this machine's GPUs, which are stubbed, and about a head."""

import json
import logging
from pathlib import Path

import pytest
import torch

from outrider.pipeline import preflight
from outrider.pipeline.preflight import check_recipe
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.stages.train import TRAIN


@pytest.mark.parametrize(("gpus", "lowered"), [(0, False), (1, True), (2, False), (8, False)])
def test_fewer_gpus_than_processes_are_reported_before_anything_is_spent(
    monkeypatch, caplog, gpus: int, lowered: bool
) -> None:
    caplog.set_level(logging.INFO, "outrider")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    recipe = load_recipe("resume_screening").recipe
    check_recipe(recipe, dry_run=True)
    line = "training.processes = 2: more than this machine's GPUs, so it is 1 here"
    assert (line in caplog.text) == lowered
    # The stage's inputs do not change, so the run resumes on a machine with more GPUs.
    assert TRAIN.settings(recipe)["training"]["processes"] == 2


@pytest.mark.parametrize(
    ("target", "is_named"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", False),
        ("/data/llama-3.3-70b-instruct", False),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", True),
    ],
)
def test_a_head_for_another_target_is_named(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, target: str, is_named: bool
) -> None:
    caplog.set_level(logging.INFO, "outrider")
    verifier = {"name_or_path": "meta-llama/Llama-3.3-70B-Instruct"}
    config = {"speculators_config": {"verifier": verifier}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    preflight._note_other_verifier(tmp_path, target)
    assert ("names the target meta-llama" in caplog.text) == is_named
