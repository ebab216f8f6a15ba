"""The rule that a process which opens an engine holds no device memory.

    require_no_device_memory("vllm serve")

vLLM takes nine tenths of a GPU when it starts, and fails if another process holds more than the
rest. Replay, parity and training therefore run in processes of their own, which have ended by then
(common/child_process.py, training/distributed/launch.py).
"""

import gc
import os
import sys

CHECK_CPU = "OUTRIDER_CHECK_HELD_MEMORY"
"""Environment variable of tests: without a GPU, live tensors above `LARGEST` count as held, and so
does having loaded a model (`model_loaded`): on a GPU, CUDA's context and torch's cache stay."""

LARGEST = 2**20
"""Bytes of a tensor that may be alive."""


_loaded: list[str] = []


def model_loaded(name: str) -> None:
    """Notes that this process has loaded a model onto the device."""
    _loaded.append(name)


def require_no_device_memory(opened: str) -> None:
    """Raises a `RuntimeError` if this process holds memory of a GPU, or (tests) large tensors."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if torch.cuda.is_initialized() and (held := torch.cuda.memory_reserved()):
        raise RuntimeError(
            f"{opened} starts while this process holds {held / 1e9:.2f} GB of the GPU; run what"
            " uses it through common.child_process.in_child"
        )
    if not os.environ.get(CHECK_CPU):
        return
    if _loaded:
        raise RuntimeError(f"{opened} starts in a process that has loaded {_loaded[0]}")
    if tensors := _large_tensors():
        raise RuntimeError(f"{opened} starts while this process holds tensors: {tensors}")


def _large_tensors() -> list[str]:
    import torch

    gc.collect()
    # Exact types: subclasses that stand for tensors without memory have no size.
    types = (torch.Tensor, torch.nn.Parameter)
    found = (each for each in gc.get_objects() if type(each) in types)
    return [
        f"{each.dtype} {list(each.shape)}"
        for each in found
        if each.device.type != "meta" and each.nbytes > LARGEST
    ]
