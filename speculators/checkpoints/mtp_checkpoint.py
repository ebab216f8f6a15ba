"""Reads the MTP layer out of a target's checkpoint, and writes one that the serving engine loads.

    speculator = load_mtp(target_dir)                  # or a directory that save_mtp wrote
    ends = load_target_ends(target_dir)
    save_mtp(speculator, target_dir, "runs/NAME/speculator")

The layer stands at `model.layers.{num_hidden_layers}.*`, experts one by one, as DeepSeek names them. A speculator's directory
holds the target's full config.json and those tensors only: vLLM (0.32, deepseek_mtp.py and llm_base_proposer.py) replaces the
draft's `embed_tokens` and `shared_head.head` by the target's own modules after loading, so the copies that DeepSeek ships
are neither read nor written. (With pipeline parallelism it would want `embed_tokens`.) Only the shards that hold a wanted
tensor are opened.

What is written has the target's own precision, tensor by tensor, since vLLM builds the drafter with the target's quantization: a
weight that DeepSeek ships in FP8 blocks leaves in FP8 blocks, the rest (eh_proj, norms, the router and its bias) as it came. What has
not changed is copied, scales and all, so that its bytes are the target's.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from outrider.common.errors import OutriderError
from outrider.common.files import publish
from outrider.speculators.checkpoints.fp8 import FP8, dequantize, grid, quantize
from outrider.speculators.checkpoints.layout import SCALE_SUFFIX, CheckpointLayout, read_layout
from outrider.speculators.layers.deepseek_layer import DeepseekArch
from outrider.speculators.layers.frozen_experts import (
    PROJECTIONS,
    FrozenExperts,
    Stack,
    expert_name,
)
from outrider.speculators.layers.mtp_layer import MTPSpeculator, TargetEnds

KEPT_IN_FLOAT32 = "mlp.gate.e_score_correction_bias"
"""The routing bias decides by differences of 1e-3 which expert is chosen: never rounded."""


def load_target_ends(target_dir: Path, dtype: torch.dtype = torch.float32) -> TargetEnds:
    """The target's embedding and head, from the shards that hold them."""
    layout = read_layout(target_dir)
    tensors = _Tensors(layout)
    shape = (layout.config["vocab_size"], layout.config["hidden_size"])
    embedding, head = (
        _checked(layout, name, tensors.read(name, dtype), shape) for name in layout.ends
    )
    return TargetEnds(embedding, head)


def load_mtp(
    directory: Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    frozen_experts: bool = False,
) -> MTPSpeculator:
    """The MTP layer of a target's or a speculator's directory, FP8 dequantized to `dtype`.

    With `frozen_experts` the routed experts are no parameters and stay in the checkpoint's own precision (frozen.py). What is not
    loaded would stay NaN, and nothing may.
    """
    layout = read_layout(directory)
    arch = DeepseekArch.from_config(layout.config)
    if arch.mtp_layers != 1:
        raise OutriderError(
            f"{layout.directory / 'config.json'}: num_nextn_predict_layers is {arch.mtp_layers}, but Outrider trains targets with"
            " exactly 1 multi-token prediction layer; point target.model at a checkpoint that has one (DeepSeek-V3 and R1"
            " do), and mind that conversions to other formats often drop it"
        )
    with torch.device("meta"):
        speculator = MTPSpeculator(arch)
    if frozen_experts:
        speculator.block.mlp.experts = FrozenExperts(arch, _empty_stacks(layout, arch))
    speculator = speculator.to_empty(device=device).to(dtype)
    with torch.no_grad():
        for tensor in speculator.state_dict().values():
            tensor.fill_(float("nan"))
    # The routing bias keeps its own dtype whatever the weights are.
    _restore_float32_buffers(speculator)
    views = checkpoint_views(speculator)
    experts = (
        [(e, name) for e in range(arch.experts) for name in PROJECTIONS] if frozen_experts else []
    )
    _compare_names(layout, {*views, *(expert_name(*each) for each in experts)})
    tensors = _Tensors(layout)
    with torch.no_grad():
        for suffix, view in views.items():
            name = layout.prefix + suffix
            view.copy_(_checked(layout, name, tensors.read(name, torch.float32), view.shape))
    for expert, name in experts:
        _fill(
            speculator.block.mlp.experts.stacks[name],
            expert,
            layout.prefix + expert_name(expert, name),
            tensors,
        )
    broken = [
        name for name, tensor in speculator.state_dict().items() if not tensor.isfinite().all()
    ]
    if broken:
        raise OutriderError(
            f"{layout.directory}: not a finite number in {', '.join(broken)}; the checkpoint is damaged"
        )
    return speculator


def save_mtp(speculator: MTPSpeculator, target_dir: Path, out_dir: Path) -> None:
    """Publishes a directory for `--speculative-config '{"method": "mtp", "model": OUT_DIR, ...}'`, atomically."""
    write_mtp(checkpoint_views(speculator).items(), target_dir, out_dir)


def write_mtp(changed: Iterable[tuple[str, Tensor]], target_dir: Path, out_dir: Path) -> None:
    """As `save_mtp`, from (name less the layer's prefix, tensor) of what may have changed; the rest is the target's, byte for byte."""
    layout = read_layout(target_dir)
    tensors = _Tensors(layout)
    written: dict[str, Tensor] = {}
    for suffix, tensor in changed:
        written |= _encode(tensors, layout.prefix + suffix, tensor.detach().cpu())
    for suffix in layout.mtp_suffixes():
        name = layout.prefix + suffix
        if name not in written:
            written[name] = tensors.raw(name)
    with publish(Path(out_dir)) as temporary:
        temporary.mkdir()
        save_file(written, temporary / "model.safetensors", metadata={"format": "pt"})
        (temporary / "config.json").write_text(
            json.dumps(layout.config, indent=2) + "\n", encoding="utf-8"
        )


def read_mtp_tensors(directory: Path) -> Iterator[tuple[str, Tensor]]:
    """(name less the layer's prefix, tensor in float32) of the MTP layer, one at a time, in the order of their names."""
    layout = read_layout(directory)
    tensors = _Tensors(layout)
    for suffix in sorted(name for name in layout.mtp_suffixes() if not name.endswith(SCALE_SUFFIX)):
        yield suffix, tensors.read(layout.prefix + suffix, torch.float32)


def checkpoint_views(speculator: MTPSpeculator) -> dict[str, Tensor]:
    """The speculator's tensors under the checkpoint's names (less the layer's prefix): views, for reading and for writing."""
    return checkpoint_names(speculator.state_dict())


def checkpoint_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same of a speculator's state dict."""
    views: dict[str, Tensor] = {}
    for name, tensor in state.items():
        suffix = "shared_head.norm.weight" if name == "norm.weight" else name.removeprefix("block.")
        views.update(experts_apart(suffix, tensor))
    return views


def experts_apart(suffix: str, tensor: Tensor) -> dict[str, Tensor]:
    """Views of one tensor of a `DecoderLayer` under the checkpoint's names: stacked experts one by one, the rest as it is."""
    if suffix == "mlp.experts.gate_up_proj":
        views = {}
        for expert, both in enumerate(tensor):
            views[expert_name(expert, "gate_proj")], views[expert_name(expert, "up_proj")] = (
                both.chunk(2)
            )
        return views
    if suffix == "mlp.experts.down_proj":
        return {expert_name(expert, "down_proj"): down for expert, down in enumerate(tensor)}
    return {suffix: tensor}


class _Tensors:
    """A checkpoint's tensors, as they are stored or dequantized. A shard is opened when its first tensor is wanted."""

    def __init__(self, layout: CheckpointLayout):
        self.layout = layout
        self._files: dict[str, safe_open] = {}

    def raw(self, name: str) -> Tensor:
        """As the file has it."""
        [file] = self.layout.files([name])
        if file not in self._files:
            path = self.layout.directory / file
            if not path.is_file():
                raise OutriderError(f"{path}: no such file, though the index says it holds {name}")
            self._files[file] = safe_open(path, framework="pt")
        return self._files[file].get_tensor(name)

    def stored(self, name: str) -> tuple[Tensor, Tensor | None]:
        """The values and, where they are FP8, their scales: one without the other, or of another shape, is an `OutriderError`."""
        value, scale_name = self.raw(name), self.layout.scale_of(name)
        if scale_name is None:
            if value.dtype == FP8:
                raise OutriderError(
                    f"{self.layout.directory}: {name} is FP8, but there is no {name}{SCALE_SUFFIX}"
                )
            return value, None
        if self.layout.blocks is None:
            raise OutriderError(
                f"{self.layout.directory}: {scale_name} is there, but config.json has no quantization_config"
            )
        scale, expected = self.raw(scale_name), grid(value.shape, self.layout.blocks)
        if value.dtype != FP8 or tuple(scale.shape) != expected:
            raise OutriderError(
                f"{self.layout.directory}: {name} is {value.dtype} of shape {tuple(value.shape)} and {scale_name} of shape"
                f" {tuple(scale.shape)}, but blocks of {self.layout.blocks} want {FP8} and {expected}; the weights and"
                " config.json belong to different models"
            )
        return value, scale

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """The weight, dequantized where it is FP8."""
        value, scale = self.stored(name)
        return (
            value.to(dtype)
            if scale is None
            else dequantize(value, scale, self.layout.blocks, dtype)
        )


def _encode(tensors: _Tensors, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """The tensor as the target stores its own: quantized with scales, or in its dtype."""
    value, scale = tensors.stored(name)
    _checked(tensors.layout, name, tensor, value.shape)
    if scale is None:
        return {name: tensor.to(value.dtype).contiguous().clone()}
    scale_name = tensors.layout.scale_of(name)
    # Trained weights come in bf16: what is the same in it was not trained, and quantizing it again could move it.
    before = dequantize(value, scale, tensors.layout.blocks, torch.bfloat16)
    if not torch.equal(before, tensor.to(torch.bfloat16)):
        value, scale = quantize(tensor, tensors.layout.blocks)
    return {name: value, scale_name: scale}


def _empty_stacks(layout: CheckpointLayout, arch: DeepseekArch) -> dict[str, Stack]:
    if arch.layers < arch.dense_layers:
        raise OutriderError(
            f"{layout.directory / 'config.json'}: the MTP layer has a dense MLP and no routed experts to freeze; set"
            " speculator.train: all"
        )
    tensors, stacks = _Tensors(layout), {}
    for name in PROJECTIONS:
        value, scale = tensors.stored(layout.prefix + expert_name(0, name))
        stacks[name] = Stack(
            torch.empty(arch.experts, *value.shape, dtype=value.dtype),
            None if scale is None else torch.empty(arch.experts, *scale.shape, dtype=scale.dtype),
            layout.blocks,
        )
    return stacks


def _fill(stack: Stack, expert: int, name: str, tensors: _Tensors) -> None:
    value, scale = tensors.stored(name)
    _checked(tensors.layout, name, value, stack.value_XOI.shape[1:])
    # e4m3 has no infinity, and one pattern for what is no number: all ones below the sign.
    damaged = (
        (value.view(torch.uint8) & 0x7F == 0x7F).any()
        if scale is not None
        else not value.isfinite().all()
    )
    if damaged or (scale is not None and not scale.isfinite().all()):
        raise OutriderError(
            f"{tensors.layout.directory}: not a finite number in {name}; the checkpoint is damaged"
        )
    stack.value_XOI[expert].copy_(value)
    if scale is not None:
        stack.scale_XPQ[expert].copy_(scale)


def _checked(layout: CheckpointLayout, name: str, tensor: Tensor, shape: Iterable[int]) -> Tensor:
    if tuple(tensor.shape) != tuple(shape):
        raise OutriderError(
            f"{layout.directory}: {name} has shape {tuple(tensor.shape)}, but config.json makes it {tuple(shape)}; the weights"
            " and config.json belong to different models"
        )
    return tensor


def _restore_float32_buffers(speculator: MTPSpeculator) -> None:
    for module in speculator.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.float())


def _compare_names(layout: CheckpointLayout, expected: set[str]) -> None:
    present, prefix = layout.mtp_suffixes(), layout.prefix
    expected = expected | {name + SCALE_SUFFIX for name in expected} & present
    missing, unexpected = sorted(expected - present), sorted(present - expected)
    if not present:
        raise OutriderError(
            f"{layout.directory}: no tensor named {prefix}*, though num_nextn_predict_layers in config.json promises a multi-token"
            " prediction layer; conversions often drop it: use the original checkpoint"
        )
    if missing or unexpected:

        def some(names: list[str]) -> str:
            return ", ".join(prefix + name for name in names[:5]) + (
                f" and {len(names) - 5} more" if names[5:] else ""
            )

        parts = [f"missing: {some(missing)}"] if missing else []
        parts += [f"unexpected: {some(unexpected)}"] if unexpected else []
        raise OutriderError(
            f"{layout.directory}: the tensors of {prefix}* do not fit config.json; {'; '.join(parts)}"
        )
