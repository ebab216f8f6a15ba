"""Time limits of engine starts, from the size of the checkpoint.

    start_limit_s(Path("DeepSeek-R1"))     # 4,255: 15 minutes, and 671 GB at 0.2 GB/s

A start reads the weights, profiles memory, compiles and captures CUDA graphs. vLLM gives its engine
600 s (VLLM_ENGINE_READY_TIMEOUT_S), which R1 exceeds on most disks.
"""

from pathlib import Path

FIXED_S = 900.0
"""Everything but reading weights: compiling R1 takes many minutes."""

READ_BYTES_PER_S = 0.2e9
"""A slow network disk."""


def checkpoint_bytes(directory: Path) -> int:
    """Size of a checkpoint's weights."""
    return sum(file.stat().st_size for file in Path(directory).glob("*.safetensors"))


def start_limit_s(directory: Path) -> float:
    """Longest time that an engine may take until it serves the checkpoint in `directory`."""
    return FIXED_S + checkpoint_bytes(directory) / READ_BYTES_PER_S


def start_environment(directory: Path) -> dict[str, str]:
    """vLLM's own limit, as long."""
    return {"VLLM_ENGINE_READY_TIMEOUT_S": str(round(start_limit_s(directory)))}
