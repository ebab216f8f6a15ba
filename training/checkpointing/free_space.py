"""Room on the disk, asked for before anything is written: a full disk is met while the last checkpoint is still untouched.

require_space(directory, 3 * 2**30, "a checkpoint")
"""

import shutil
from pathlib import Path

from torch import nn

from outrider.common.errors import OutriderError

_STATE_BYTES = 12
"""A trained parameter's float32 master and two moments."""

_SPARE_BYTES = 2**20
"""Structure, paddings, random states, state.json."""


def require_space(directory: Path, needed: int, what: str) -> None:
    """An `OutriderError` unless the disk that holds `directory` has `needed` bytes free."""
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise OutriderError(
            f"{directory}: {what} needs {_size(needed)} and the disk has {_size(free)} free. Nothing was written,"
            " what is there is whole: free some space (or lower training.keep_checkpoints) and run the same command again,"
            " it goes on from the last checkpoint"
        )


def checkpoint_bytes(model: nn.Module, processes: int) -> int:
    """Upper bound of a checkpoint's size: every process's weights, masters and moments, under any ZeRO stage."""
    total = _SPARE_BYTES * processes
    for parameter in model.parameters():
        # Under ZeRO-3 a parameter holds nothing between its uses; DeepSpeed keeps its whole size beside it.
        numel = getattr(parameter, "ds_numel", parameter.numel())
        total += numel * (
            parameter.element_size() + (_STATE_BYTES if parameter.requires_grad else 0)
        )
    return total


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.2f} MB"
