"""R1's config.json with few layers and experts, and how many experts this machine can train.

    cut = cut_to_fit(read_json(R1_CONFIG), recipe, available_bytes)
    cut.config, cut.experts, cut.needed

Widths stay: hidden 7168, 128 heads, latent rank 512, vocabulary 129,280, experts of 2048. One dense
and one MoE layer remain, and the MTP layer.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.rehearsal.target import shapes
from outrider.speculators.kinds import trainable_kind
from outrider.speculators.kinds.protocol import RowShape
from outrider.speculators.planned import planned
from outrider.training.sizing.memory import MemoryPlan

R1_CONFIG = Path(__file__).resolve().parents[2] / "recipes" / "r1" / "config.json"
"""R1's published config.json."""

EXPERTS = (8, 4, 2)
"""Numbers of routed experts, tried in this order."""

USABLE = 0.8
"""Share of the available memory that the largest process may take."""

WORKER_BYTES = 1_500_000_000
"""Memory of vLLM's worker besides weights and KV cache: libraries, and what a step computes."""


@dataclasses.dataclass(frozen=True)
class Cut:
    """A cut config and the memory of the processes that need most."""

    config: dict[str, Any]
    experts: int
    training_bytes: int
    engine_bytes: int

    @property
    def needed(self) -> int:
        """Bytes of the larger one; they run in turn."""
        return max(self.training_bytes, self.engine_bytes)


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
    config: Mapping[str, Any], recipe: Recipe, available_bytes: int, fp8: bool = False
) -> Cut:
    """The cut with most experts that fits; `recipe` is the rehearsal's."""
    for experts in EXPERTS:
        small = cut_config(config, experts, fp8)
        weights = sum(2 * shape.numel() for shape in shapes(small).values())
        engine = engine_bytes(small, weights, recipe.serving.engine.kv_cache_gb or 0)
        cut = Cut(small, experts, _training_bytes(small, recipe), engine)
        if cut.needed <= USABLE * available_bytes:
            return cut
    raise OutriderError(
        f"--rehearse: with {experts} experts, training takes {cut.training_bytes / 1e9:.1f} GB and"
        f" an engine {cut.engine_bytes / 1e9:.1f} GB (mostly embedding and head of 129,280 tokens);"
        f" {available_bytes / 1e9:.1f} GB of memory are available, of which 80 % are used; free"
        " memory or use a larger machine"
    )


def engine_bytes(config: Mapping[str, Any], weights: int, kv_cache_gb: float) -> int:
    """Largest memory of vLLM's worker with a drafter on a CPU, of these bytes of weights.

    While it loads, the drafter has its own embedding and head; the target's replace them. Later the
    head has a packed copy (serving/vllm_hooks/cpu_vocabulary.py), and there is a KV cache.
    """
    matrix = 2 * config["vocab_size"] * config["hidden_size"]
    return weights + max(2 * matrix, matrix + int(kv_cache_gb * 1e9)) + WORKER_BYTES


def _training_bytes(config: Mapping[str, Any], recipe: Recipe) -> int:
    kind = trainable_kind(recipe.speculator.only_kind)
    size = kind.size(planned(recipe.speculator, config), config, "config.json")
    training = recipe.training
    plan = MemoryPlan(
        size,
        RowShape.full(training.row_tokens),
        training.row_tokens,
        recipe.speculator.depth,
        zero_stage=training.zero_stage,
        processes=training.processes,
        rows_each=training.rows_per_step // training.processes,
        compute=training.compute,
        trained_parameters=recipe.speculator.train,
        lora_rank=recipe.speculator.lora_rank,
        device="cpu",
    )
    return plan.host_bytes(training.processes)
