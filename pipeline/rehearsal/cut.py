"""R1's config.json with few layers, and as many experts as this machine can train.

    config, experts = cut_to_fit(read_json(R1_CONFIG), recipe, available_bytes, gpus=0)

Widths stay: hidden 7168, 128 heads, latent rank 512, vocabulary 129,280, experts of 2048. One dense
and one MoE layer remain, and the MTP layer.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.pipeline.plan.training_cost import memory_plan
from outrider.pipeline.recipe.recipe import Recipe

R1_CONFIG = Path(__file__).resolve().parents[2] / "recipes" / "r1" / "config.json"
"""R1's published config.json."""

EXPERTS = (8, 4, 2)
"""Numbers of routed experts on a CPU, tried in this order."""

EXPERTS_ON_GPUS = (256, 64, 16)

USABLE = 0.8
"""Share of the available memory that the largest process may take."""


def cut_config(config: Mapping[str, Any], experts: int, fp8: bool) -> dict[str, Any]:
    """`config` with one dense and one MoE layer of `experts` experts in groups of two.

    Without `fp8`, weights are bf16: vLLM computes FP8 blocks on GPUs and on CPUs with AMX only.
    """
    groups = max(1, experts // 2)
    groups_per_token = max(1, groups // 2)
    cut = dict(config) | {
        "num_hidden_layers": 2,
        "first_k_dense_replace": 1,
        "n_routed_experts": experts,
        "n_group": groups,
        "topk_group": groups_per_token,
        "num_experts_per_tok": min(config["num_experts_per_tok"], 2 * groups_per_token),
        "torch_dtype": "bfloat16",
    }
    if not fp8:
        cut.pop("quantization_config", None)
    return cut


def cut_to_fit(
    config: Mapping[str, Any], recipe: Recipe, available_bytes: int, gpus: int = 0
) -> tuple[dict[str, Any], int]:
    """The cut with most experts that fits, and their number; `recipe` is the rehearsal's.

    `available_bytes` is the memory of one GPU, or of the machine without any.
    """
    for experts in EXPERTS_ON_GPUS if gpus else EXPERTS:
        small = cut_config(config, experts, fp8=gpus > 0)
        plan = memory_plan(recipe, small, "config.json")
        # One process trains on a CPU; it needs more than an engine of the same target.
        plan = dataclasses.replace(plan, device="cuda" if gpus else "cpu")
        needed = plan.peak()[1]
        if needed <= USABLE * available_bytes:
            return small, experts
    raise OutriderError(
        f"--rehearse: with {experts} experts, training takes {needed / 1e9:.1f} GB (mostly"
        f" embedding and head of 129,280 tokens); {available_bytes / 1e9:.1f} GB of memory are"
        " available, of which 80 % are used; free memory or use a larger machine"
    )
