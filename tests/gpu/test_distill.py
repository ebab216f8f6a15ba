"""The recipe of distilled models on a random Llama, through all stages; its base is lookup."""

import json

import pytest

from outrider.eval.config import EXIT_CODES
from tests.cli.commands import run
from tests.pipeline.test_whole_runs import SMALL
from tests.tiny_decoders import write_tiny_decoder

pytestmark = pytest.mark.engine

WIDTHS = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 128,
}
"""Heads as wide as those of R1-Distill-Llama."""
FIT = (
    "serving.engine.max_model_len=2048",
    "serving.engine.max_num_seqs=8",
    "training.row_tokens=2048",
    "eval.concurrency=[4,1]",
    "speculator.head.layers=[1,2]",
)
ON_CPU = ("serving.engine.mode=eager", "serving.engine.max_num_batched_tokens=2048")


def test_a_distilled_model_s_recipe_runs(on_gpu, nano_r1, runs, record_property):
    target = runs / "llama"
    if not target.exists():
        write_tiny_decoder(
            "LlamaForCausalLM", target, vocabulary=4096, tokenizer_of=nano_r1, **WIDTHS
        )
    settings = [*SMALL, *FIT, *([] if on_gpu else ON_CPU)]
    if on_gpu:
        settings += ["eval.engine_modes=[compiled]", "split.max_train_sequences=400"]
    words = ("train", "r1_distill/resume_screening", f"target.model={target}", "name=distill")
    traffic = "traffic.path=nano_r1/resume_screening"
    finished = run("outrider", *words, traffic, *settings, cwd=runs)
    assert finished.returncode in EXIT_CODES.values(), finished.stderr
    result = json.loads(finished.stdout)
    assert result["kind"] == "eagle3" and result["acceptance_length"]["custom"] >= 1
    record_property("verdict", result["verdict"])
    record_property("tokens_per_s", json.dumps(result["tokens_per_s"]))
