"""Trackers: missing packages, what each is given, and the short form of Weights & Biases."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate import Accelerator, tracking
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import LoggerType

from outrider.common.errors import OutriderError
from outrider.training import trackers
from outrider.training.config import TrainingConfig
from outrider.training.metrics import Metrics
from outrider.training.trackers import check_trackers, flat_settings

SETTINGS = {"speculator": {"depth": 4, "head": {"layers": [1, 2]}}, "training": {"loss": None}}
FLAT = {"speculator.depth": 4, "speculator.head.layers": "[1, 2]", "training.loss": "null"}


@pytest.fixture
def accelerate_alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Accelerate without the state of other tests, whose trackers all count as installed."""
    states = (PartialState, AcceleratorState, GradientState)
    monkeypatch.setattr(tracking, "_available_trackers", [*LoggerType])
    for state in states:
        monkeypatch.setattr(state, "_shared_state", {})


def test_no_tracker_is_the_default_and_nothing_is_checked() -> None:
    assert TrainingConfig().used_trackers == []
    check_trackers(TrainingConfig())


def test_a_missing_package_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trackers.PACKAGES, "mlflow", ("package_that_nobody_has",))
    check_trackers(TrainingConfig(trackers=["tensorboard"]))
    with pytest.raises(OutriderError, match=r"training\.trackers: mlflow .*`pip install mlflow`"):
        check_trackers(TrainingConfig(trackers=["tensorboard", "mlflow"]))


def test_the_project_of_weights_and_biases_is_a_short_form() -> None:
    short = TrainingConfig(wandb_project="mine", trackers=["tensorboard"])
    assert (short.used_trackers, short.used_project) == (["tensorboard", "wandb"], "mine")
    long = TrainingConfig(trackers=["wandb"], tracking_project="mine")
    assert (long.used_trackers, long.used_project) == (["wandb"], "mine")
    with pytest.raises(ValueError, match="tracking_project"):
        TrainingConfig(trackers=["tensorboard"], tracking_project="../elsewhere")
    with pytest.raises(ValueError, match="tensorboard"):
        TrainingConfig(trackers=["tensorbord"])


def test_settings_are_flat_and_plain() -> None:
    assert flat_settings(SETTINGS) == FLAT


def test_mlflow_and_trackio_get_settings_and_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accelerate_alone: None
) -> None:
    """With stand-ins for their packages, under Accelerate's own trackers."""
    calls: dict[str, Any] = {"config": {}, "params": {}}
    mlflow = SimpleNamespace(
        search_experiments=lambda filter_string: [],
        create_experiment=lambda name, **_: calls.update(experiment=name),
        start_run=lambda **_: None,
        log_params=calls["params"].update,
        log_metrics=lambda values, step: calls.update(mlflow=(step, values)),
        end_run=lambda: calls.update(mlflow_ended=True),
        utils=SimpleNamespace(
            validation=SimpleNamespace(MAX_PARAM_VAL_LENGTH=500, MAX_PARAMS_TAGS_PER_BATCH=100)
        ),
    )
    run = SimpleNamespace(
        log=lambda values, step: calls.update(trackio=(step, values)),
        finish=lambda: calls.update(trackio_ended=True),
    )
    trackio = SimpleNamespace(
        init=lambda project: calls.update(project=project) or run,
        config=SimpleNamespace(update=lambda values, **_: calls["config"].update(values)),
    )
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    accelerator = Accelerator(cpu=True, log_with=["mlflow", "trackio"])
    metrics = Metrics(
        accelerator=accelerator,
        log_dir=tmp_path,
        project="mine",
        config=SETTINGS,
        resumed_step=0,
    )
    metrics.write(3, {"loss": 0.5, "kl": [0.25, 0.125]})
    metrics.close()
    values = (3, {"loss": 0.5, "kl/1": 0.25, "kl/2": 0.125})
    assert calls["mlflow"] == calls["trackio"] == values
    assert calls["config"] == calls["params"] == FLAT
    assert (calls["experiment"], calls["project"]) == ("mine", "mine")
    assert calls["mlflow_ended"] and calls["trackio_ended"]
