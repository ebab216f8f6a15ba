"""What all processes do together: when it fails in one of them, it fails in all, with that one's message.

    sizes = together(accelerator, lambda: write_share(directory))               # every process; results by rank
    together(accelerator, lambda: shutil.rmtree(old), main_only=True)

Without this, a full disk under one process leaves the others waiting for it in the next collective.
"""

from collections.abc import Callable
from typing import Any

from accelerate import Accelerator
from accelerate.utils import gather_object
from safetensors import SafetensorError

from outrider.common.errors import OutriderError
from outrider.common.files import says_disk_is_full


def together(
    accelerator: Accelerator, action: Callable[[], Any], *, main_only: bool = False
) -> list[Any]:
    """Runs `action` in every process (`main_only`: in the first alone) and returns the results of all, by rank.

    An `OutriderError`, an `OSError` or one of safetensors in any process is raised in all as an `OutriderError`.
    """
    result, failure = None, None
    if accelerator.is_main_process or not main_only:
        try:
            result = action()
        except (OutriderError, OSError, SafetensorError) as error:
            failure = _described(error)
    told = gather_object([(accelerator.process_index, result, failure)])
    failures = [(rank, message) for rank, _, message in told if message is not None]
    if failures:
        rank, message = failures[0]
        raise OutriderError(
            message if accelerator.num_processes == 1 else f"rank {rank}: {message}"
        )
    return [result for _, result, _ in told]


def _described(error: Exception) -> str:
    full = says_disk_is_full(error)
    return (
        f"{error}: no space left on the disk; free some and run the same command again"
        if full
        else str(error)
    )
