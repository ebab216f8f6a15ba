"""Counted activations against the tensors that autograd keeps."""

import pytest
import torch

from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds.mtp.activations import DENSE_EXPERTS, MTPActivations
from outrider.speculators.kinds.mtp.layer import MTPSpeculator
from outrider.speculators.kinds.mtp.size import mtp_size
from outrider.speculators.kinds.protocol import RowShape
from outrider.speculators.layers.deepseek_layer import DeepseekArch, Experts
from outrider.speculators.layers.frozen_experts import FrozenExperts, Stack
from outrider.speculators.layers.lora import AdaptedExperts
from tests.speculators.kinds.kept import kept_bytes
from tests.tiny import tiny_config


def config(**changes: object) -> dict:
    base = tiny_config().to_dict() | {
        "num_nextn_predict_layers": 1,
        "hidden_size": 256,
        "moe_intermediate_size": 64,
    }
    return base | changes


RANK = 8


def freeze_experts(speculator: MTPSpeculator, adapted: bool) -> None:
    """As `load_mtp(frozen_experts=True)` makes them."""
    experts = speculator.block.mlp.experts
    gate, up = experts.gate_up_proj.detach().chunk(2, dim=1)
    stacks = {"gate_proj": gate, "up_proj": up, "down_proj": experts.down_proj.detach()}
    frozen = FrozenExperts(
        speculator.arch, {name: Stack(value.bfloat16().clone()) for name, value in stacks.items()}
    )
    if adapted:
        frozen = AdaptedExperts(frozen, speculator.arch, RANK, 16.0, seed=0)
    speculator.block.mlp.experts = frozen


def kept_by_autograd(
    settings: dict,
    sequences: list[tuple[int, int]],
    depth: int,
    dtype: torch.dtype,
    train: str = "all",
) -> int:
    """Bytes that autograd keeps of the unroll of an MTP layer of this shape."""
    torch.manual_seed(0)
    arch = DeepseekArch.from_config(settings)
    speculator = MTPSpeculator(arch)
    if train != "all":
        freeze_experts(speculator, adapted=train == "lora")
    speculator.to(dtype)
    for module in speculator.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.float())
    ends = TargetEnds(
        torch.randn(arch.vocab, arch.hidden).to(dtype),
        torch.randn(arch.vocab, arch.hidden).to(dtype),
    )
    return kept_bytes(speculator, ends, sequences, arch.hidden, depth)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize(
    ("settings", "depth"),
    [
        ({}, 1),
        ({}, 4),
        ({"n_routed_experts": 16, "n_group": 4}, 3),
        ({"q_lora_rank": None}, 2),
        ({"first_k_dense_replace": 3}, 2),
    ],
    ids=["depth_1", "depth_4", "many_experts", "no_q_rank", "dense_mlp"],
)
def test_autograd_keeps_what_is_counted(settings, depth, dtype):
    settings, sequences = config(**settings), [(120, 60), (90, 80), (40, 5)]
    counted = MTPActivations(
        mtp_size(settings), RowShape.of_sequences(sequences), depth, dtype.itemsize
    ).saved_bytes()
    assert counted == pytest.approx(kept_by_autograd(settings, sequences, depth, dtype), rel=0.01)


@pytest.mark.parametrize("train", ["non_routed", "lora"])
@pytest.mark.parametrize("experts", [4, 16])
def test_autograd_keeps_less_of_frozen_experts(train, experts):
    settings, sequences = config(n_routed_experts=experts), [(120, 60), (40, 5)]
    row = RowShape.of_sequences(sequences)
    counted = MTPActivations(mtp_size(settings), row, 3, 2, "cpu", train, RANK).saved_bytes()
    assert counted == pytest.approx(
        kept_by_autograd(settings, sequences, 3, torch.bfloat16, train), rel=0.01
    )


def test_the_border_between_few_and_many_experts_is_the_modules():
    assert DENSE_EXPERTS == Experts.DENSE_UP_TO


def test_a_row_is_worst_when_one_sequence_fills_it():
    split, whole = RowShape.of_sequences([(60, 30), (40, 40)]), RowShape.full(100)
    assert (split.tokens, split.anchors, split.pairs, split.largest_pairs) == (100, 70, 3400, 1800)
    size = mtp_size(config())
    assert (
        MTPActivations(size, split, 3, 2).saved_bytes()
        < MTPActivations(size, whole, 3, 2).saved_bytes()
    )
