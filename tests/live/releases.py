"""Small releases for tests: bundles of the embedded target's own layer, sound and broken."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from outrider.serving.bundle.bundle_digest import bundle_digest, listing
from outrider.speculators.kinds.mtp.kind import MTP

WEIGHTS = "model.safetensors"


def release(target: Path, folder: Path, noise: float = 0.0, **manifest: Any) -> Path:
    """A bundle of the target's layer; `noise` is added to the projection, relative to it."""
    folder.mkdir(parents=True)
    tensors = dict(MTP().swap_tensors(target))
    for name in [name for name in tensors if name.endswith("eh_proj.weight")]:
        weight = tensors[name].float()
        tensors[name] = (weight + noise * weight.std() * torch.randn_like(weight)).to(
            tensors[name].dtype
        )
    shutil.copyfile(target / "config.json", folder / "config.json")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
    listed(folder, **manifest)
    return folder


def listed(folder: Path, **manifest: Any) -> str:
    """Writes bundle.json; returns the bundle's digest."""
    (folder / "bundle.json").write_text(json.dumps(listing(folder) | manifest))
    return bundle_digest(folder)


def edited(folder: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    """Changes a release's tensors and lists the files again."""
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
    listed(folder)
    return folder


def truncated(folder: Path, relist: bool = True) -> Path:
    """Cuts the weights in half."""
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])
    if relist:
        listed(folder)
    return folder
