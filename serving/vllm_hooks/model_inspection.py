"""Inspects model classes in this process on a CPU, 1 s instead of 9.

vLLM 0.32 asks the target's and the drafter's class what they support, and imports them for that in
a process that imports torch and vLLM again, so that this one does not initialize CUDA. It keeps the
answers (VLLM_CACHE_ROOT/modelinfos); a new machine has none. A CPU build has no CUDA to initialize.
"""

from collections.abc import Callable
from typing import Any


def here(inspect: Callable[[], Any]) -> Any:
    """In place of vLLM's `_run_in_subprocess`."""
    return inspect()


def install() -> None:
    """Replaces vLLM's inspection; may be called more than once in a process."""
    from vllm.model_executor.models import registry

    if not hasattr(registry, "_run_in_subprocess"):
        raise ImportError(
            f"{registry.__name__} has no _run_in_subprocess: {__name__} was written for vLLM 0.32"
        )
    setattr(registry, "_run_in_subprocess", here)  # noqa: B010 (mypy: its type differs)
