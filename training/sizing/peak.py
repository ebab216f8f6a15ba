"""Largest memory of this process so far, for comparison with `MemoryPlan`."""

from pathlib import Path

import torch


def peak_bytes(device: torch.device) -> int:
    """Allocated on the GPU, or resident on a CPU (VmHWM: getrusage counts the parent's too)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return 1024 * int(line.split()[1])
