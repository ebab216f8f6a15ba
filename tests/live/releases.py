"""Small releases for tests: bundles of the embedded target's own layer, with noise or without."""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from outrider.common.files import write_json
from outrider.serving.bundle.bundle_digest import list_files
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


def listed(folder: Path, **manifest: Any) -> None:
    """Writes bundle.json."""
    write_json(folder / "bundle.json", list_files(folder) | manifest)
