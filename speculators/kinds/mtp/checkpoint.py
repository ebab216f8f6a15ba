"""Reads MTP layers, and writes directories that the serving engine loads.

    speculator = load_mtp(target_dir)                  # or a directory that `write_mtp` made

The functions implement the kind's methods (mtp/kind.py). The layer's tensors are
`model.layers.{num_hidden_layers}.*`, separate for each expert. A speculator's directory holds only
the target's full config.json and those tensors. After loading, vLLM 0.32 (deepseek_mtp.py,
glm4_moe_mtp.py, llm_base_proposer.py) replaces the draft's `embed_tokens` and `shared_head.head`
with the target's modules, so copies in checkpoints are neither read nor written. (With pipeline
parallelism, vLLM would need `embed_tokens`.) Only shards with tensors of the layer are opened.

Each tensor is written in the base's precision, since vLLM builds the drafter with the target's
quantization: FP8 blocks stay FP8 blocks, and the rest (eh_proj, norms, the router and its bias)
keeps its dtype. Unchanged tensors and their scales are copied byte for byte.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.checks import check_names
from outrider.speculators.checkpoints.layout import SCALE_SUFFIX, read_layout
from outrider.speculators.checkpoints.model_config import read_head_config
from outrider.speculators.checkpoints.tensors import (
    CheckpointTensors,
    fill,
    write_checkpoint,
)
from outrider.speculators.kinds.mtp.check import layer_prefix, mtp_tensor_names
from outrider.speculators.kinds.mtp.layer import MTPSpeculator
from outrider.speculators.kinds.protocol import Origin
from outrider.speculators.layers.decoder_layer import MixtureOfExperts, expert_name
from outrider.speculators.layers.lora import ADAPTERS, ALPHA, AdaptedExperts

EXPERTS = "block.mlp.experts."

KEPT_IN_FLOAT32 = "mlp.gate.e_score_correction_bias"
"""The routing bias; differences as small as 1e-3 decide between experts."""


def load_mtp(
    directory: Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    frozen_experts: bool = False,
) -> MTPSpeculator:
    """Loads a target's or speculator's MTP layer; FP8 weights are dequantized.

    With `frozen_experts`, the routed experts are not parameters (`Experts`).
    """
    layout = read_layout(directory)
    dense = layout.config["num_hidden_layers"] < layout.config["first_k_dense_replace"]
    if frozen_experts and dense:
        raise OutriderError(
            f"{layout.directory / 'config.json'}: the MTP layer has a dense MLP and no routed"
            " experts to freeze; set speculator.train: all"
        )
    with torch.device("meta"):
        speculator = MTPSpeculator(layout.config, frozen_experts)
    speculator = speculator.to_empty(device=device).to(dtype)
    if isinstance(speculator.block.mlp, MixtureOfExperts):
        gate = speculator.block.mlp.gate  # a bf16 bias would choose other experts
        gate.e_score_correction_bias = gate.e_score_correction_bias.float()
    stored = CheckpointTensors(layout)
    prefix = layer_prefix(layout.config)
    stored_names = {name.removeprefix(prefix) for name in mtp_tensor_names(layout)}
    stacks = dict(speculator.named_parameters()) | dict(speculator.named_buffers())
    views = mtp_checkpoint_tensors({name: stack.detach() for name, stack in stacks.items()})
    scales = {name + SCALE_SUFFIX for name in views} & stored_names
    check_names(layout.directory, stored_names, views.keys() | scales)
    fill(views, lambda suffix: stored.read(prefix + suffix, torch.float32), directory)
    return speculator


def start_mtp(
    origin: Origin, dtype: torch.dtype, device: torch.device | str, seed: int
) -> MTPSpeculator:
    """The base's MTP layer; only trained weights are parameters (`speculator.train`).

    all          every weight is a parameter
    non_routed   the routed experts are frozen
    lora         non_routed plus low-rank expert adapters, drawn from `seed` (layers/lora.py)

    Every process holds all frozen experts, and a resumed run reads them from the base again.
    """
    base_dir = origin.base_dir or origin.target_dir
    speculator = load_mtp(base_dir, dtype, device, frozen_experts=origin.train != "all")
    if origin.train == "lora":
        mlp = cast(MixtureOfExperts, speculator.block.mlp)
        adapted = AdaptedExperts(mlp.experts, origin.lora_rank, ALPHA, seed)
        mlp.experts = adapted.to(device=device, dtype=dtype)
    return speculator


def trained_mtp_tensors(
    speculator: MTPSpeculator, state: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yields the trained weights under the checkpoint's names without the prefix.

    Adapters are merged into their experts in float32.
    """
    buffers = {name for name, _ in speculator.named_buffers()}
    weights = {name: value for name, value in state.items() if name not in buffers}
    adapters = {name: weights.pop(EXPERTS + name) for name in ADAPTERS if EXPERTS + name in weights}
    yield from mtp_checkpoint_tensors(weights).items()
    if adapters:
        mlp = cast(MixtureOfExperts, speculator.block.mlp)
        yield from cast(AdaptedExperts, mlp.experts).merge_adapters(adapters)


def write_mtp(changed: Iterable[tuple[str, Tensor]], origin: Origin, out_dir: Path) -> None:
    """Publishes the layer with the `changed` tensors, named without the prefix.

    The rest is copied from the base byte for byte.
    """
    layout = read_layout(origin.base_dir or origin.target_dir)
    stored = CheckpointTensors(layout)
    prefix = layer_prefix(layout.config)
    written: dict[str, Tensor] = {}
    for suffix, tensor in changed:
        written |= stored.encode(prefix + suffix, tensor.detach().cpu())
    for name in mtp_tensor_names(layout) - written.keys():
        written[name] = stored.raw(name)
    write_checkpoint(layout.config, written, out_dir)


def mtp_swap_tensors(directory: Path) -> Iterator[tuple[str, Tensor]]:
    """Yields (full name, tensor as stored), without copies of embedding and head."""
    layout = read_layout(directory)
    stored = CheckpointTensors(layout)
    for name in sorted(mtp_tensor_names(layout)):
        yield name, stored.raw(name)


def write_nextn(directory: Path, out_dir: Path) -> None:
    """Publishes `sglang_nextn`: the layer as the draft model that SGLang loads.

    SGLang calls the layer NextN and loads it as a one-layer model: the tensors are
    `model.layers.0.*`, and config.json is the target's with the NextN architecture and
    `num_hidden_layers` 1. SGLang 0.5.23 also loads the plain directory (test_sglang.py). Source:
    sgl-project/sglang 0.5.23: models/deepseek_nextn.py, models/glm4_moe_nextn.py and
    models/deepseek_common/deepseek_weight_loader.py.
    """
    config = read_head_config(Path(directory) / "config.json")
    prefix = layer_prefix(config)
    renamed = {
        "model.layers.0." + name.removeprefix(prefix): tensor
        for name, tensor in mtp_swap_tensors(directory)
    }
    nextn = config["architectures"][0] + "NextN"
    config |= {"architectures": [nextn], "num_hidden_layers": 1}
    write_checkpoint(config, renamed, out_dir / "sglang_nextn")


def mtp_checkpoint_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a speculator's state dict under the checkpoint's names."""
    views: dict[str, Tensor] = {}
    for name, tensor in state.items():
        suffix = "shared_head.norm.weight" if name == "norm.weight" else name.removeprefix("block.")
        views.update(experts_apart(suffix, tensor))
    return views


def experts_apart(suffix: str, tensor: Tensor) -> dict[str, Tensor]:
    """Splits a `DecoderLayer` tensor into per-expert views, under the checkpoint's names."""
    if suffix == "mlp.experts.gate_up_proj":
        return {
            expert_name(expert, name): view
            for expert, both in enumerate(tensor)
            for name, view in zip(("gate_proj", "up_proj"), both.chunk(2), strict=True)
        }
    if suffix == "mlp.experts.down_proj":
        return {expert_name(expert, "down_proj"): down for expert, down in enumerate(tensor)}
    return {suffix: tensor}
