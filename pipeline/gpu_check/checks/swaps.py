"""Drafters are exchanged in a running server, and CUDA graphs use the new weights.

base, custom, base: the second time base must accept what it did the first time, custom must accept
less (it has noise in a projection), and greedy texts stay the target's. A server, because engines
in this process are eager (serving/in_process.py).
"""

from pathlib import Path
from typing import TYPE_CHECKING

from outrider.pipeline.gpu_check.check import CheckFailed, Figures
from outrider.pipeline.gpu_check.inputs import (
    TARGET,
    K,
    engine_config,
    logged_prompts,
    weakened_speculator,
)

if TYPE_CHECKING:
    from outrider.serving.server import Server


def on_gpu(folder: Path) -> Figures:
    """A compiled engine: CUDA graphs. Its kernels may depend on the batch: 2 % are allowed."""
    return _swapped(folder, gpu=True, prompts=32, tokens=128, allowed=0.02)


def on_cpu(folder: Path) -> Figures:
    """An eager engine and one request at a time: the same weights give the same counts."""
    return _swapped(folder, gpu=False, prompts=3, tokens=24, allowed=0.0)


def _swapped(folder: Path, gpu: bool, prompts: int, tokens: int, allowed: float) -> Figures:
    from outrider.serving.config import ServingConfig
    from outrider.serving.server import Server

    custom = weakened_speculator(folder / "custom")
    base, asked = TARGET.directory(), logged_prompts(prompts)
    serving = ServingConfig(engine=engine_config(gpu))
    runs, swap_s = [], []
    with Server(TARGET, serving, base, K, log_path=folder / "server.log") as server:
        for directory in (base, custom, base):
            server.exchange(directory)
            swap_s.append(server.swap_seconds or 0.0)
            runs.append(_answered(server, asked, tokens, prompts if gpu else 1))
    (texts, first), (other_texts, weaker), (again_texts, again) = runs
    same = sum(a == b == c for a, b, c in zip(texts, other_texts, again_texts, strict=True))
    figures = {
        "acceptance_length_base": first,
        "acceptance_length_custom": weaker,
        "acceptance_length_base_again": again,
        "equal_texts": f"{same} of {prompts}",
        "swap_seconds": max(swap_s),
    }
    if abs(again / first - 1) > allowed:
        raise CheckFailed(
            f"base accepts {again:.4f} after the swaps, {first:.4f} before: {figures}"
        )
    if weaker > 0.9 * first:
        raise CheckFailed(f"custom's weights are not used, it accepts as base does: {figures}")
    if same < (1 - 5 * allowed) * prompts:
        raise CheckFailed(f"greedy texts changed with the drafter: {figures}")
    return figures


def _answered(
    server: "Server", prompts: list[list[int]], tokens: int, concurrency: int
) -> tuple[list[list[int]], float]:
    """Greedy texts, and the acceptance length while they were written."""
    from outrider.serving.client import Sampling, complete

    before = server.counters()
    completions = complete(
        server.url, server.model_name, prompts, Sampling(0.0, 1.0), tokens, concurrency
    )
    texts = [completion.token_ids for completion in completions]
    return texts, (server.counters() - before).acceptance_length
