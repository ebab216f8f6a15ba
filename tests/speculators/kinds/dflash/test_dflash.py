"""The DFlash head's unroll against its slots computed one by one over an explicit list of keys.

Norms, rotary embedding and MLP of the reference are transformers' Qwen3; the order is that of
vLLM's qwen3_dflash.py.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3MLP,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds.dflash.kind import DFlash
from tests.dflash_head import write_dflash_head
from tests.speculators.kinds.eagle3.test_eagle3_unroll import LAYERS
from tests.speculators.literal_engine import DEPTH, slot_differences

MASK = 2
KIND = DFlash()


class LiteralEngine:
    """Appends one key and value after the other, then lets every slot read the whole list."""

    masks, first = DEPTH, 1

    def __init__(self, directory: Path, ends: TargetEnds):
        self.config, self.ends = json.loads((directory / "config.json").read_text()), ends
        self.tensors = {
            name: tensor.float()
            for name, tensor in load_file(directory / "model.safetensors").items()
        }
        config = Qwen3Config(**self.config)
        self.rotary = Qwen3RotaryEmbedding(config)
        self.mlp = Qwen3MLP(config)
        prefix = "layers.0.mlp."
        self.mlp.load_state_dict(
            {k.removeprefix(prefix): v for k, v in self.tensors.items() if k.startswith(prefix)}
        )
        self.query_heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads

    def norm(self, x: Tensor, name: str) -> Tensor:
        module = Qwen3RMSNorm(x.shape[-1], self.config["rms_norm_eps"])
        module.weight.data = self.tensors[f"{name}.weight"]
        return module(x)

    def heads(self, x_H: Tensor, name: str, position: int | None) -> Tensor:
        """Heads of one vector, normed and rotated where it has a position."""
        out_AD = (self.tensors[f"layers.0.self_attn.{name}_proj.weight"] @ x_H).view(
            -1, self.config["head_dim"]
        )
        if position is None:
            return out_AD
        normed = self.norm(out_AD, f"layers.0.self_attn.{name}_norm")[None, :, None]
        cos, sin = self.rotary(normed, torch.tensor([[position]]))
        return apply_rotary_pos_emb(normed, normed, cos, sin)[0][0, :, 0]

    def context(self, aux_X: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Key and value of the target's state at a position."""
        c_H = self.norm(self.tensors["fc.weight"] @ aux_X, "hidden_norm")
        return self.heads(c_H, "k", position), self.heads(c_H, "v", None)

    def block(self, token: int, anchor: int, seen: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """u of the slots that draft after an anchor, with the context up to it."""
        rows = [
            (self.ends.embedding_VH[each].float(), anchor + 1 + slot)
            for slot, each in enumerate([token, *[MASK] * self.masks])
        ]
        normed = [(self.norm(x, "layers.0.input_layernorm"), position) for x, position in rows]
        keys = [*seen, *((self.heads(x, "k", p), self.heads(x, "v", None)) for x, p in normed)]
        found = []
        for (x_H, _), (normed_H, position) in zip(rows, normed, strict=True):
            query_AD, attended = self.heads(normed_H, "q", position), []
            for head, q_D in enumerate(query_AD):
                group = head * self.key_heads // self.query_heads
                scores = torch.stack([q_D @ key[group] for key, _ in keys])
                share = (scores / self.config["head_dim"] ** 0.5).softmax(-1)
                attended.append(share @ torch.stack([value[group] for _, value in keys]))
            r_H = x_H + self.tensors["layers.0.self_attn.o_proj.weight"] @ torch.cat(attended)
            out_H = r_H + self.mlp(self.norm(r_H, "layers.0.post_attention_layernorm"))
            found.append(self.norm(out_H, "norm"))
        return found[self.first :]

    def slots(self, tokens: list[int], aux_TX: Tensor) -> dict[tuple[int, int], Tensor]:
        """u of every (draft, anchor) that has a token to predict."""
        found, seen = {}, []
        for i in range(len(tokens) - 2):
            seen.append(self.context(aux_TX[i], i))
            for s, u in enumerate(self.block(tokens[i + 1], i, seen)):
                if i + 2 + s < len(tokens):
                    found[s, i] = u
        return found


@pytest.mark.parametrize("options", [{}, {"heads": 4, "kv_heads": 2}, {"rope_theta": 1e6}])
def test_unroll_is_what_the_engine_computes(
    target: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    directory = tmp_path / "head"
    write_dflash_head(target, directory, layers=LAYERS, mask_token=MASK, **options)
    head = KIND.load(directory, target, torch.float32)
    engine = LiteralEngine(directory, load_target_ends(target))
    assert slot_differences(head, engine).max() < 2e-4
