"""Reads the MTP layer out of a checkpoint, and writes one that the serving engine loads.

    speculator = load_mtp(target_dir)                  # or a directory that write_mtp made
    save_mtp(speculator, target_dir, "runs/NAME/speculator")

The layer's tensors are `model.layers.{num_hidden_layers}.*`, experts one by one, as DeepSeek names
them. A speculator's directory holds the target's full config.json and those tensors only: vLLM
(0.32, deepseek_mtp.py and llm_base_proposer.py) replaces the draft's `embed_tokens` and
`shared_head.head` by the target's own modules after loading, so the copies that DeepSeek ships are
neither read nor written. (With pipeline parallelism it would need `embed_tokens`.) Only the shards
with a tensor of the layer are opened.

Written tensors have the base's own precision, one by one, since vLLM builds the drafter with the
target's quantization: FP8 blocks stay FP8 blocks, the rest (eh_proj, norms, the router and its
bias) keeps its dtype. Unchanged tensors are copied, scales included, so their bytes are the base's.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.speculators.checkpoints.layout import SCALE_SUFFIX, CheckpointLayout, read_layout
from outrider.speculators.checkpoints.tensors import CheckpointTensors, check_tensor_shape
from outrider.speculators.checkpoints.write import write_checkpoint
from outrider.speculators.kinds.mtp.layer import MTPSpeculator
from outrider.speculators.kinds.mtp.tensors import MTPTensors, is_shared, layer_prefix
from outrider.speculators.layers.deepseek_layer import DeepseekArch
from outrider.speculators.layers.frozen_experts import (
    PROJECTIONS,
    FrozenExperts,
    Stack,
    expert_name,
)

KEPT_IN_FLOAT32 = "mlp.gate.e_score_correction_bias"
"""The routing bias, never rounded: differences of 1e-3 in it decide which expert is chosen."""


def load_mtp(
    directory: Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    frozen_experts: bool = False,
) -> MTPSpeculator:
    """The MTP layer of a target's or a speculator's directory, FP8 dequantized to `dtype`.

    With `frozen_experts` the routed experts are no parameters and keep the checkpoint's precision
    (layers/frozen_experts.py). Every weight starts as NaN, and none may be left NaN.
    """
    layout = read_layout(directory)
    arch = DeepseekArch.from_config(layout.config)
    if arch.mtp_layers != 1:
        raise OutriderError(
            f"{layout.directory / 'config.json'}: num_nextn_predict_layers is {arch.mtp_layers},"
            " but Outrider trains targets with exactly 1 multi-token prediction layer; point"
            " target.model at a checkpoint that has one (DeepSeek-V3 and R1 do; conversions to"
            " other formats often drop it)"
        )
    with torch.device("meta"):
        speculator = MTPSpeculator(arch)
    frozen = FrozenExperts(arch, _empty_stacks(layout, arch)) if frozen_experts else None
    if frozen is not None:
        speculator.block.mlp.experts = frozen
    speculator = speculator.to_empty(device=device).to(dtype)
    with torch.no_grad():
        for tensor in speculator.state_dict().values():
            tensor.fill_(float("nan"))
    # The routing bias keeps its dtype in any dtype of the weights.
    _restore_float32_buffers(speculator)
    views = checkpoint_views(speculator)
    experts = list(itertools.product(range(arch.experts), PROJECTIONS)) if frozen_experts else []
    layer = MTPTensors(layout)
    _compare_names(layer, {*views, *(expert_name(*each) for each in experts)})
    tensors = CheckpointTensors(layout)
    with torch.no_grad():
        for suffix, view in views.items():
            name = layer.prefix + suffix
            value = tensors.read(name, torch.float32)
            view.copy_(check_tensor_shape(layout, name, value, view.shape))
    if frozen is not None:
        for expert, projection in experts:
            name = layer.prefix + expert_name(expert, projection)
            _fill(frozen.stacks[projection], expert, name, tensors)
    # Expert by expert: isfinite makes a copy of its tensor, 30 GB of a stack in float32.
    broken = [suffix for suffix, view in views.items() if not view.isfinite().all()]
    if broken:
        raise OutriderError(
            f"{layout.directory}: not a finite number in {', '.join(broken)}; the checkpoint is"
            " damaged"
        )
    return speculator


def load_to_replay(
    directory: Path, dtype: torch.dtype, device: torch.device | str
) -> MTPSpeculator:
    """As `load_mtp`, for a layer that is not trained: experts stored in FP8 stay so.

    R1's take 11.3 GB then, not 45 in float32. Their values are the same.
    """
    layout = read_layout(directory)
    arch = DeepseekArch.from_config(layout.config)
    in_fp8 = layout.blocks is not None and arch.layers >= arch.dense_layers
    return load_mtp(directory, dtype, device, frozen_experts=in_fp8)


def save_mtp(speculator: MTPSpeculator, base_dir: Path, out_dir: Path) -> None:
    """Publishes a directory that vLLM's method `mtp` loads, atomically."""
    write_mtp(checkpoint_views(speculator).items(), base_dir, out_dir)


def write_mtp(changed: Iterable[tuple[str, Tensor]], base_dir: Path, out_dir: Path) -> None:
    """As `save_mtp`, from (name without the layer's prefix, tensor) of what may have changed.

    The rest is copied from `base_dir`, byte for byte.
    """
    layout = read_layout(base_dir)
    layer, tensors = MTPTensors(layout), CheckpointTensors(layout)
    written: dict[str, Tensor] = {}
    for suffix, tensor in changed:
        written |= tensors.encode(layer.prefix + suffix, tensor.detach().cpu())
    for name in layer.names:
        if name not in written:
            written[name] = tensors.raw(name)
    write_checkpoint(layout.config, written, out_dir)


def read_mtp_tensors(directory: Path) -> Iterator[tuple[str, Tensor]]:
    """(name without the prefix, float32 tensor) of the layer, one at a time, ordered by name."""
    layout = read_layout(directory)
    layer, tensors = MTPTensors(layout), CheckpointTensors(layout)
    for suffix in sorted(name for name in layer.suffixes if not name.endswith(SCALE_SUFFIX)):
        yield suffix, tensors.read(layer.prefix + suffix, torch.float32)


def stored_mtp_tensors(directory: Path) -> Iterator[tuple[str, Tensor]]:
    """(full name, tensor as stored) of the layer without copies of embedding and head."""
    prefix = layer_prefix(read_json(directory / "config.json"))
    shards = sorted(directory.glob("*.safetensors"))
    if not shards:
        raise OutriderError(f"{directory}: no *.safetensors here")
    for shard in shards:
        with safe_open(shard, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (a safetensors file is no dict)
                if name.startswith(prefix) and not is_shared(name):
                    yield name, tensors.get_tensor(name)


def checkpoint_views(speculator: MTPSpeculator) -> dict[str, Tensor]:
    """Views of the speculator's tensors under the checkpoint's names, without the prefix."""
    return checkpoint_names(speculator.state_dict())


def checkpoint_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a speculator's state dict under the checkpoint's names."""
    views: dict[str, Tensor] = {}
    for name, tensor in state.items():
        suffix = "shared_head.norm.weight" if name == "norm.weight" else name.removeprefix("block.")
        views.update(experts_apart(suffix, tensor))
    return views


def experts_apart(suffix: str, tensor: Tensor) -> dict[str, Tensor]:
    """Views of one tensor of a `DecoderLayer` under the checkpoint's names, one for each expert."""
    if suffix == "mlp.experts.gate_up_proj":
        views = {}
        for expert, both in enumerate(tensor):
            gate, up = both.chunk(2)
            views[expert_name(expert, "gate_proj")] = gate
            views[expert_name(expert, "up_proj")] = up
        return views
    if suffix == "mlp.experts.down_proj":
        return {expert_name(expert, "down_proj"): down for expert, down in enumerate(tensor)}
    return {suffix: tensor}


def _empty_stacks(layout: CheckpointLayout, arch: DeepseekArch) -> dict[str, Stack]:
    """Stacks for the routed experts in the precision that the checkpoint stores."""
    if arch.layers < arch.dense_layers:
        raise OutriderError(
            f"{layout.directory / 'config.json'}: the MTP layer has a dense MLP and no routed"
            " experts to freeze; set speculator.train: all"
        )
    tensors, prefix = CheckpointTensors(layout), MTPTensors(layout).prefix
    stacks = {}
    for name in PROJECTIONS:
        value, scale = tensors.stored(prefix + expert_name(0, name))
        scales = None
        if scale is not None:
            scales = torch.empty(arch.experts, *scale.shape, dtype=scale.dtype)
        values = torch.empty(arch.experts, *value.shape, dtype=value.dtype)
        stacks[name] = Stack(values, scales, layout.blocks)
    return stacks


def _fill(stack: Stack, expert: int, name: str, tensors: CheckpointTensors) -> None:
    """Copies one expert's projection into its stack."""
    layout = tensors.layout
    value, scale = tensors.stored(name)
    check_tensor_shape(layout, name, value, stack.value_XOI.shape[1:])
    if scale is None:
        damaged = not bool(value.isfinite().all())
    else:
        # e4m3 has no infinity, and one bit pattern for NaN: all ones below the sign.
        nan = (value.view(torch.uint8) & 0x7F == 0x7F).any()
        damaged = bool(nan) or not bool(scale.isfinite().all())
    if damaged:
        raise OutriderError(
            f"{layout.directory}: not a finite number in {name}; the checkpoint is damaged"
        )
    stack.value_XOI[expert].copy_(value)
    if scale is not None and stack.scale_XPQ is not None:
        stack.scale_XPQ[expert].copy_(scale)


def _restore_float32_buffers(speculator: MTPSpeculator) -> None:
    for module in speculator.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.float())


def _compare_names(layer: MTPTensors, expected: set[str]) -> None:
    """The checkpoint has the expected tensors of the layer and no others."""
    directory, prefix, present = layer.layout.directory, layer.prefix, layer.suffixes
    expected = expected | {name + SCALE_SUFFIX for name in expected} & present
    if not present:
        raise OutriderError(
            f"{directory}: no tensor named {prefix}*, though num_nextn_predict_layers in"
            " config.json promises a multi-token prediction layer; conversions often drop it: use"
            " the original checkpoint"
        )
    parts = []
    for what, names in (("missing", expected - present), ("unexpected", present - expected)):
        if names:
            some = ", ".join(prefix + name for name in sorted(names)[:5])
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            parts.append(f"{what}: {some}{more}")
    if parts:
        raise OutriderError(
            f"{directory}: the tensors of {prefix}* do not fit config.json; {'; '.join(parts)}"
        )
