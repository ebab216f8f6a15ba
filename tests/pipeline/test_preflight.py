"""Lines of the preflight check about this machine's GPUs, which are stubbed."""

import logging

import pytest
import torch

from outrider.pipeline.preflight import check
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.stages.train import TRAIN


@pytest.mark.parametrize(("gpus", "lowered"), [(0, False), (1, True), (2, False), (8, False)])
def test_fewer_gpus_than_processes_are_reported_before_anything_is_spent(
    monkeypatch, caplog, gpus: int, lowered: bool
) -> None:
    caplog.set_level(logging.INFO, "outrider")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    recipe = load_recipe("resume_screening").recipe
    check(recipe, dry_run=True)
    line = "training.processes = 2: more than this machine's GPUs, so it is 1 here"
    assert (line in caplog.text) == lowered
    # The stage's inputs do not change, so the run resumes on a machine with more GPUs.
    assert TRAIN.settings(recipe)["training"]["processes"] == 2
