"""The unroll against transformers' layer decoding token by token with an explicit cache.

What is around the layer, and which state the next depth is fed, is as vLLM 0.32 has it in
deepseek_mtp.py and glm4_moe_mtp.py.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, DynamicCache
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3DecoderLayer,
    DeepseekV3RotaryEmbedding,
)
from transformers.models.glm4_moe.modeling_glm4_moe import (
    Glm4MoeDecoderLayer,
    Glm4MoeRotaryEmbedding,
)

from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from outrider.speculators.kinds.mtp.layer import MTPSpeculator
from outrider.speculators.unroll import Slots, _last_slots, unroll_anchors, valid_BT
from tests.speculators.literal_engine import (
    DEPTH,
    LENGTHS,
    CachedEngine,
    differences,
    packed_row,
)
from tests.tiny import HIDDEN, LAYERS, VOCAB, tiny_config
from tools.unrolled import unroll

LITERAL = {
    "deepseek_v3": (DeepseekV3DecoderLayer, DeepseekV3RotaryEmbedding, True),
    "glm4_moe": (Glm4MoeDecoderLayer, Glm4MoeRotaryEmbedding, False),
}
"""Layer, positions, and whether vLLM feeds the next depth the state after the last norm."""


class LiteralEngine(CachedEngine):
    """The MTP layer, whose head reads the state that the next step reads."""

    def __init__(self, target_dir: Path, speculator: MTPSpeculator, ends: TargetEnds):
        self.config = AutoConfig.from_pretrained(target_dir)
        self.config._attn_implementation = "eager"
        layer_class, rotary_class, self.feeds_normed = LITERAL[self.config.model_type]
        self.layer = layer_class(self.config, LAYERS - 1).float()
        self.layer.self_attn.layer_idx = 0
        self.layer.load_state_dict(speculator.block.state_dict())
        self.rotary = rotary_class(self.config)
        self.speculator, self.ends = speculator, ends

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return (
            x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config.rms_norm_eps) * weight
        )

    def step(
        self, token: int, state: Tensor, position: int, cache: DynamicCache
    ) -> tuple[Tensor, Tensor]:
        embedding = self.ends.embedding_VH[token].float() if position > 0 else torch.zeros(HIDDEN)
        both = torch.cat(
            [
                self.norm(embedding, self.speculator.enorm.weight),
                self.norm(state, self.speculator.hnorm.weight),
            ]
        )
        x = (self.speculator.eh_proj.weight @ both)[None, None]
        positions = torch.tensor([[position]])
        out = self.layer(
            x,
            position_ids=positions,
            position_embeddings=self.rotary(x, position_ids=positions),
            past_key_values=cache,
            use_cache=True,
        )
        u = self.norm(out[0, 0], self.speculator.norm.weight)
        return (u if self.feeds_normed else out[0, 0]), u


def test_valid_is_the_existence_of_the_predicted_token() -> None:
    _, _, sequence_BT, _ = packed_row()
    for s in range(DEPTH + 8):
        expected = torch.zeros_like(sequence_BT, dtype=torch.bool)
        for b, row in enumerate(sequence_BT.tolist()):
            for i, number in enumerate(row):
                expected[b, i] = number >= 0 and i + 2 + s < len(row) and row[i + 2 + s] == number
        assert torch.equal(valid_BT(sequence_BT, s), expected)


def test_unroll_is_what_the_engine_decodes(each_target: Path) -> None:
    speculator = load_mtp(each_target)
    ends = load_target_ends(each_target)
    engine = LiteralEngine(each_target, speculator, ends)
    assert differences(speculator, engine, HIDDEN).max() < 2e-4


def test_anchors_alone_give_the_same_states(each_target: Path) -> None:
    speculator = load_mtp(each_target)
    ends = load_target_ends(each_target)
    token_BT, hidden_BTH, sequence_BT, position_BT = packed_row()
    everywhere = unroll(
        speculator,
        ends,
        token_ids_BT=token_BT,
        inputs_BTX=hidden_BTH,
        sequence_BT=sequence_BT,
        position_BT=position_BT,
        depth=DEPTH,
    )
    anchor_BT = valid_BT(sequence_BT, 0) & (torch.arange(sequence_BT.shape[1]) % 3 == 1)
    row = token_BT, hidden_BTH, sequence_BT, position_BT
    anchors_N, states = unroll_anchors(speculator, ends, Slots(*row, anchor_BT), DEPTH)
    assert torch.equal(anchors_N, anchor_BT.flatten().nonzero().squeeze(1))
    for s, u_NH in enumerate(states):
        valid_N = valid_BT(sequence_BT, s).flatten()[anchors_N]
        torch.testing.assert_close(u_NH[valid_N], everywhere[s].flatten(0, 1)[anchors_N[valid_N]])
    nowhere = Slots(*row, torch.zeros_like(anchor_BT))
    none_N, empty = unroll_anchors(speculator, ends, nowhere, DEPTH)
    assert len(none_N) == 0
    assert all(u_NH.shape == (0, HIDDEN) for u_NH in empty)


@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_flow_through_the_chain_as_in_the_reference(
    each_target: Path, recompute: bool
) -> None:
    speculator = load_mtp(each_target)
    ends = load_target_ends(each_target)
    token_BT, hidden_BTH, sequence_BT, position_BT = (tensor[1:] for tensor in packed_row())
    length = LENGTHS[1]
    weight_SIH = torch.randn(DEPTH, length, HIDDEN)
    anchor_BT = valid_BT(sequence_BT, 0)
    row = Slots(
        token_ids_BT=token_BT,
        inputs_BTX=hidden_BTH,
        sequence_BT=sequence_BT,
        position_BT=position_BT,
        anchor_BT=anchor_BT,
    )
    _, states = unroll_anchors(speculator, ends, row, DEPTH, recompute=recompute)
    reach = [length - 2 - s for s in range(DEPTH)]
    sum(
        (u[:n] * weight_SIH[s, :n]).sum()
        for s, (u, n) in enumerate(zip(states, reach, strict=True))
    ).backward()
    ours = {name: p.grad.clone() for name, p in speculator.named_parameters()}
    speculator.zero_grad()
    engine = LiteralEngine(each_target, speculator, ends)
    found = engine.states(token_BT[0, :length].tolist(), hidden_BTH[0, :length])
    sum((u * weight_SIH[s, i]).sum() for (s, i), u in found.items()).backward()
    for name, parameter in engine.layer.named_parameters():
        torch.testing.assert_close(ours[f"block.{name}"], parameter.grad, atol=2e-3, rtol=1e-3)
    for name in ("enorm.weight", "hnorm.weight", "eh_proj.weight", "norm.weight"):
        torch.testing.assert_close(
            ours[name], speculator.get_parameter(name).grad, atol=2e-3, rtol=1e-3
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("experts", [4, 16])
def test_recomputing_changes_no_bit_of_the_gradients(dtype: torch.dtype, experts: int) -> None:
    torch.manual_seed(0)
    config = tiny_config().to_dict() | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "n_routed_experts": experts,
    }
    speculator = MTPSpeculator(config).to(dtype)
    ends = TargetEnds(*(torch.randn(VOCAB, HIDDEN).to(dtype) for _ in range(2)))
    row = packed_row()
    anchor_BT = valid_BT(row[2], 0) & (torch.arange(row[2].shape[1]) % 3 > 0)
    found = []
    for speculator.recompute in (False, True):
        speculator.zero_grad()
        _, states = speculator.unroll(ends, Slots(*row, anchor_BT), DEPTH)
        sum((u.float() ** 2).sum() for u in states).backward()
        gradients = {name: p.grad.clone() for name, p in speculator.named_parameters()}
        found.append({f"u{s}": u.detach() for s, u in enumerate(states)} | gradients)
    kept, again = found
    for name, value in kept.items():
        assert torch.equal(again[name], value), name


def test_a_sequence_ends_with_its_row_though_the_next_has_the_same_number() -> None:
    sequence_BT = torch.tensor([[7, 7, -1], [-1, 7, 7], [7, 7, 7]])
    assert _last_slots(sequence_BT).tolist() == [1, 1, 2, 3, 5, 5, 8, 8, 8]
