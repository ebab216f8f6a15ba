"""The EAGLE-3 head's unroll against decoding token by token with an explicit cache.

The reference takes its attention from transformers (Llama's, DeepSeek's), widened to read
[embedding ; state], and everything else from the equations of vLLM's llama_eagle3.py.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import DeepseekV3Config, DynamicCache, LlamaConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    DeepseekV3RotaryEmbedding,
)
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

from outrider.common.files import read_json
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds.eagle3.kind import Eagle3
from tests.eagle3_head import write_eagle3_head
from tests.speculators.literal_engine import CachedEngine, differences
from tests.tiny import HIDDEN

LAYERS = [1, 2]

HEADS = {
    "llama": {},
    "llama, grouped": {"heads": 4, "kv_heads": 2},
    "llama, fc norms": {"fc_norm": True},
    "llama, norm before fc": {"norm_before_fc": True},
    "llama, norm before residual": {"norm_before_residual": True},
    "llama, post-norm recycled": {"norm_output": True},
    "mla": {"mla": True},
    "mla, norm before residual": {"mla": True, "norm_before_residual": True},
    "mla, post-norm recycled, fc norms": {"mla": True, "norm_output": True, "fc_norm": True},
}


class LiteralEngine(CachedEngine):
    """A head as its files describe it."""

    def __init__(self, directory: Path, ends: TargetEnds):
        self.config = read_json(directory / "config.json")
        self.ends = ends
        tensors = load_file(directory / "model.safetensors")
        self.tensors = {name: tensor.float() for name, tensor in tensors.items()}
        self.attention, self.rotary = self._attention()

    def _attention(self) -> tuple[nn.Module, nn.Module]:
        config = self.config
        prefix = "midlayer.self_attn."
        if config["model_type"] == "llama":
            settings: Any = LlamaConfig(
                hidden_size=HIDDEN,
                num_attention_heads=config["num_attention_heads"],
                num_key_value_heads=config["num_key_value_heads"],
                head_dim=config["head_dim"],
                rope_theta=config["rope_theta"],
            )
            attention: nn.Module = LlamaAttention(settings, 0)
            rotary: nn.Module = LlamaRotaryEmbedding(settings)
        else:
            keys = ("num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim")
            keys += ("qk_rope_head_dim", "v_head_dim")
            settings = DeepseekV3Config(
                hidden_size=HIDDEN,
                num_key_value_heads=config["num_attention_heads"],
                rope_interleave=True,
                **{key: config[key] for key in keys},
            )
            attention = DeepseekV3Attention(settings, 0)
            rotary = DeepseekV3RotaryEmbedding(settings)
        settings._attn_implementation = "eager"
        for name in ("q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj_with_mqa"):
            if getattr(attention, name, None) is not None:
                out = getattr(attention, name).out_features
                setattr(attention, name, nn.Linear(2 * HIDDEN, out, bias=False))
        own = {k.removeprefix(prefix): v for k, v in self.tensors.items() if k.startswith(prefix)}
        attention.load_state_dict(own)
        return attention.float(), rotary

    def norm(self, x: Tensor, name: str) -> Tensor:
        eps = self.config["rms_norm_eps"]
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * self.tensors[name]

    def first(self, aux_X: Tensor) -> Tensor:
        if self.config.get("eagle_config", {}).get("norm_before_fc"):
            aux_X = self.norm(aux_X, "input_norm.weight")
        if self.config.get("fc_norm"):
            parts = aux_X.split(HIDDEN)
            aux_X = torch.cat(
                [self.norm(part, f"fc_norm.{n}.weight") for n, part in enumerate(parts)]
            )
        return self.tensors["fc.weight"] @ aux_X

    def step(
        self, token: int, state: Tensor, position: int, cache: DynamicCache
    ) -> tuple[Tensor, Tensor]:
        normed = self.norm(state, "midlayer.hidden_norm.weight")
        embedding = self.ends.embedding_VH[token].float()
        x = torch.cat([self.norm(embedding, "midlayer.input_layernorm.weight"), normed])[None, None]
        cos_sin = self.rotary(x, position_ids=torch.tensor([[position]]))
        attended, _ = self.attention(x, cos_sin, None, past_key_values=cache)
        residual = normed if self.config.get("norm_before_residual") else state
        residual = residual + attended[0, 0]
        inner = self.norm(residual, "midlayer.post_attention_layernorm.weight")
        gate, up, down = (
            self.tensors[f"midlayer.mlp.{name}_proj.weight"] for name in ("gate", "up", "down")
        )
        out = residual + down @ (torch.nn.functional.silu(gate @ inner) * (up @ inner))
        u = self.norm(out, "norm.weight")
        return (u if self.config.get("norm_output") else out), u


@pytest.mark.parametrize("options", HEADS.values(), ids=HEADS)
def test_unroll_is_what_the_engine_decodes(
    target: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    directory = write_eagle3_head(target, tmp_path / "head", layers=LAYERS, **options)
    engine = LiteralEngine(directory, load_target_ends(target))
    head = Eagle3().load(directory, target, torch.float32)
    assert differences(head, engine).max() < 2e-4
