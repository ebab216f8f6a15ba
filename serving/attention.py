"""Checks a target's attention against vLLM's own selectors on this machine.

    mla_refusal(config)               # None, or why the target cannot run as MLA here
    mixed_cache_refusal(config, 64)   # None, or why a full-attention drafter cannot share its cache

Both query the platform of the installed vLLM, so the answer depends on vLLM's release and the GPU.
Without vLLM, as on a machine that only plans a run, nothing is refused.
"""

from collections.abc import Mapping
from typing import Any


def mla_refusal(target_config: Mapping[str, Any]) -> str | None:
    """Why no MLA prefill backend supports the target's head widths, or None."""
    try:
        from vllm.platforms import current_platform
        from vllm.v1.attention.backends.mla.prefill.base import MLADimensions
        from vllm.v1.attention.backends.mla.prefill.selector import MLAPrefillSelectorConfig
    except ImportError:
        return None
    import torch

    names = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    widths = MLADimensions(**{name: target_config[name] for name in names})
    try:
        current_platform.get_mla_prefill_backend_cls(
            MLAPrefillSelectorConfig(torch.bfloat16, widths)
        )
    except ValueError as error:
        return str(error)
    return None


def mixed_cache_refusal(target_config: Mapping[str, Any], head_dim: int) -> str | None:
    """Why MLA and a full-attention drafter cannot share a cache, or None.

    The cache holds MLA's latents and the drafter's keys and values, of width `head_dim`. vLLM's
    grouping must accept both layouts in one group, and their backends must share a block size.
    """
    try:
        from vllm.platforms import current_platform
        from vllm.utils.import_utils import resolve_obj_by_qualname
        from vllm.v1.attention.selector import AttentionSelectorConfig
        from vllm.v1.kv_cache_interface import (
            FullAttentionSpec,
            KVCacheSpec,
            MLAAttentionSpec,
            UniformTypeKVCacheSpecs,
        )
        from vllm.v1.worker.utils import select_common_block_size
    except ImportError:
        return None
    import torch

    latent = target_config["kv_lora_rank"] + target_config["qk_rope_head_dim"]
    heads = target_config["num_attention_heads"]
    dtype = torch.bfloat16
    refusal = ""
    try:
        backends = [
            resolve_obj_by_qualname(
                current_platform.get_attn_backend_cls(
                    None,  # type: ignore[arg-type]  # no backend is requested
                    AttentionSelectorConfig(size, dtype, "auto", None, use_mla=size == latent),
                    heads,
                )
            )
            for size in (latent, head_dim)
        ]
    except ValueError as error:
        return str(error)
    for block in (16, 32, 64, 128):  # the sizes that vLLM chooses from, in tokens
        specs: dict[str, KVCacheSpec] = {
            "target": MLAAttentionSpec(block, num_kv_heads=1, head_size=latent, dtype=dtype),
            "head": FullAttentionSpec(block, num_kv_heads=heads, head_size=head_dim, dtype=dtype),
        }
        if not UniformTypeKVCacheSpecs.is_uniform_type(specs):
            return "vLLM's KV-cache grouping keeps the two forms apart"
        try:
            select_common_block_size(block, backends)
        except ValueError as error:
            refusal = refusal or str(error)
        else:
            return None
    return refusal
