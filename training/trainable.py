"""Which of the speculator's weights are trained (`speculator.train`), and what of them is published.

    speculator = load_trainable(target_dir, SpeculatorConfig(train="non_routed"), dtype, device, seed=0)
    write_mtp(trained_tensors(speculator, accelerator.get_state_dict(model)), target_dir, out_dir)
    exported = exported_profile(validation, out_dir, ends, depth)      # what the published weights accept

    all          every weight is a parameter
    non_routed   the routed experts are none, and stay as the target ships them (speculators/layers/frozen_experts.py)
    lora         the same, with low-rank adapters on them (speculators/layers/lora.py)

Frozen experts are no parameters, so neither DeepSpeed's optimizer nor ZeRO nor a checkpoint knows of them: every process holds all of
them (11.3 GB of R1's in FP8), and a resumed run reads them from the target again.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.speculators.checkpoints.mtp_checkpoint import checkpoint_names, load_mtp
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.layers.lora import ADAPTERS, AdaptedExperts
from outrider.speculators.layers.mtp_layer import MTPSpeculator, TargetEnds
from outrider.training.distributed.accelerator import ChainUnroll
from outrider.training.validation import Validation

EXPERTS = "block.mlp.experts."


def load_trainable(
    target_dir: Path, config: SpeculatorConfig, dtype: torch.dtype, device: torch.device, seed: int
) -> MTPSpeculator:
    """The target's MTP layer with what `config.train` names as its parameters. `seed` draws the adapters."""
    speculator = load_mtp(target_dir, dtype, device, frozen_experts=config.train != "all")
    if config.train == "lora":
        mlp = speculator.block.mlp
        adapted = AdaptedExperts(
            mlp.experts, speculator.arch, config.lora_rank, config.lora_alpha, seed
        )
        mlp.experts = adapted.to(device=device, dtype=dtype)
    return speculator


def trained_tensors(
    speculator: MTPSpeculator, weights: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """What training may have changed, under the checkpoint's names; adapters merged into their experts in float32.

    `weights` is the whole state dict of the prepared `ChainUnroll`: under ZeRO-3 the module itself holds shards.
    """
    buffers = {name for name, _ in speculator.named_buffers()}
    state = {name.removeprefix("speculator."): value for name, value in weights.items()}
    adapters = {name: state.pop(EXPERTS + name) for name in ADAPTERS if EXPERTS + name in state}
    yield from checkpoint_names(
        {name: value for name, value in state.items() if name not in buffers}
    ).items()
    if adapters:
        yield from speculator.block.mlp.experts.merged(adapters)


def exported_profile(
    validation: Validation, directory: Path, ends: TargetEnds, depth: int
) -> dict[str, Any]:
    """Acceptance on the validation part of what a directory holds, computed as training computes.

    Against the same weights before they were written it tells what their precision costs: FP8 blocks round what was trained, and a
    merged adapter is rounded to the experts' dtype.
    """
    device, dtype = ends.lm_head_VH.device, ends.lm_head_VH.dtype
    unroll = ChainUnroll(load_mtp(directory, dtype, device), ends, depth).eval()
    return validation.profile(unroll, unroll)


def export_line(
    base: dict[str, Any],
    trained: dict[str, Any],
    exported: dict[str, Any],
    blocks: tuple[int, int] | None,
) -> str:
    """For people: what export cost."""
    first, before, after = (
        profile["acceptance_length"][-1] for profile in (base, trained, exported)
    )
    form = (
        "as the target ships its weights"
        if blocks is None
        else f"in FP8 blocks of {blocks[0]} x {blocks[1]}"
    )
    line = (
        f"exported {form}: acceptance {' '.join(f'{a:.3f}' for a in exported['acceptance'])}  acceptance length {after:.3f} at"
        f" K={len(exported['acceptance'])}, {after / before - 1:+.2%} from the trained weights' {before:.3f}"
    )
    return line + (f"; that is below the base speculator's {first:.3f}" if after < first else "")
