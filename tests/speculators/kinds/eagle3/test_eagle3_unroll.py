"""The EAGLE-3 head's unroll against decoding token by token with an explicit cache.

The reference takes its attention from transformers (Llama's, DeepSeek's), widened to read
[embedding ; state], and everything else from the equations of vLLM's llama_eagle3.py.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DeepseekV3Config, DynamicCache, LlamaConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    DeepseekV3RotaryEmbedding,
)
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds.drafter import Drafter
from outrider.speculators.kinds.eagle3.kind import Eagle3
from outrider.speculators.kinds.eagle3.layer import EagleHead
from outrider.speculators.unroll import valid_BT
from tests.eagle3_head import write_eagle3_head
from tests.tiny import HIDDEN, VOCAB
from tools.unrolled import unroll

DEPTH = 4
LENGTHS = (9, 14, 3)
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


class LiteralEngine:
    """Decodes with a key-value cache, one token at a time, and rolls chains back afterwards."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor], ends: TargetEnds):
        self.config, self.ends = config, ends
        self.tensors = {name: tensor.float() for name, tensor in tensors.items()}
        self.attention, self.rotary = self._attention()

    def _attention(self) -> tuple[nn.Module, nn.Module]:
        config, prefix = self.config, "midlayer.self_attn."
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
            attention, rotary = (
                DeepseekV3Attention(settings, 0),
                DeepseekV3RotaryEmbedding(settings),
            )
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
        """The state that the next step reads, and the state that the head reads."""
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

    def chains(self, tokens: list[int], aux_TX: Tensor) -> dict[tuple[int, int], Tensor]:
        """u of every (depth, anchor) whose predicted token exists."""
        cache, found = DynamicCache(), {}
        for i in range(len(tokens) - 2):
            state, u = self.step(tokens[i + 1], self.first(aux_TX[i]), i, cache)
            found[0, i] = u
            for s in range(1, DEPTH):
                if i + 2 + s < len(tokens):
                    state, u = self.step(tokens[i + 1 + s], state, i + s, cache)
                    found[s, i] = u
            cache.crop(i + 1)
        return found


def written(target: Path, directory: Path, **options: Any) -> Path:
    """A random head, its norms not 1, over the states before layers 1 and 2."""
    return write_eagle3_head(target, directory, layers=LAYERS, **options)


def packed_row() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Three packed sequences and padding."""
    torch.manual_seed(3)
    slots = sum(LENGTHS) + 4
    token_BT, aux_BTX = torch.randint(0, VOCAB, (1, slots)), torch.randn(1, slots, 2 * HIDDEN)
    sequence_BT, position_BT = torch.full((1, slots), -1), torch.zeros(1, slots, dtype=torch.long)
    start = 0
    for number, length in enumerate(LENGTHS):
        sequence_BT[0, start : start + length] = number
        position_BT[0, start : start + length] = torch.arange(length)
        start += length
    return token_BT, aux_BTX, sequence_BT, position_BT


def differences(head: EagleHead, engine: LiteralEngine) -> Tensor:
    """Largest difference of the states by depth, [K], over every chain of the row."""
    token_BT, aux_BTX, sequence_BT, position_BT = packed_row()
    with torch.no_grad():
        states = unroll(head, engine.ends, token_BT, aux_BTX, sequence_BT, position_BT, DEPTH)
        worst_K, compared, start = torch.zeros(DEPTH), 0, 0
        for length in LENGTHS:
            span = slice(start, start + length)
            for (s, i), u in engine.chains(token_BT[0, span].tolist(), aux_BTX[0, span]).items():
                difference = (states[s][0, start + i] - u).abs().max()
                worst_K[s] = torch.maximum(worst_K[s], difference)
                compared += 1
            start += length
    assert compared == sum(int(valid_BT(sequence_BT, s)[0].sum()) for s in range(DEPTH))
    return worst_K


@torch.no_grad()
def slot_differences(head: Drafter, engine: Any) -> Tensor:
    """Largest difference of a parallel head's states by slot, [K], from `engine.slots`."""
    token_BT, aux_BTX, sequence_BT, _ = packed_row()
    anchors_N, states = head.unroll(engine.ends, *packed_row(), valid_BT(sequence_BT, 0), DEPTH)
    place = {slot: n for n, slot in enumerate(anchors_N.tolist())}
    worst_K, compared = torch.zeros(DEPTH), 0
    for number in sequence_BT[sequence_BT >= 0].unique().tolist():
        slots = (sequence_BT[0] == number).nonzero().squeeze(1)
        of_row = engine.slots(token_BT[0, slots].tolist(), aux_BTX[0, slots])
        for (s, i), u in of_row.items():
            difference = (states[s][place[int(slots[i])]] - u).abs().max()
            worst_K[s] = torch.maximum(worst_K[s], difference)
            compared += 1
    assert compared == sum(int(valid_BT(sequence_BT, s).sum()) for s in range(DEPTH))
    return worst_K


def both(target: Path, directory: Path) -> tuple[EagleHead, LiteralEngine]:
    from safetensors.torch import load_file

    config = json.loads((directory / "config.json").read_text())
    engine = LiteralEngine(
        config, load_file(directory / "model.safetensors"), load_target_ends(target)
    )
    return Eagle3().load(directory, target, torch.float32), engine


@pytest.mark.parametrize("options", HEADS.values(), ids=HEADS)
def test_unroll_is_what_the_engine_decodes(
    target: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    head, engine = both(target, written(target, tmp_path / "head", **options))
    assert differences(head, engine).max() < 2e-4
