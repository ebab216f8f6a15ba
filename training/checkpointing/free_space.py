"""Preflight check of free disk space, before a checkpoint is written.

    require_space(directory, 3 * 2**30, "a checkpoint")

Ours because DeepSpeed finds out while it writes, in one rank. With the check a full disk stops the
run while the last checkpoint is untouched.
"""

import shutil
from pathlib import Path

from torch import nn

from outrider.common.errors import OutriderError

_STATE_BYTES = 12
"""Bytes of a trained parameter's float32 master and two moments."""

_SPARE_BYTES = 2**20
"""Bytes for structure, padding, random states and state.json."""


def require_space(directory: Path, needed: int, what: str) -> None:
    """Raises an `OutriderError` unless the disk of `directory` has `needed` bytes free."""
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise OutriderError(
            f"{directory}: {what} needs {_size(needed)} and the disk has {_size(free)} free."
            " Nothing was written and existing checkpoints are complete: free some space (or lower"
            " training.keep_checkpoints) and rerun the command to resume from the last checkpoint"
        )


def checkpoint_bytes(model: nn.Module, processes: int) -> int:
    """Upper bound of a checkpoint's size over all ranks, under any ZeRO stage."""
    total = _SPARE_BYTES * processes
    for parameter in model.parameters():
        # Under ZeRO-3 a parameter is empty between its uses; DeepSpeed keeps its size in ds_numel.
        numel = getattr(parameter, "ds_numel", parameter.numel())
        total += numel * (
            parameter.element_size() + (_STATE_BYTES if parameter.requires_grad else 0)
        )
    return total


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.2f} MB"
