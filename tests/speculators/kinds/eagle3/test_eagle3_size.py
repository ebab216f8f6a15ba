"""Counted parameters and activations against the module and what autograd keeps."""

from typing import Any

import pytest
import torch

from outrider.speculators.head_config import HeadConfig
from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds.eagle3.checkpoint import Build
from outrider.speculators.kinds.eagle3.kind import Eagle3
from outrider.speculators.kinds.eagle3.layer import EagleHead
from outrider.speculators.kinds.eagle3.shape import EagleShape
from outrider.speculators.kinds.eagle3.size import EagleSize
from outrider.speculators.kinds.protocol import RowShape
from tests.speculators.kinds.kept import kept_bytes
from tests.tiny import tiny_config

SEQUENCES = [(120, 60), (90, 80), (40, 5)]


def shape(kind: Eagle3, **options: Any) -> EagleShape:
    changes = options.pop("config", {})
    target = tiny_config().to_dict() | {"hidden_size": 256, "num_hidden_layers": 3}
    config = kind.config(target, HeadConfig(draft_vocabulary=40, **options), None)
    return EagleShape.read(dict(config) | changes, target, "config.json")


SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "grouped": {"config": {"num_key_value_heads": 2}},
    "fc norms": {"fc_norm": True},
    "norm before residual": {"norm_before_residual": True},
    "norm before fc": {"config": {"norm_before_fc": True, "eagle_config": {}}},
    "both norms": {"fc_norm": True, "config": {"norm_before_fc": True}},
    "post-norm recycled": {"norm_output": True},
    "mla": {"layer_type": "mla"},
    "mla without q rank": {"layer_type": "mla", "config": {"q_lora_rank": None}},
}


@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES)
def test_parameters_are_those_of_the_module(options: dict[str, Any]) -> None:
    made = shape(Eagle3(), **options)
    size = EagleSize(made)
    with torch.device("meta"):
        head = EagleHead(made, None)
    named = dict(head.named_parameters())
    assert size.total == size.trained() == sum(p.numel() for p in named.values())
    assert size.largest_trained() == max(p.numel() for p in named.values())
    parts = {"fc": "fc.weight", "lm_head": "lm_head.weight"}
    for part, name in parts.items():
        assert size.parts[part] == named[name].numel()
    of_mlp = sum(p.numel() for name, p in named.items() if ".mlp." in name)
    of_attention = sum(p.numel() for name, p in named.items() if ".self_attn." in name)
    assert (size.parts["mlp"], size.parts["attention"]) == (of_mlp, of_attention)


def kept_by_autograd(
    made: EagleShape, depth: int, dtype: torch.dtype, build: Build = EagleHead
) -> int:
    """Bytes that autograd keeps of the unroll of a head of this shape."""
    torch.manual_seed(0)
    head = build(made, None).to(dtype)
    ends = TargetEnds(*(torch.randn(made.vocab, made.hidden).to(dtype) for _ in range(2)))
    return kept_bytes(head, ends, SEQUENCES, made.states, depth)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES)
def test_autograd_keeps_what_is_counted(
    options: dict[str, Any], depth: int, dtype: torch.dtype
) -> None:
    made, row = shape(Eagle3(), **options), RowShape.of_sequences(SEQUENCES)
    counted = EagleSize(made).activations(row, depth, dtype.itemsize, "cpu", "all", 0)
    kept = kept_by_autograd(made, depth, dtype)
    assert counted.saved_bytes() == pytest.approx(kept, rel=0.01)
