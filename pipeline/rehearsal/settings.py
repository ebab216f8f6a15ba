"""What a rehearsal runs: R1's widths with few layers and experts, little traffic, short blocks.

    config, experts = cut_to_fit(read_json(R1_CONFIG), recipe, available_bytes, gpus=8)
    words = rehearsal_words(recipe, gpus=8)        # overrides; target.model and the user's follow

Widths stay: hidden 7168, 128 heads, latent rank 512, vocabulary 129,280, experts of 2048. One dense
and one MoE layer remain, and the MTP layer.

What is trained, depth, loss, ZeRO stage and dtypes stay the recipe's. On a CPU one process trains
and serves in bf16. With GPUs the engine is compiled and tensor-parallel over them, and each has a
rank of the training.
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


SETTINGS = {
    "target.revision": "null",
    "traffic.path": "nano_r1/resume_screening",
    "split.max_train_sequences": 6,
    "split.max_validation_sequences": 2,
    "split.max_heldout_sequences": 3,
    # Random weights did not write these logs: every sequence is off-policy.
    "capture.min_on_policy": "null",
    "capture.batch_tokens": 2048,
    "training.epochs": 1,
    "training.row_tokens": 512,
    "training.rows_per_step": 2,
    "training.processes": 1,
    "training.evaluate_every": 100,
    "training.checkpoint_every": 100,
    "training.parity": "warn",
    "training.wandb_project": "null",
    "serving.engine.mode": "eager",
    "serving.engine.tensor_parallel": 1,
    "serving.engine.max_model_len": 1024,
    "serving.engine.max_num_seqs": 2,
    "serving.engine.max_num_batched_tokens": 512,
    "serving.engine.kv_cache_gb": 1,
    # Timing steps for every k would take minutes and show nothing.
    "eval.k": 2,
    "eval.engine_modes": "[eager]",
    "eval.side_by_side": "false",
    "eval.measure": "full",
    "eval.concurrency": "[1]",
    "eval.requests": 1,
    "eval.repeats": 2,
    "eval.max_tokens": 6,
    "eval.verification_requests": 2,
    "eval.verification_max_tokens": 8,
    "eval.replay_sequences": 2,
    "eval.task": "null",
    # Random drafts are accepted by chance: a handful of steps decides nothing.
    "export.tolerance": 0.9,
}


MOST_GPUS = 8
"""One node."""


def node_settings(gpus: int) -> dict[str, object]:
    """What differs on a machine with GPUs: all of them serve and train, as R1's recipes do."""
    # Heads divide by powers of two.
    used = 1 << (min(gpus, MOST_GPUS).bit_length() - 1)
    return {
        "split.max_train_sequences": 6 * used,
        "split.max_validation_sequences": 2 * used,
        "training.rows_per_step": used,
        "training.processes": used,
        "serving.engine.mode": "compiled",
        "serving.engine.tensor_parallel": used,
        "serving.engine.kv_cache_gb": "null",
        "eval.engine_modes": "[compiled]",
    }


def rehearsal_words(recipe: Recipe, gpus: int = 0) -> list[str]:
    """Overrides that make a rehearsal of `recipe` on a machine with this many GPUs."""
    settings = SETTINGS | (node_settings(gpus) if gpus else {})
    return [f"name={recipe.name}_rehearsal", *(f"{key}={value}" for key, value in settings.items())]
