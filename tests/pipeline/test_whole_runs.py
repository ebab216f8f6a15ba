"""Whole runs on the real engine: random targets without MLA, and streamed training."""

import json
import shutil
from pathlib import Path

import pytest

from outrider.data.features.feature_store import FeatureStore
from outrider.eval.config import EXIT_CODES
from tests.cli.commands import run
from tests.tiny import tiny_glm, write_tiny_target
from tests.tiny_decoders import TOKENIZER, write_tiny_decoder

pytestmark = [pytest.mark.slow, pytest.mark.engine]

SMALL = (
    "speculator.depth=2",
    "split.max_train_sequences=40",
    "split.max_validation_sequences=8",
    "split.max_heldout_sequences=8",
    "capture.min_on_policy=null",  # nano R1 wrote the log
    "training.processes=1",
    "training.scratch_epochs=1",
    "eval.engine_modes=[eager]",
    "eval.measure=full",
    "eval.repeats=2",
    "eval.k=2",
    "eval.task=null",
    "eval.verification_requests=4",
    "eval.max_tokens=32",
)
HEAD = ("speculator.kind=eagle3", "speculator.base=ngram")


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
def test_a_head_is_trained_and_served(architecture: str, nano_r1: Path, tmp_path: Path) -> None:
    target = write_tiny_decoder(
        architecture, tmp_path / "target", vocabulary=4096, tokenizer_of=nano_r1
    )
    words = ("--recipe", "resume_screening", f"target.model={target}", "name=tiny", *SMALL, *HEAD)
    finished = run("train-speculator", *words, cwd=tmp_path)
    # A random target's head ships by chance only.
    assert finished.returncode in EXIT_CODES.values(), finished.stderr
    # The checks of capture: log-probabilities from the states, and their layers.
    folder = tmp_path / "runs" / "tiny"
    checks = json.loads((folder / "features" / "summary.json").read_text())
    assert checks["self_check"]["p99_difference"] < 0.01
    assert checks["layer_check"]["top_error"] < 0.01
    result = json.loads(finished.stdout)
    assert result["kind"] == "eagle3" and result["acceptance_length"]["custom"] >= 1
    assert result["tokens_per_s"]["eager"]["1"]["custom"] > 0


def test_the_target_s_own_layer_is_trained_and_served(nano_r1: Path, tmp_path: Path) -> None:
    """With grouped queries, in place of DeepSeek's attention; the base is the target's layer."""
    sizes = {"vocab_size": 4096, "max_position_embeddings": 2048}
    target = write_tiny_target(tmp_path / "target", config=tiny_glm(), **sizes)
    for name in TOKENIZER:
        shutil.copyfile(nano_r1 / name, target / name)
    words = ("--recipe", "resume_screening", f"target.model={target}", "name=tiny", *SMALL)
    finished = run("train-speculator", *words, cwd=tmp_path)
    assert finished.returncode in EXIT_CODES.values(), finished.stderr
    result = json.loads(finished.stdout)
    assert result["kind"] == "mtp" and result["acceptance_length"]["custom"] >= 1
    assert result["tokens_per_s"]["eager"]["1"]["custom"] > 0


SHORT = (
    "split.max_train_sequences=48",
    "split.max_validation_sequences=6",
    "split.max_heldout_sequences=8",
    "capture.batch_tokens=4096",
    "speculator.depth=2",
    "training.epochs=2",
    "training.processes=1",
    "training.evaluate_every=4",
    "training.checkpoint_every=4",
)


def losses(folder: Path, name: str, *settings: str) -> list[float]:
    """Of every step of a run that trains with these settings."""
    words = ("--recipe", "resume_screening.yaml", "--stages", "ingest,split,capture,train")
    finished = run("train-speculator", *words, f"name={name}", *SHORT, *settings, cwd=folder)
    assert finished.returncode == 0, finished.stderr
    lines = (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
    return [line["loss"] for line in map(json.loads, lines) if "loss" in line]


def test_a_streamed_run_trains_as_a_stored_one(tmp_path: Path) -> None:
    """bf16 states depend on the batch that they are computed in, so losses differ a little."""
    words = ("training.features=streamed", "cluster.address=local", "capture.min_on_policy=null")
    expected = losses(tmp_path, "stored", "capture.min_on_policy=null")
    assert losses(tmp_path, "streamed", *words) == pytest.approx(expected, rel=0.05)
    stored = tmp_path / "runs" / "stored"
    streamed = tmp_path / "runs" / "streamed"
    parts = json.loads((streamed / "split" / "parts.json").read_text())
    small = FeatureStore.open(streamed / "features")
    assert set(small.sequence_ids) == {*parts["validation"], *parts["heldout"]}
    # Nothing else holds states.
    assert not [*(streamed / "training" / "stream").iterdir()]
    shards = sum(path.stat().st_size for path in streamed.rglob("shard-*.safetensors"))
    assert shards < 0.5 * sum(path.stat().st_size for path in stored.rglob("shard-*.safetensors"))
