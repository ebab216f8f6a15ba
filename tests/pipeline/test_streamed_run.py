"""Streamed training of a recipe on the real engine: the weights of stored training, bit for bit."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from outrider.data.features.feature_store import FeatureStore
from tests.cli.commands import Finished, run

pytestmark = [pytest.mark.slow, pytest.mark.engine]

SETTINGS = (
    "split.max_train_sequences=48",
    "split.max_validation_sequences=6",
    "split.max_heldout_sequences=8",
    "capture.batch_tokens=4096",
    "speculator.depth=2",
    "training.epochs=2",
    "training.processes=1",
    "training.evaluate_every=4",
    "training.checkpoint_every=4",
    "training.wandb_project=null",
)
STREAMED = (
    "training.features=streamed",
    "cluster.address=local",
    "cluster.object_store_gb=0.2",
)


def train(folder: Path, name: str, *settings: str) -> Finished:
    words = ("--recipe", "resume_screening.yaml", "--stages", "ingest,split,capture,train")
    finished = run("train-speculator", *words, f"name={name}", *SETTINGS, *settings, cwd=folder)
    assert finished.returncode == 0, finished.stderr
    return finished


def losses(run_dir: Path) -> list[float]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [line["loss"] for line in map(json.loads, lines) if "loss" in line]


def test_a_streamed_run_ends_with_the_weights_of_a_stored_one(tmp_path: Path) -> None:
    train(tmp_path, "stored", "training.off_policy=mask")
    train(tmp_path, "streamed", *STREAMED)
    stored, streamed = tmp_path / "runs" / "stored", tmp_path / "runs" / "streamed"
    assert losses(streamed) == losses(stored)
    ours = load_file(streamed / "speculator" / "model.safetensors")
    for name, tensor in load_file(stored / "speculator" / "model.safetensors").items():
        assert torch.equal(tensor, ours[name]), name
    # The store of a streamed run has the states of the other parts, the same ones.
    parts = json.loads((streamed / "split" / "parts.json").read_text())
    whole, small = (FeatureStore.open(each / "features") for each in (stored, streamed))
    assert set(small.sequence_ids) == {*parts["validation"], *parts["heldout"]}
    for name in small.sequence_ids:
        assert torch.equal(small.read(name).hidden, whole.read(name).hidden), name
        assert small.scores(name) == whole.scores(name)
    # No other file holds states.
    quarantined = json.loads((stored / "features" / "quarantine.json").read_text())["sequences"]
    off = json.loads((streamed / "training" / "stream" / "off_policy.json").read_text())
    assert off == {name: share for name, share in quarantined.items() if name in parts["train"]}
    shards = sum(path.stat().st_size for path in streamed.rglob("shard-*.safetensors"))
    assert shards < 0.5 * sum(path.stat().st_size for path in stored.rglob("shard-*.safetensors"))
