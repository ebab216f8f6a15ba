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
    REFUSALS,
    refused_by_transformers,
    transformers_model,
)

if TYPE_CHECKING:
    from torch import Tensor

FP8_BYTES = 1 + 4 / 128**2
"""Bytes per FP8 weight, including block scales."""

WORKSPACE = 2e9
"""Assumed bytes per GPU for activations, CUDA graphs and communication buffers."""


KV_BYTES = {"auto": 2.0, "fp8": 1.0, "nvfp4": 1 / 2 + 1 / 16}
"""Bytes per cached value; NVFP4 has an FP8 scale for each 16 (vLLM's `nvfp4_kv_cache_full_dim`)."""


@dataclasses.dataclass(frozen=True)
class TargetSize:
    """Parameter count and memory footprint of a target."""

    parameters: int
    used: float
    """Active parameters per token, counting only the routed experts that it uses."""
    weight_bytes: int
    kv_bytes_per_token: int
    """Over all layers, in the type that the checkpoint names for the cache, or in bf16."""
    kv_heads: int
    """1 for a latent cache, because every rank holds all of it."""
    kv_type: str = "auto"
    """The type that the checkpoint names for the cache, a key of `KV_BYTES`."""

    def engine_bytes(self, engine: EngineConfig, ranks: int) -> float:
        """Returns the minimum memory per GPU at TP degree `ranks`, with one full-length request."""
        # Ranks beyond the number of KV heads hold copies of them.
        cache = engine.max_model_len * self._token_bytes(engine) / min(ranks, self.kv_heads)
        return (self.weight_bytes / ranks + cache) / engine.pipeline_parallel + WORKSPACE

    def cache_tokens(self, engine: EngineConfig, gpu_bytes: int, drafter_bytes: int = 0) -> int:
        """Returns the tokens that the KV caches of all data-parallel replicas hold together."""
        ranks = engine.tensor_parallel
        stages = engine.pipeline_parallel
        weights = (self.weight_bytes + drafter_bytes) / (ranks * stages)
        room = engine.gpu_memory_utilization * gpu_bytes - WORKSPACE - weights
        if engine.kv_cache_gb is not None:
            room = min(room, engine.kv_cache_gb * 2**30)
        token_bytes = self._token_bytes(engine) / min(ranks, self.kv_heads) / stages
        return max(int(room / token_bytes), 0) * engine.data_parallel

    def _token_bytes(self, engine: EngineConfig) -> float:
        """Bytes per cached token in the engine's type; `auto` is the checkpoint's."""
        argument = str(engine.extra_arguments.get("kv_cache_dtype", "auto"))
        served = self.kv_type if argument == "auto" else argument.partition("_")[0]
        return self.kv_bytes_per_token * KV_BYTES.get(served, 2) / KV_BYTES[self.kv_type]

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
    except REFUSALS as error:
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
    kv_type = _kv_type(config)
    return TargetSize(
        parameters=total,
        used=used,
        weight_bytes=int(weight_bits / 8),
        kv_bytes_per_token=int(KV_BYTES[kv_type] * layers * values),
        kv_heads=kv_heads,
        kv_type=kv_type,
    )


def _kv_type(config: Mapping[str, Any]) -> str:
    """The type of the KV cache that a quantized checkpoint names, as vLLM 0.32 reads it.

    Of Model-Optimizer's, `get_kv_cache_quant_algo_string`; of any other, a `kv_cache_scheme` means
    FP8 (`Attention.__init__`).
    """
    section = config.get("quantization_config")
    if not section:
        return "auto"
    from vllm.utils.torch_utils import get_kv_cache_quant_algo_string

    method = section.get("quant_method") or ""
    dtype = get_kv_cache_quant_algo_string({**section, "quant_method": method})
    if dtype is None and section.get("kv_cache_scheme"):
        return "fp8"
    kv_type = str(dtype).partition("_")[0]
    return kv_type if kv_type in KV_BYTES else "auto"


def _bits(bits: WeightBits, name: str, tensor: "Tensor") -> float:
    """Bits per weight of a parameter: linear layers and the head may be quantized.

    vLLM keeps embedding, norms, biases and routers unquantized.
    """
    module = name.removesuffix(".weight")
    linear = "_proj" in module or module == "lm_head"
    if tensor.ndim < 2 or not linear:
        return UNQUANTIZED
    return bits(module, tensor.shape[-1])
