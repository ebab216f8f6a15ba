"""Reads and encodes checkpoint tensors, including FP8 blocks; publishes checkpoints.

tensors = CheckpointTensors(read_layout(directory))
tensors.read("lm_head.weight", torch.float32)
write_checkpoint(config, {"fc.weight": tensor}, out_dir)
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from outrider.common.errors import OutriderError
from outrider.common.files import publish
from outrider.speculators.checkpoints.fp8 import FP8, dequantize, quantize, scale_shape
from outrider.speculators.checkpoints.layout import SCALE_SUFFIX, CheckpointLayout, fp8_blocks


class CheckpointTensors:
    """A checkpoint's tensors by name; only shards that are read must exist."""

    def __init__(self, layout: CheckpointLayout):
        self.layout = layout
        self._files: dict[Path, Any] = {}

    def raw(self, name: str) -> Tensor:
        """Reads the tensor as stored."""
        path = self.layout.directory / self.layout.files([name])[0]
        if path not in self._files:  # each shard is mapped once
            if not path.is_file():
                raise OutriderError(f"{path}: no such file, though the index lists {name} in it")
            self._files[path] = safe_open(path, "pt")
        return self._files[path].get_tensor(name)

    def stored(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Reads the values and, for an FP8 tensor, its scales.

        Raises an `OutriderError` if values or scales are missing or have the wrong shape.
        """
        value = self.raw(name)
        scale_name = name + SCALE_SUFFIX
        if scale_name not in self.layout.weight_map:
            if value.dtype == FP8:
                raise OutriderError(
                    f"{self.layout.directory}: {name} is FP8, but there is no {scale_name}"
                )
            return value, None
        if self.layout.blocks is None:
            fp8_blocks(self.layout.config, self.layout.directory / "config.json")
            raise OutriderError(
                f"{self.layout.directory}: {scale_name} exists, but config.json has no"
                " quantization_config"
            )
        scale = self.raw(scale_name)
        expected = scale_shape(value.shape, self.layout.blocks)
        if value.dtype != FP8 or tuple(scale.shape) != expected:
            raise OutriderError(
                f"{self.layout.directory}: {name} is {value.dtype} of shape {tuple(value.shape)}"
                f" and {scale_name} of shape {tuple(scale.shape)}, but blocks of"
                f" {self.layout.blocks} need {FP8} and {expected}; the weights and config.json"
                " belong to different models"
            )
        return value, scale

    def read(self, name: str, dtype: torch.dtype, narrow: bool = False) -> Tensor:
        """Reads the weight in `dtype`, dequantized if it is FP8.

        With `narrow`, a weight without scales keeps its stored dtype if that is narrower.
        """
        value, scale = self.stored(name)
        if scale is None or self.layout.blocks is None:
            return value if narrow and value.itemsize < dtype.itemsize else value.to(dtype)
        return dequantize(value, scale, self.layout.blocks, dtype)

    def encode(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """Encodes `tensor` in the stored format of `name`, such as FP8.

        Unchanged values keep the stored bytes.
        """
        value, scale = self.stored(name)
        check_tensor_shape(self.layout, name, tensor, value.shape)
        if scale is None or self.layout.blocks is None:
            return {name: tensor.to(value.dtype).contiguous().clone()}
        # Trained weights are bf16. Values that are equal in bf16 were not trained, and quantizing
        # them again could change their bytes.
        before = dequantize(value, scale, self.layout.blocks, torch.bfloat16)
        if not torch.equal(before, tensor.to(torch.bfloat16)):
            value, new_scale = quantize(tensor, self.layout.blocks, self.layout.powers_of_two)
            scale = new_scale.to(scale.dtype)
        return {name: value, name + SCALE_SUFFIX: scale}


def fill(views: Mapping[str, Tensor], read: Callable[[str], Tensor], where: object) -> None:
    """Copies `read(name)` into each of a module's `views`; all values must be finite."""
    with torch.no_grad():
        for name, view in views.items():
            value = read(name)
            if value.numel() != view.numel() or value.shape[-1] != view.shape[-1]:
                raise OutriderError(
                    f"{where}: {name} has shape {tuple(value.shape)}, but config.json requires"
                    f" {tuple(view.shape)}; the weights and config.json belong to different models"
                )
            view.copy_(value.view(view.shape))
    # Tensor by tensor, since isfinite makes a copy, and R1's gate_up stack takes 30 GB in float32.
    broken = [name for name, view in views.items() if not view.isfinite().all()]
    if broken:
        raise OutriderError(
            f"{where}: not a finite number in {', '.join(broken)}; the checkpoint is damaged"
        )


def check_tensor_shape(
    layout: CheckpointLayout, name: str, tensor: Tensor, shape: Iterable[int]
) -> None:
    """Raises an `OutriderError` if the tensor does not have this shape."""
    if tuple(tensor.shape) != tuple(shape):
        raise OutriderError(
            f"{layout.directory}: {name} has shape {tuple(tensor.shape)}, but config.json requires"
            f" {tuple(shape)}; the weights and config.json belong to different models"
        )


def write_checkpoint(config: Mapping[str, Any], tensors: dict[str, Tensor], out_dir: Path) -> None:
    """Publishes the checkpoint atomically; tensors must be contiguous and share no memory.

    `auto_map` is left out: it names Python files, as DeepSeek-R1's does, that are not written. With
    `--trust-remote-code`, vLLM and SGLang would not start without them.
    """
    config = {key: value for key, value in config.items() if key != "auto_map"}
    with publish(Path(out_dir)) as temporary:
        temporary.mkdir()
        save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
        text = json.dumps(config, indent=2) + "\n"
        (temporary / "config.json").write_text(text, encoding="utf-8")
