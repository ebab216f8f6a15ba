"""The recorder of SmolLM2's log, on a random Llama, and what comes with the recipe."""

import gzip
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.recipe.shipped import SHIPPED
from outrider.speculators.checkpoints.safetensors_headers import tensor_headers
from tests.eagle3_head import write_eagle3_head
from tests.tiny_decoders import write_tiny_decoder
from tools import smollm2


def test_recorded_tokens_are_the_models_own(nano_r1: Path, tmp_path: Path) -> None:
    target = write_tiny_decoder(
        "LlamaForCausalLM", tmp_path / "target", vocabulary=4096, tokenizer_of=nano_r1
    )
    # Nearly greedy, so that each token can be computed without the cache. Fewer places than
    # requests, so that places are used again.
    workload = smollm2.Workload(temperature=1e-4, max_tokens=12, places=3)
    log = tmp_path / "log.jsonl"
    smollm2.record(target, log, smollm2.profiles(4), workload)
    smollm2.record(target, log, smollm2.profiles(7), workload)  # resumes
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(row["timestamp"] for row in rows) == [
        row["timestamp"] for row in smollm2.requests(smollm2.profiles(7), workload)
    ]
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    for row in rows:
        prompt = row["response"]["prompt_token_ids"]
        written = row["response"]["choices"][0]["token_ids"]
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + written])).logits[0, len(prompt) - 1 : -1]
        assert written == logits.argmax(-1).tolist()


def test_samples_have_the_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, -0.5, 0.3])
    drawn = smollm2.sample(logits.expand(40_000, -1), 0.5, torch.Generator().manual_seed(0))
    shares = torch.bincount(drawn, minlength=4) / len(drawn)
    assert torch.allclose(shares, (logits / 0.5).softmax(0), atol=0.01)


def test_the_shipped_log_answers_the_planned_requests() -> None:
    """All of them, in order: a gap would leave out the longest answers."""
    path = Path(str(load_recipe("smollm2/candidate_profiles").recipe.traffic.path))
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert len(rows) >= 400
    assert [{**row, "response": None} for row in rows] == [
        {**row, "response": None}
        for row in smollm2.requests(smollm2.profiles(len(rows)), smollm2.SHORT)
    ]
    for row in rows:
        choice = row["response"]["choices"][0]
        assert choice["finish_reason"] == "stop" or (
            choice["finish_reason"] == "length"
            and len(choice["token_ids"]) == smollm2.SHORT.max_tokens
        )


def test_a_head_is_shipped_in_bf16(nano_r1: Path, tmp_path: Path) -> None:
    head = write_eagle3_head(nano_r1, tmp_path / "run" / "speculator")
    smollm2.ship(tmp_path / "run", tmp_path / "shipped")
    before, after = (load_file(path / "model.safetensors") for path in (head, tmp_path / "shipped"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        rounded = tensor.bfloat16() if tensor.is_floating_point() else tensor
        torch.testing.assert_close(after[name], rounded, rtol=0, atol=0)


def test_the_recipe_starts_from_the_shipped_head() -> None:
    base = Path(str(load_recipe("smollm2/candidate_profiles").recipe.speculator.base))
    assert base == SHIPPED / "smollm2" / "eagle3"
    assert sum(path.stat().st_size for path in base.iterdir()) < 20e6
    rows = tensor_headers(base)["lm_head.weight"]
    assert (rows.shape, rows.dtype) == ((4096, 576), "BF16")
