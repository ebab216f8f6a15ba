"""The rehearsal: settings on CPU and GPUs, the cut, the random target, and the comparison."""

import pytest
import torch
from safetensors import safe_open

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.pipeline.recipe.load import load_recipe
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from tests.r1_config import mtp_size
from tools.rehearsal.rehearse import (
    R1_CONFIG,
    cut_config,
    cut_to_fit,
    rehearsal_words,
)
from tools.rehearsal.target import random_target, shapes

R1 = read_json(R1_CONFIG)
SMALL = cut_config(R1, 4, fp8=False) | {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "vocab_size": 5000,
}


def planned(gpus: int = 0):
    """The rehearsal's recipe before its target is known."""
    original = load_recipe("r1/resume_screening").recipe
    overrides = [*rehearsal_words(original, gpus), "target.model=nano_r1"]
    return load_recipe("r1/resume_screening", overrides).recipe


def test_the_cut_on_gpus_is_r1s_layer_in_fp8():
    cut, experts = cut_to_fit(R1, planned(8), int(150e9), gpus=8)
    assert experts == R1["n_routed_experts"]
    assert cut["quantization_config"] == R1["quantization_config"]
    assert mtp_size(cut).total == mtp_size(R1).total
    assert cut_to_fit(R1, planned(1), int(80e9), gpus=1)[1] == 16


def test_the_cut_on_a_cpu_keeps_every_width_and_the_most_experts_that_fit():
    found = [cut_to_fit(R1, planned(), int(gigabytes * 1e9)) for gigabytes in (64, 21, 19)]
    assert [experts for _, experts in found] == [8, 4, 2]
    for cut, experts in found:
        changed = {key for key, value in R1.items() if cut.get(key) != value}
        assert changed == {
            "num_hidden_layers",
            "first_k_dense_replace",
            "n_routed_experts",
            "n_group",
            "topk_group",
            "quantization_config",
        } | ({"num_experts_per_tok"} if cut["num_experts_per_tok"] < 8 else set())
        # Each group has two experts, and the chosen groups hold the experts of a token.
        assert cut["n_group"] * 2 == experts
        assert cut["num_experts_per_tok"] <= 2 * cut["topk_group"]
    with pytest.raises(OutriderError, match=r"rehearsal: with 2 experts, .* 10.0 GB of memory"):
        cut_to_fit(R1, planned(), 10**10)


def test_weights_have_the_names_and_sizes_of_the_config_and_are_written_once(tmp_path):
    directory = random_target(SMALL, tmp_path)
    written = (directory / "model.safetensors").stat().st_mtime_ns
    assert random_target(SMALL, tmp_path) == directory
    assert (directory / "model.safetensors").stat().st_mtime_ns == written
    with safe_open(directory / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(shapes(SMALL))
    drafter = load_mtp(directory)
    assert sum(p.numel() for p in drafter.parameters()) == mtp_size(SMALL).total
    assert load_target_ends(directory).lm_head_VH.shape == (5000, 64)
    assert abs(float(drafter.eh_proj.weight.detach().std()) - 0.02) < 0.001


def test_fp8_blocks_are_written_where_they_can_be_computed(tmp_path):
    config = SMALL | {"quantization_config": R1["quantization_config"]}
    directory = random_target(config, tmp_path)
    with safe_open(directory / "model.safetensors", framework="pt") as file:
        value = file.get_tensor("model.layers.0.mlp.gate_proj.weight")
        assert value.dtype == torch.float8_e4m3fn
        assert "model.layers.0.mlp.gate_proj.weight_scale_inv" in set(file.keys())
        for kept in ("model.layers.2.eh_proj", "model.layers.1.mlp.gate", "lm_head"):
            assert file.get_tensor(f"{kept}.weight").dtype == torch.bfloat16
    load_mtp(directory)
