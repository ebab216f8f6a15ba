"""The DFlash head's unroll against its blocks computed one by one over a cache of the context.

The reference takes its layer from transformers' Qwen3, called without a mask; the rest is that of
vLLM's qwen3_dflash.py.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import DynamicCache, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds.dflash.kind import DFlash
from tests.dflash_head import write_dflash_head
from tests.speculators.kinds.eagle3.test_eagle3_unroll import LAYERS
from tests.speculators.literal_engine import DEPTH, differences

MASK = 2
KIND = DFlash()


class LiteralEngine:
    """Computes the block of one anchor, whose slots read all of the context and each other."""

    masks, first = DEPTH, 1

    def __init__(self, directory: Path, ends: TargetEnds):
        self.config = json.loads((directory / "config.json").read_text())
        self.ends = ends
        stored = load_file(directory / "model.safetensors")
        self.tensors = {name: tensor.float() for name, tensor in stored.items()}
        config = Qwen3Config(**self.config)
        config._attn_implementation = "eager"
        self.rotary = Qwen3RotaryEmbedding(config)
        self.layer = Qwen3DecoderLayer(config, 0)
        prefix = "layers.0."
        self.layer.load_state_dict(
            {k.removeprefix(prefix): v for k, v in self.tensors.items() if k.startswith(prefix)}
        )

    def norm(self, x: Tensor, name: str) -> Tensor:
        module = Qwen3RMSNorm(x.shape[-1], self.config["rms_norm_eps"])
        module.weight.data = self.tensors[f"{name}.weight"]
        return module(x)

    def context(self, aux_X: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Key and value [1, heads, 1, head_dim] of the target's state at a position."""
        attention = self.layer.self_attn
        c_H = self.norm(self.tensors["fc.weight"] @ aux_X, "hidden_norm")
        heads = 1, -1, 1, attention.head_dim
        key = attention.k_norm(attention.k_proj(c_H).view(heads))
        cos, sin = self.rotary(key, torch.tensor([[position]]))
        rotated, _ = apply_rotary_pos_emb(key, key, cos, sin)
        return rotated, attention.v_proj(c_H).view(heads)

    def block(self, token: int, anchor: int, seen: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """u of the slots that draft after an anchor, with the context up to it."""
        keys, values = (torch.cat(each, dim=2) for each in zip(*seen, strict=True))
        cache = DynamicCache()
        cache.update(keys, values, 0)
        tokens = torch.tensor([token, *[MASK] * self.masks])
        x_SH = self.ends.embedding_VH[tokens].float()
        position_BS = anchor + 1 + torch.arange(len(tokens))[None]
        out_BSH = self.layer(
            x_SH[None],
            position_embeddings=self.rotary(x_SH, position_BS),
            past_key_values=cache,
        )
        return list(self.norm(out_BSH[0], "norm")[self.first :])

    def states(self, tokens: list[int], aux_TX: Tensor) -> dict[tuple[int, int], Tensor]:
        """u of every (draft, anchor) that has a token to predict."""
        found = {}
        seen = []
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
    assert differences(head, engine).max() < 2e-4
