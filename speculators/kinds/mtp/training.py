"""Which weights of an MTP layer are trained (`speculator.train`), and which are written.

    all          every weight is a parameter
    non_routed   the routed experts are no parameters (layers/frozen_experts.py)
    lora         the same, with low-rank adapters on the experts (layers/lora.py)

Frozen experts are no parameters: DeepSpeed's optimizer, ZeRO and checkpoints do not hold them.
Every process holds all of them (11.3 GB of R1's in FP8), and a resumed run reads them from the
base again.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from outrider.speculators.kinds.mtp.checkpoint import checkpoint_names, load_mtp
from outrider.speculators.kinds.mtp.layer import MTPSpeculator
from outrider.speculators.kinds.protocol import TrainedParts
from outrider.speculators.layers.deepseek_layer import MixtureOfExperts
from outrider.speculators.layers.frozen_experts import FrozenExperts
from outrider.speculators.layers.lora import ADAPTERS, AdaptedExperts

EXPERTS = "block.mlp.experts."


def load_trainable(
    base_dir: Path,
    parts: TrainedParts,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
) -> MTPSpeculator:
    """The base's MTP layer with the trained weights as its parameters; `seed` draws adapters."""
    speculator = load_mtp(base_dir, dtype, device, frozen_experts=parts.train != "all")
    if parts.train == "lora":
        mlp = cast(MixtureOfExperts, speculator.block.mlp)
        frozen = cast(FrozenExperts, mlp.experts)
        adapted = AdaptedExperts(frozen, speculator.arch, parts.lora_rank, parts.lora_alpha, seed)
        mlp.experts = adapted.to(device=device, dtype=dtype)
    return speculator


def trained_tensors(
    speculator: MTPSpeculator, state: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """What training may have changed, under the checkpoint's names without the prefix.

    Adapters are merged into their experts in float32. `state` is the whole state dict: under
    ZeRO-3 the module itself holds shards.
    """
    buffers = {name for name, _ in speculator.named_buffers()}
    weights = {name: value for name, value in state.items() if name not in buffers}
    adapters = {name: weights.pop(EXPERTS + name) for name in ADAPTERS if EXPERTS + name in weights}
    yield from checkpoint_names(weights).items()
    if adapters:
        mlp = cast(MixtureOfExperts, speculator.block.mlp)
        yield from cast(AdaptedExperts, mlp.experts).merged(adapters)
