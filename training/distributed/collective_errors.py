"""Actions of all ranks together: an error in one of them is raised in all.

    sizes = on_all_ranks(accelerator, lambda: write_share(directory))       # results by rank
    on_all_ranks(accelerator, lambda: shutil.rmtree(old), main_only=True)

Without it a full disk under one rank leaves the others waiting in the next collective. torchelastic
has no such thing: its records end the job, and here the ranks agree on the error and clean up.
"""

from collections.abc import Callable
from typing import TypeVar

from accelerate import Accelerator
from accelerate.utils import gather_object
from safetensors import SafetensorError

from outrider.common.errors import OutriderError
from outrider.common.files import says_disk_is_full

Result = TypeVar("Result")


def on_all_ranks(
    accelerator: Accelerator, action: Callable[[], Result], *, main_only: bool = False
) -> list[Result]:
    """Runs `action` in every rank and returns the results by rank.

    `main_only` runs it in the first rank alone; the other results are None then. An
    `OutriderError`, an `OSError` or a safetensors error in any rank is raised in all of them as an
    `OutriderError`.
    """
    result, failure = None, None
    if accelerator.is_main_process or not main_only:
        try:
            result = action()
        except (OutriderError, OSError, SafetensorError) as error:
            failure = _described(error)
    gathered = gather_object([(accelerator.process_index, result, failure)])
    for rank, _, message in gathered:
        if message is not None:
            several = accelerator.num_processes > 1
            raise OutriderError(f"rank {rank}: {message}" if several else message)
    return [result for _, result, _ in gathered]


def _described(error: Exception) -> str:
    if says_disk_is_full(error):
        return f"{error}: no space left on the disk; free some and run the same command again"
    return str(error)
