"""FP8 blocks: an engine that computes with them drafts as the unroll of the dequantized weights.

The target is random, with every side a multiple of 128 (vLLM's kernels have no others). Its logits
are close together, so log-probabilities are compared rather than tokens. No CPU without AMX
computes such blocks in vLLM: there files, reading and publishing are checked.
"""

from pathlib import Path
from typing import Any

from outrider.common.files import read_json
from outrider.pipeline.gpu_check.check import CheckFailed, Figures
from outrider.pipeline.gpu_check.checks.parity import compared
from outrider.pipeline.gpu_check.inputs import (
    PARITY,
    engine_config,
    logged_prompts,
    publish_drafter,
)
from outrider.pipeline.rehearsal.cut import R1_CONFIG, cut_config
from outrider.pipeline.rehearsal.target import write_random_target
from outrider.serving.config import TargetConfig

SIDES = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "moe_intermediate_size": 256,
    "num_attention_heads": 8,
    "q_lora_rank": 256,
    "max_position_embeddings": 4096,
    "rope_scaling": None,
}
LARGEST_ROUNDING = 0.04
"""Relative rounding of e4m3 with a scale a block: 3 mantissa bits, 2.6 % of normal values."""


def on_gpu(folder: Path) -> Figures:
    """Draft parity of an FP8 target."""
    target = _target(folder)
    # Random logits are within 0.1 nats of each other for many tokens.
    parity = PARITY.model_copy(
        update={"prompts": 16, "anchors": 256, "near_tie_nats": 0.3, "min_agreement": 0.9}
    )
    prompts = logged_prompts(parity.prompts)
    return compared(TargetConfig(model=str(target)), engine_config(True), parity, prompts)


def on_cpu(folder: Path) -> Figures:
    """Rounding of the blocks, and that publishing unchanged weights keeps their bytes."""
    import torch

    from outrider.speculators.checkpoints.fp8 import dequantize, quantize
    from outrider.speculators.checkpoints.layout import read_layout
    from outrider.speculators.checkpoints.tensors import CheckpointTensors
    from outrider.speculators.kinds import trainable_kind_of

    target = _target(folder)
    drafter = trainable_kind_of(target).load(target, target, torch.float32)
    publish_drafter(drafter, target, folder / "published")
    names = set(read_layout(folder / "published").weight_map)
    before, after = (CheckpointTensors(read_layout(d)) for d in (target, folder / "published"))
    quantized = [name for name in names if f"{name}_scale_inv" in names]
    for name in names:
        if not torch.equal(_bytes(before.raw(name)), _bytes(after.raw(name))):
            raise CheckFailed(f"{name}: unchanged, but published with other bytes")
    weight = torch.randn(512, 384, generator=torch.Generator().manual_seed(0))
    rounded = dequantize(*quantize(weight, (128, 128)), (128, 128))
    rounding = float((rounded - weight).norm() / weight.norm())
    if rounding > LARGEST_ROUNDING:
        raise CheckFailed(f"blocks round by {rounding:.2%}, expected at most 4 %")
    return {"quantized_tensors": len(quantized), "relative_rounding": rounding}


def _bytes(tensor: Any) -> Any:
    import torch

    return tensor.contiguous().view(torch.uint8)


def _target(folder: Path) -> Path:
    config = cut_config(read_json(R1_CONFIG), experts=8, fp8=True) | SIDES
    write_random_target(config, folder / "target")
    return folder / "target"
