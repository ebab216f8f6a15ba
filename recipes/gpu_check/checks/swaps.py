"""Drafters are exchanged in a running engine, and CUDA graphs use the new weights.

base, custom, base: the second time base must accept what it did the first time, custom must accept
less (it has noise in a projection), and greedy texts stay the target's.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.recipes.gpu_check.check import CheckFailed, Figures
from outrider.recipes.gpu_check.inputs import (
    TARGET,
    K,
    engine_config,
    logged_prompts,
    weakened_speculator,
)

if TYPE_CHECKING:
    from outrider.serving.engine import Engine


def on_gpu(folder: Path) -> Figures:
    """A compiled engine: CUDA graphs. Its kernels may depend on the batch: 2 % are allowed."""
    return _swapped(folder, gpu=True, prompts=32, tokens=128, allowed=0.02)


def on_cpu(folder: Path) -> Figures:
    """An eager engine, where the same weights give the same counts."""
    return _swapped(folder, gpu=False, prompts=3, tokens=24, allowed=0.0)


def _swapped(folder: Path, gpu: bool, prompts: int, tokens: int, allowed: float) -> Figures:
    from outrider.serving.engine import DRAFTER_EXTENSION, open_engine

    custom = weakened_speculator(folder / "custom")
    base, asked = TARGET.directory(), logged_prompts(prompts)
    runs, swap_s = [], []
    with open_engine(
        TARGET, engine_config(gpu), base, K, scratch=folder, extension=DRAFTER_EXTENSION
    ) as engine:
        for directory in (base, custom, base):
            began = time.monotonic()
            engine.llm.collective_rpc("swap_drafter", args=(str(directory),))
            swap_s.append(time.monotonic() - began)
            runs.append(_answered(engine, asked, tokens))
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
    engine: "Engine", prompts: list[list[int]], tokens: int
) -> tuple[list[list[int]], float]:
    """Greedy texts, and the acceptance length while they were written."""
    from outrider.serving.engine import AskedRow

    rows = [AskedRow(str(n), ids, 0.0, 1.0, tokens) for n, ids in enumerate(prompts)]
    before = counts(engine.llm)
    texts = engine.answer(rows)
    drafts, accepted = (now - then for now, then in zip(counts(engine.llm), before, strict=True))
    return texts, 1 + accepted / drafts


def counts(llm: Any) -> tuple[float, float]:
    """The engine's drafts and accepted tokens since its start."""
    sums = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    return (
        sums.get("vllm:spec_decode_num_drafts", 0),
        sums.get("vllm:spec_decode_num_accepted_tokens", 0),
    )
