"""The recorder of SmolLM2's log, on a random Llama, and what comes with the recipe."""

import gzip
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.recipe.shipped import SHIPPED
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.server import Server
from outrider.speculators.checkpoints.safetensors_headers import tensor_headers
from tests.eagle3_head import write_eagle3_head
from tests.tiny_decoders import write_tiny_decoder
from tools import smollm2


@pytest.mark.slow
def test_a_served_target_answers_each_request_once(nano_r1: Path, tmp_path: Path) -> None:
    target = write_tiny_decoder(
        "LlamaForCausalLM", tmp_path / "smollm2", vocabulary=4096, tokenizer_of=nano_r1
    )
    workload = smollm2.Workload(max_tokens=12, concurrency=3)
    log = tmp_path / "log.jsonl"
    prompts = smollm2.prompts_for(smollm2.TASK, 5)
    engine = EngineConfig(max_model_len=512, dtype="float32")
    with Server(TargetConfig(model=str(target)), engine, log_path=tmp_path / "server") as server:
        smollm2.record(server, log, prompts[:2], workload)
        smollm2.record(server, log, prompts, workload)  # resumes
    rows = sorted(map(json.loads, log.read_text().splitlines()), key=lambda row: row["timestamp"])
    assert [{**row, "response": None} for row in rows] == [
        {**row, "response": None} for row in smollm2.requests(prompts, workload)
    ]
    tokenizer = AutoTokenizer.from_pretrained(target)
    for row in rows:
        answer = row["response"]["choices"][0]
        assert answer["message"]["content"] == tokenizer.decode(
            answer["token_ids"], skip_special_tokens=True
        )
        assert smollm2.TASK in tokenizer.decode(row["response"]["prompt_token_ids"])


def test_the_shipped_log_answers_the_planned_requests() -> None:
    """All of them, in order: a gap would leave out the longest answers."""
    path = Path(str(load_recipe("smollm2/candidate_profiles").recipe.traffic.path))
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert len(rows) >= 400
    assert [{**row, "response": None} for row in rows] == [
        {**row, "response": None}
        for row in smollm2.requests(smollm2.prompts_for(smollm2.TASK, len(rows)), smollm2.SHORT)
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
    assert (rows.shape, rows.dtype) == ((8192, 576), "BF16")
