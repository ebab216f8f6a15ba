"""Retention deletes customer text after the export; later runs report what was deleted, and why."""

import pytest
from rich.console import Console

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.common.fingerprint import path_digest
from outrider.eval.config import RESPONSE_STATES
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.retention import apply_retention
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.runner import run_stages
from outrider.pipeline.stages.registry import STAGES

TEXT = [
    "traffic/sequences/data.arrow",
    "traffic/rejects.jsonl",
    "traffic/privacy.key",
    "training/spec.json",
    "speculators/eagle3/training/attempt-1/spec.json",
    "evaluation/steps/verification_outputs.json",
    "evaluation/mtp/steps/verification_outputs.json",
    "evaluation/eagle3/steps/verification_outputs.json",
    "evaluation/steps/kind_steps.json",
]
STATES = [
    "features/manifest.json",
    "features/shard-00000.safetensors",
    f"evaluation/eagle3/{RESPONSE_STATES}/shard.safetensors",
]
KEPT = [
    "traffic/summary.json",
    "traffic/privacy.json",
    "features/on_policy.json",
    "features/quarantine.json",
    "features/summary.json",
    "split/parts.json",
    "speculator/model.safetensors",
    "report.json",
    "evaluation/mtp/report.json",
    "evaluation/kinds.json",
    "bundle/bundle.json",
]


def recipe_of(nano_r1, *words):
    return load_recipe("resume_screening", [f"target.model={nano_r1}", *words]).recipe


@pytest.fixture
def run(tmp_path, nano_r1):
    """A run of which every stage is done."""
    run = RunDirectory(tmp_path / "done")
    recipe = recipe_of(nano_r1)
    for name in (*TEXT, *STATES, *KEPT):
        (run.root / name).parent.mkdir(parents=True, exist_ok=True)
        (run.root / name).write_text("{}")
    for name, stage in STAGES.items():
        inputs = stage.inputs(run, recipe, {})
        record = {"inputs": inputs, "artifact": path_digest(stage.identity(run)), "result": {}}
        write_json(run.stage_record(name), record)
    return run


@pytest.fixture
def started(monkeypatch):
    """The stages that a run starts, none of which does anything."""
    names = []
    monkeypatch.setattr(
        "outrider.pipeline.runner.run_stage", lambda stage, *_: names.append(stage.name)
    )
    return names


def go(run, recipe, wanted=tuple(STAGES)):
    console = Console(record=True, width=400)
    run_stages(run=run, recipe=recipe, names=wanted, options={}, console=console)
    return console.export_text()


def there(run, names):
    return [(run.root / name).exists() for name in names]


@pytest.mark.parametrize(
    ("retention", "text", "states"),
    [("keep", True, True), ("delete_features", True, False), ("delete_all", False, False)],
)
def test_what_the_recipe_says_is_deleted_once_the_bundle_is_exported(
    run, nano_r1, started, retention, text, states
):
    recipe = recipe_of(nano_r1, f"privacy.retention={retention}")
    go(run, recipe, ["ingest", "split", "capture", "train", "evaluate"])
    assert all(there(run, [*TEXT, *STATES, *KEPT])), "nothing was exported yet"
    go(run, recipe)
    assert (
        set(there(run, TEXT)) == {text}
        and set(there(run, STATES)) == {states}
        and all(there(run, KEPT))
    )
    again = go(run, recipe)
    assert started == []
    assert ("its output was deleted after the export (2" in again) == (not states)


def test_a_stage_that_would_read_what_was_deleted_asks_first(run, nano_r1, started):
    apply_retention(run, "delete_features")
    more = "training.epochs=77"
    message = r"train must run \(recipe\.training\.epochs: .*manifest\.json was deleted after the"
    with pytest.raises(OutriderError, match=message):
        go(run, recipe_of(nano_r1, "privacy.retention=delete_features", more))
    with pytest.raises(OutriderError, match="train must run"):
        go(run, recipe_of(nano_r1, "privacy.retention=keep", more), ["train"])
    assert started == []
    go(run, recipe_of(nano_r1, "privacy.retention=keep"), ["ingest", "split", "capture"])
    assert started == ["capture"]
