"""The time that is left by the plan: of which stages, in one line, and only if it is known."""

import pytest
from rich.console import Console

from outrider.common.files import write_json
from outrider.pipeline.plan import training_cost
from outrider.pipeline.plan.time_left import WIDTH, in_one_line, seconds_left
from outrider.pipeline.provenance import Gpu
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.runner import run_stages
from outrider.pipeline.stages.registry import stage_names
from tests.r1_config import R1

WORDS = ["traffic.path=nano_r1/social_chat", "serving.engine.tensor_parallel=1"]


@pytest.fixture
def gpus(monkeypatch):
    """The GPUs of this machine: none, until a test adds some."""
    here: list[Gpu] = []
    monkeypatch.setattr(training_cost, "gpus", lambda: here)
    return here


def test_the_line_has_the_total_and_fits_a_terminal():
    seconds = {"ingest": 4.0, "capture": 180.0, "train": 240.0}
    line = "about 7 min on this machine by the plan: ingest 4 s, capture 3 min, train 4 min"
    assert in_one_line(seconds) == line
    kinds = ("mtp", "eagle3", "dflash", "dspark", "p_eagle")
    many = seconds | {f"train_{kind}": 4000.0 + n for n, kind in enumerate(kinds)}
    line = in_one_line(many | {"evaluate": 9000.0})
    assert len(line) <= WIDTH and "ingest" not in line
    assert line.startswith("about 8.2 h on") and line.endswith(
        "train_p_eagle 67 min, evaluate 150 min, ..."
    )


def test_a_run_states_what_is_left_before_each_stage(tmp_path, monkeypatch, gpus):
    """Stages that are done and read nothing new are not counted."""
    recipe = load_recipe("social_chat", ["speculator.kind=[mtp,eagle3]", *WORDS]).recipe
    run = RunDirectory(tmp_path)
    for name in ("ingest", "split", "capture", "train_eagle3"):
        write_json(run.stage_record(name), {"inputs": {}, "result": {}})
    monkeypatch.setattr("outrider.pipeline.runner.run_stage", lambda *_: None)
    monkeypatch.setattr("outrider.pipeline.runner._require_needed", lambda *_: None)
    console = Console(record=True, width=400)
    names = stage_names(None, recipe)
    monkeypatch.setattr(
        training_cost,
        "stage_seconds",
        lambda *_, **__: {name: {"": 600.0} for name in names} | {"export": {"": 0.0}},
    )
    for some in (["train_mtp", "choose_kind", "evaluate"], ["export"]):
        run_stages(run=run, recipe=recipe, names=some, options={}, console=console, planned=names)
    lines = [line.rstrip() for line in console.export_text().split("\n")]
    total = "about 30 min on this machine by the plan"
    assert lines[0] == f"{total}: train_mtp 10 min, choose_kind 10 min, evaluate 10 min"
    assert lines[1:7:2] == [
        "▸ train_mtp about 30 min left by the plan",
        "▸ choose_kind about 20 min left by the plan",
        "▸ evaluate  about 10 min left by the plan",
    ]
    assert lines[7:-1] == ["▸ export", "✓ export    0 s"]


def test_only_hours_of_this_machine_are_stated(tmp_path, gpus):
    run = RunDirectory(tmp_path / "run")
    write_json(tmp_path / "R1" / "config.json", R1)
    embedded = load_recipe("social_chat", WORDS).recipe
    assert seconds_left(run, embedded, ["capture", "export"]).keys() == {"capture", "export"}
    r1 = load_recipe("r1/social_chat", [f"target.model={tmp_path / 'R1'}", *WORDS]).recipe
    assert seconds_left(run, r1, ["capture"]) == {}, "of an assumed GPU"
    gpus.append(Gpu("NVIDIA H200", 143771, ""))
    assert seconds_left(run, r1, ["capture"])["capture"] > 60
    (tmp_path / "empty").mkdir()
    unknown = load_recipe("social_chat", [*WORDS, f"traffic.path={tmp_path / 'empty'}"]).recipe
    assert seconds_left(run, unknown, ["capture"]) == {}
