"""Counted parameters and activations against the modules and what autograd keeps."""

import dataclasses

import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds import trainable_kind
from outrider.speculators.kinds.mtp.layer import MTPSpeculator
from outrider.speculators.kinds.mtp.size import mtp_size
from outrider.speculators.layers.deepseek_layer import DeepseekArch
from outrider.speculators.size import RowShape
from outrider.training.sizing.memory import MemoryPlan
from tests.r1_config import R1
from tests.speculators.kinds.kept import kept_bytes
from tests.tiny import tiny_config

SEQUENCES = [(120, 60), (90, 80), (40, 5)]
TARGET = tiny_config().to_dict() | {"hidden_size": 256, "num_hidden_layers": 3}
LAYER = TARGET | {"num_nextn_predict_layers": 1, "moe_intermediate_size": 64}

HEADS = {
    "llama": ("eagle3", {}, {}),
    "grouped": ("eagle3", {}, {"num_key_value_heads": 2}),
    "fc norms": ("eagle3", {"fc_norm": True}, {}),
    "norm before residual": ("eagle3", {"norm_before_residual": True}, {}),
    "mla": ("eagle3", {"layer_type": "mla"}, {}),
    "parallel": ("p_eagle", {}, {}),
    "block": ("dflash", {}, {}),
    "block, grouped": ("dflash", {}, {"num_key_value_heads": 2}),
}


@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("case", HEADS.values(), ids=HEADS)
def test_a_head_keeps_what_is_counted(case, depth: int) -> None:
    name, options, changes = case
    kind = trainable_kind(name)
    config = {**kind.config(TARGET, HeadConfig(draft_vocabulary=40, **options), None), **changes}
    size, shape = kind.size(config, TARGET), kind.shape(config, TARGET, "config.json")
    torch.manual_seed(0)
    head = kind.module()(shape, None).bfloat16()
    assert size.total == size.trained() == sum(p.numel() for p in head.parameters())
    assert sum(size.parts.values()) == size.total
    ends = TargetEnds(*(torch.randn(shape.vocab, shape.hidden).bfloat16() for _ in range(2)))
    kept = kept_bytes(head, ends, SEQUENCES, shape.states, depth)
    assert counted(size, depth) == pytest.approx(kept, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "depth"),
    [
        ({}, 1),
        ({}, 4),
        ({"n_routed_experts": 16, "n_group": 4}, 3),
        ({"q_lora_rank": None}, 2),
        ({"first_k_dense_replace": 4}, 2),
    ],
    ids=["depth_1", "depth_4", "many_experts", "no_q_rank", "dense_mlp"],
)
def test_a_layer_keeps_what_is_counted(changes: dict, depth: int) -> None:
    config = LAYER | changes
    torch.manual_seed(0)
    arch = DeepseekArch.from_config(config)
    layer = MTPSpeculator(arch).bfloat16()
    for module in layer.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.float())
    ends = TargetEnds(*(torch.randn(arch.vocab, arch.hidden).bfloat16() for _ in range(2)))
    kept = kept_bytes(layer, ends, SEQUENCES, arch.hidden, depth)
    assert counted(mtp_size(config), depth) == pytest.approx(kept, rel=0.1)


def counted(size, depth: int) -> int:
    """Bytes of activations that the plan counts when forward ends."""
    row = RowShape.of_sequences(SEQUENCES)
    return MemoryPlan(size, row, row.tokens, depth, device="cpu")._saved(row)


def test_r1s_layer_is_what_is_published_of_it() -> None:
    size = mtp_size(R1)
    assert size.total == pytest.approx(11.6e9, rel=0.005)
    assert size.parts["routed_experts"] == pytest.approx(11.3e9, rel=0.005)
    assert size.trained("non_routed") == pytest.approx(336e6, rel=0.005)
    assert size.frozen("all") == 0 and size.frozen("lora") == size.parts["routed_experts"]


def test_adapters_count_by_their_shapes() -> None:
    size = mtp_size(tiny_config().to_dict() | {"num_nextn_predict_layers": 1})
    rank, shapes = 5, [(5, 64), (2 * 32, 5), (5, 32), (64, 5)]
    adapters = 4 * sum(rows * columns for rows, columns in shapes)
    assert size.trained("lora", lora_rank=rank) - size.trained("non_routed") == adapters


def test_a_config_of_another_architecture_names_the_missing_key() -> None:
    config = {key: value for key, value in R1.items() if key != "kv_lora_rank"}
    with pytest.raises(OutriderError, match=r"other/config\.json: no kv_lora_rank"):
        mtp_size(config, "other/config.json")


def test_flops_of_a_block_are_those_of_its_matrices() -> None:
    """Rows of each matrix, forward and backward, counted from the module's calls."""
    kind = trainable_kind("dflash")
    config = kind.config(TARGET, HeadConfig(draft_vocabulary=40), None)
    shape, depth, (tokens, anchors) = kind.shape(config, TARGET, "config.json"), 4, (250, 145)
    with torch.device("meta"):
        head = kind.module()(shape, None)
    attention, mlp = head.layers[0].self_attn, head.layers[0].mlp
    rows = dict.fromkeys((mlp.gate_proj, mlp.up_proj, mlp.down_proj, head.lm_head), depth * anchors)
    rows |= {head.fc: tokens, attention.o_proj: depth * anchors}
    rows |= dict.fromkeys((attention.k_proj, attention.v_proj), tokens + anchors)
    expected = 6.0 * sum(module.weight.numel() * count for module, count in rows.items())
    pairs = sum(a * (t - a / 2) for t, a in SEQUENCES)
    expected += 6.0 * depth * pairs * shape.heads * 2 * shape.head_dim
    expected += 2.0 * anchors * shape.vocab * shape.hidden  # the teacher
    found = kind.size(config, TARGET).step_flops(depth, *zip(*SEQUENCES, strict=True))
    assert found == pytest.approx(expected, rel=0.1)


def test_a_row_is_worst_when_one_sequence_fills_it() -> None:
    split, whole = RowShape.of_sequences([(60, 30), (40, 40)]), RowShape.full(100)
    assert (split.tokens, split.anchors, split.pairs, split.largest_pairs) == (100, 70, 3400, 1800)
    plan = MemoryPlan(mtp_size(LAYER), split, 100, 3, device="cpu")
    assert plan.peak()[1] < dataclasses.replace(plan, row=whole).peak()[1]
