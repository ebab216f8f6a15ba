"""A random checkpoint of two layers and an MTP layer: DeepSeek-V3's, or GLM-4.5's.

    write_tiny_target(tmp_path / "target", seed=0)
    write_tiny_target(tmp_path / "glm", config=tiny_glm())

transformers writes the layers under the checkpoints' names; the MTP layer is one more layer,
renamed. GLM's routing bias is in float32, with values that bfloat16 has not.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Glm4MoeConfig,
    PretrainedConfig,
)

from outrider.speculators.kinds import trainable_kind_of
from outrider.speculators.kinds.drafter import Drafter
from outrider.speculators.kinds.protocol import Origin

LAYERS = 2
VOCAB = 97
HIDDEN = 64


def tiny_config() -> DeepseekV3Config:
    """Two layers of width 64 with MLA: one dense, one of 4 experts in 2 groups."""
    return DeepseekV3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=96,
        moe_intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=2,
        n_shared_experts=1,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=24,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=16,
        v_head_dim=24,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        routed_scaling_factor=2.5,
        initializer_range=0.15,
    )


def tiny_glm() -> Glm4MoeConfig:
    """As wide; grouped queries with biases and norms, half of each head rotated; 4 experts."""
    return Glm4MoeConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=96,
        moe_intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        attention_bias=True,
        use_qk_norm=True,
        n_shared_experts=1,
        n_routed_experts=4,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
        tie_word_embeddings=False,
        routed_scaling_factor=2.5,
        initializer_range=0.15,
        bos_token_id=0,
        eos_token_id=1,
    )


TINY = {"DeepseekV3ForCausalLM": tiny_config, "Glm4MoeForCausalLM": tiny_glm}
"""Configurations of the targets with an MTP layer, by architecture."""


def write_tiny_target(
    directory: Path,
    seed: int = 0,
    layers_in_shards: bool = False,
    config: PretrainedConfig | None = None,
    **sizes: int,
) -> Path:
    """Writes config.json and the weights in bf16.

    `layers_in_shards` writes two files and an index. `sizes` replace keys of config.json.
    """
    torch.manual_seed(seed)
    config = config or tiny_config()
    config.update(sizes)
    # A model with one layer more: its last layer becomes the MTP layer's block.
    config.num_hidden_layers = LAYERS + 1
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(std=0.05)
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", "_proj.bias")):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    routing_bias = {
        name: buffer.clone() for name, buffer in model.named_buffers() if "e_score" in name
    }
    model.to(torch.bfloat16).save_pretrained(directory)
    tensors = load_file(directory / "model.safetensors")
    if config.model_type == "glm4_moe":
        tensors |= routing_bias
    mtp = f"model.layers.{LAYERS}."
    for suffix in ("enorm.weight", "hnorm.weight", "shared_head.norm.weight"):
        tensors[mtp + suffix] = (1 + 0.1 * torch.randn(config.hidden_size)).bfloat16()
    tensors[mtp + "eh_proj.weight"] = (
        0.15 * torch.randn(config.hidden_size, 2 * config.hidden_size)
    ).bfloat16()
    tensors[mtp + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors[mtp + "shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    shards = {"model.safetensors": tensors}
    if layers_in_shards:
        (directory / "model.safetensors").unlink()
        shards = {
            "model-00001-of-00002.safetensors": {
                k: v for k, v in tensors.items() if not k.startswith(mtp)
            },
            "model-00002-of-00002.safetensors": {
                k: v for k, v in tensors.items() if k.startswith(mtp)
            },
        }
        weight_map = {tensor: name for name, shard in shards.items() for tensor in shard}
        (directory / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": weight_map})
        )
    for name, shard in shards.items():
        save_file(shard, directory / name, metadata={"format": "pt"})
    settings = json.loads((directory / "config.json").read_text())
    settings |= {"num_hidden_layers": LAYERS, "num_nextn_predict_layers": 1}
    if config.model_type == "deepseek_v3":
        settings |= {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    (directory / "config.json").write_text(json.dumps(settings, indent=2))
    return directory


def save_drafter(drafter: Drafter, base_dir: Path, directory: Path) -> None:
    """Writes the directory of a speculator that was loaded from `base_dir`, as training does."""
    kind = trainable_kind_of(base_dir)
    changed = kind.trained_tensors(drafter, drafter.state_dict())
    kind.write(changed, Origin(base_dir, base_dir), directory)


def edit_tensors(directory: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Changes the tensors of a checkpoint in place."""
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
