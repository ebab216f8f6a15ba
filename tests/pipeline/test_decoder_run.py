"""A whole run on random targets without MLA: capture, training, replay, and the drafter in vLLM."""

import json
import shutil
from pathlib import Path

import pytest

from outrider.eval.config import EXIT_CODES
from tests.cli.commands import run
from tests.tiny import tiny_glm, write_tiny_target
from tests.tiny_decoders import TOKENIZER, write_tiny_decoder

SETTINGS = (
    "speculator.depth=2",
    "split.max_train_sequences=40",
    "split.max_validation_sequences=8",
    "split.max_heldout_sequences=8",
    "capture.min_on_policy=null",  # nano R1 wrote the log
    "training.processes=1",
    "training.scratch_epochs=1",
    "training.wandb_project=null",
    "eval.engine_modes=[eager]",
    "eval.measure=full",
    "eval.repeats=2",
    "eval.k=2",
    "eval.task=null",
    "eval.verification_requests=4",
    "eval.max_tokens=32",
)


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
def test_a_head_is_trained_and_served(architecture: str, nano_r1: Path, tmp_path: Path) -> None:
    target = write_tiny_decoder(
        architecture, tmp_path / "target", vocabulary=4096, tokenizer_of=nano_r1
    )
    kind = ("speculator.kind=eagle3", "speculator.base=ngram")
    words = (
        "--recipe",
        "resume_screening",
        f"target.model={target}",
        "name=tiny",
        *SETTINGS,
        *kind,
    )
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


@pytest.mark.slow
@pytest.mark.engine
def test_the_target_s_own_layer_is_trained_and_served(nano_r1: Path, tmp_path: Path) -> None:
    """With grouped queries, in place of DeepSeek's attention; the base is the target's layer."""
    sizes = {"vocab_size": 4096, "max_position_embeddings": 2048}
    target = write_tiny_target(tmp_path / "target", config=tiny_glm(), **sizes)
    for name in TOKENIZER:
        shutil.copyfile(nano_r1 / name, target / name)
    words = ("--recipe", "resume_screening", f"target.model={target}", "name=tiny", *SETTINGS)
    finished = run("train-speculator", *words, cwd=tmp_path)
    assert finished.returncode in EXIT_CODES.values(), finished.stderr
    result = json.loads(finished.stdout)
    assert result["kind"] == "mtp" and result["acceptance_length"]["custom"] >= 1
    assert result["tokens_per_s"]["eager"]["1"]["custom"] > 0
