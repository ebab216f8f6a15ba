"""Computes weight size, KV-cache size and GPU count from config.json alone.

    size = target_size(config)
    size.parameters, size.weight_bytes, size.kv_bytes_per_token     # 8.03e9, 16.1e9, 131,072
    size.smallest_tensor_parallel(recipe.serving.engine, gpu_bytes)

Parameters are counted in the transformers model on the meta device, without an MTP layer.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outrider.pipeline.plan.weight_bits import UNQUANTIZED, WeightBits
from outrider.serving.config import EngineConfig
from outrider.speculators.checkpoints.architectures import (
    refused_by_transformers,
    transformers_model,
)

if TYPE_CHECKING:
    from torch import Tensor

FP8_BYTES = 1 + 4 / 128**2
"""Bytes per FP8 weight, including block scales."""

WORKSPACE = 2e9
"""Assumed bytes per GPU for activations, CUDA graphs and communication buffers."""


@dataclasses.dataclass(frozen=True)
class TargetSize:
    """Parameter count and memory footprint of a target."""

    parameters: int
    used: float
    """Active parameters per token, counting only the routed experts that it uses."""
    weight_bytes: int
    kv_bytes_per_token: int
    """In bf16, over all layers."""
    kv_heads: int
    """1 for a latent cache, because every rank holds all of it."""

    def engine_bytes(self, engine: EngineConfig, ranks: int) -> float:
        """Returns the minimum memory per GPU at TP degree `ranks`, with one full-length request."""
        # Ranks beyond the number of KV heads hold copies of them.
        cache = engine.max_model_len * self.kv_bytes_per_token / min(ranks, self.kv_heads)
        return (self.weight_bytes / ranks + cache) / engine.pipeline_parallel + WORKSPACE

    def cache_tokens(self, engine: EngineConfig, gpu_bytes: int, drafter_bytes: int = 0) -> int:
        """Returns the tokens that the KV caches of all data-parallel replicas hold together."""
        ranks = engine.tensor_parallel
        stages = engine.pipeline_parallel
        weights = (self.weight_bytes + drafter_bytes) / (ranks * stages)
        room = engine.gpu_memory_utilization * gpu_bytes - WORKSPACE - weights
        if engine.kv_cache_gb is not None:
            room = min(room, engine.kv_cache_gb * 2**30)
        token_bytes = self.kv_bytes_per_token / min(ranks, self.kv_heads) / stages
        if str(engine.extra_arguments.get("kv_cache_dtype", "")).startswith("fp8"):
            token_bytes /= 2
        return max(int(room / token_bytes), 0) * engine.data_parallel

    def smallest_tensor_parallel(self, engine: EngineConfig, gpu_bytes: int) -> int | None:
        """Returns the smallest power-of-two degree that suffices; None if above 64."""
        room = engine.gpu_memory_utilization * gpu_bytes
        # vLLM shards heads and experts evenly; 64 ranks are eight nodes.
        ranks = (2**power for power in range(7))
        return next((degree for degree in ranks if self.engine_bytes(engine, degree) <= room), None)


def target_size(config: Mapping[str, Any], online: str | None = None) -> TargetSize:
    """Returns the size of the target that `config` describes.

    `online` is vLLM's `--quantization`, which quantizes unquantized weights at load.
    """
    import torch

    model_class, settings = transformers_model(config)
    try:
        with torch.device("meta"):  # 671 billion parameters in no memory
            model = model_class(settings)
    except (AttributeError, TypeError, ValueError) as error:  # of values that are null
        raise refused_by_transformers(error) from None
    tensors = dict(model.named_parameters())
    counts = {name: tensor.numel() for name, tensor in tensors.items()}
    total = sum(counts.values())
    experts = sum(count for name, count in counts.items() if ".experts." in name)
    routed = config.get("n_routed_experts") or config.get("num_experts") or 1
    used = total - experts * (1 - config.get("num_experts_per_tok", 1) / routed)
    bits = WeightBits.of(config, online)
    weight_bits = sum(counts[name] * _bits(bits, name, tensors[name]) for name in tensors)
    heads = config["num_attention_heads"]
    layers = config["num_hidden_layers"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    values = 2 * kv_heads * head_dim
    if latent := config.get("kv_lora_rank"):
        kv_heads = 1
        values = latent + config["qk_rope_head_dim"]
    return TargetSize(
        parameters=total,
        used=used,
        weight_bytes=int(weight_bits / 8),
        kv_bytes_per_token=2 * layers * values,
        kv_heads=kv_heads,
    )


def _bits(bits: WeightBits, name: str, tensor: "Tensor") -> float:
    """Bits per weight of a parameter: linear layers and the head may be quantized.

    vLLM keeps embedding, norms, biases and routers unquantized.
    """
    module = name.removesuffix(".weight")
    linear = "_proj" in module or module == "lm_head"
    if tensor.ndim < 2 or not linear:
        return UNQUANTIZED
    return bits(module, tensor.shape[-1])
