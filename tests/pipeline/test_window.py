"""Windows: when they end, and that a run cut into four ends with the same weights."""

import datetime
import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from outrider.common import process_tree
from outrider.common.errors import UsageError
from outrider.common.files import write_json
from outrider.common.fingerprint import path_digest
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.runner import INTERRUPTED, StageFailed, run_stages
from outrider.pipeline.stages.registry import STAGES
from outrider.pipeline.window import gpus_of, window_end, window_in_words
from tests.pipeline.test_kinds import captured_run
from tests.pipeline.test_walk_to_training import WORDS

HOUR = 3600.0


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A time zone whose clocks change."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(*moment: int) -> float:
    return datetime.datetime(*moment).timestamp()


@pytest.mark.parametrize(
    ("now", "until", "hours"),
    [
        ((2026, 3, 2, 22, 0), "06:00", 8),
        ((2026, 3, 2, 5, 59), "6:00", 1 / 60),
        ((2026, 3, 2, 6, 0), "06:00", 24),
        ((2026, 3, 28, 22, 0), "06:00", 7),  # summer time begins in that night
        ((2026, 10, 24, 22, 0), "06:00", 9),  # and ends in that one
    ],
)
def test_until_is_the_next_such_time_of_the_clock(
    berlin: None, now: tuple[int, ...], until: str, hours: float
) -> None:
    end = window_end(until, None, gpus=8, now=at(*now))
    assert (end - at(*now)) / HOUR == pytest.approx(hours)
    assert datetime.datetime.fromtimestamp(end).strftime("%H:%M") == "06:00"


def test_gpu_hours_are_shared_by_all_gpus_and_the_earlier_limit_holds(berlin: None) -> None:
    now = at(2026, 3, 2, 22, 0)
    assert window_end(None, 16.0, gpus=8, now=now) == now + 2 * HOUR
    assert window_end("06:00", 16.0, gpus=8, now=now) == now + 2 * HOUR
    assert window_end("06:00", 16.0, gpus=1, now=now) == now + 8 * HOUR
    assert window_end(None, None, gpus=8, now=now) == math.inf
    assert window_in_words(now + 2 * HOUR, now) == "window: until 2026-03-03 00:00, 2.0 h"


@pytest.mark.parametrize("until", ["24:00", "6", "06:60", "6pm", "", "2026-03-02 06:00"])
def test_a_time_that_no_clock_shows_is_refused(until: str) -> None:
    with pytest.raises(UsageError, match=r"--until .*such as 06:00"):
        window_end(until, None, gpus=1, now=0.0)


@pytest.mark.parametrize("hours", [0.0, -1.0, math.inf, math.nan])
def test_gpu_hours_are_a_positive_number(hours: float) -> None:
    with pytest.raises(UsageError, match=r"--max-gpu-hours .*positive"):
        window_end(None, hours, gpus=1, now=0.0)


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        (("serving.engine.tensor_parallel=8", "training.processes=4"), 8),
        (("serving.engine.tensor_parallel=1", "training.processes=4"), 4),
        (("cluster.address=auto", "cluster.capture_replicas=3", "training.processes=2"), 3),
        (("cluster.address=local", "cluster.capture_replicas=3", "training.processes=2"), 2),
    ],
)
def test_a_run_holds_the_gpus_of_its_engines_or_of_its_training(
    words: tuple[str, ...], gpus: int
) -> None:
    assert gpus_of(load_recipe("resume_screening", list(words)).recipe) == gpus


def test_no_stage_starts_after_the_end(tmp_path: Path) -> None:
    recipe = load_recipe("resume_screening", []).recipe
    with pytest.raises(StageFailed, match="window ended before ingest; rerun") as ended:
        run_stages(
            run=RunDirectory(tmp_path),
            recipe=recipe,
            names=["ingest"],
            options={},
            console=Console(quiet=True),
            end=time.time(),
        )
    assert ended.value.exit_code == INTERRUPTED


def losses(run: RunDirectory) -> list[float]:
    """Of every step; a line that is still being written does not count."""
    if not run.metrics.is_file():
        return []
    lines = map(json.loads, run.metrics.read_text().split("\n")[:-1])
    return [line["loss"] for line in lines if "loss" in line]


def train(run: RunDirectory, recipe: Recipe, end: float) -> str:
    """Trains until the end of a window; returns the command's message, if it was cut."""
    run.begin_attempt(recipe, (), ["outrider", "train"])
    try:
        run_stages(
            run=run,
            recipe=recipe,
            names=["train"],
            options={},
            console=Console(quiet=True),
            end=end,
        )
    except StageFailed as cut:
        assert cut.exit_code == INTERRUPTED, cut
        return str(cut)
    return ""


@pytest.mark.slow
def test_a_run_cut_into_four_windows_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock shows the number of steps, so that windows end in the training's steps."""
    target, run = captured_run(tmp_path)
    words = [f"target.model={target}", *WORDS, "training.scratch_epochs=40"]
    recipe = load_recipe("resume_screening", words).recipe
    for stage in ("split", "capture"):
        digest = path_digest(STAGES[stage].identity(run))
        write_json(run.stage_record(stage), {"artifact": digest, "result": {}})
    whole = RunDirectory(tmp_path / "whole")
    run.root.rename(whole.root)
    shutil.copytree(whole.root, run.root)
    assert train(whole, recipe, math.inf) == ""
    monkeypatch.setattr(process_tree.time, "time", lambda: float(len(losses(run))))
    cut_after = []
    for end in (4, 30, 60):
        message = train(run, recipe, end)
        assert "is saved; rerun the command to resume" in message
        cut_after.append(len(losses(run)))
        # What is trained so far is a speculator that an evaluation takes.
        best = Path(message.rpartition("--speculator ")[2])
        assert (best / "model.safetensors").is_file() and (best / "config.json").is_file()
    assert train(run, recipe, math.inf) == ""
    assert 4 <= cut_after[0] < 30 <= cut_after[1] < 60 <= cut_after[2] < len(losses(whole))
    assert losses(run) == losses(whole)
    weights = load_file(run.speculator / "model.safetensors")
    for name, tensor in load_file(whole.speculator / "model.safetensors").items():
        assert torch.equal(tensor, weights[name]), name
