"""Environment variables and arguments that recipes, serve commands and bundles may set.

    why_not_variable("LD_PRELOAD", "/tmp/x.so")       # a reason
    why_not_argument("block_size", 64)                # None: allowed
    KEYS_OF_ARGUMENTS["dtype"]                        # the recipe key that sets it

The allow-list contains settings that change what the engine computes, but no secrets and nothing
that names code, files or hosts, because bundles are untrusted. Other machine settings belong in
the environment of the command that starts Outrider or the server; engines inherit it.
"""

import re
from typing import Any

from outrider.common.redaction import looks_secret, redacted

ARGUMENTS = frozenset({
    "all2all_backend", "allow_deprecated_quantization", "async_scheduling", "attention_backend",
    "attention_config", "block_size", "compilation_config", "convert",
    "cp_kv_cache_interleave_size", "cpu_offload_gb", "cpu_offload_params",
    "cudagraph_capture_sizes", "data_parallel_backend", "data_parallel_size_local",
    "dbo_decode_token_threshold", "dbo_prefill_token_threshold", "dcp_comm_backend",
    "dcp_kv_cache_interleave_size", "dcp_q_replicate", "decode_context_parallel_size",
    "disable_cascade_attn", "disable_chunked_mm_input", "disable_custom_all_reduce",
    "disable_hybrid_kv_cache_manager", "disable_nccl_for_dp_synchronization",
    "disable_sliding_window", "distributed_executor_backend", "distributed_timeout_seconds",
    "dp_sync_interval", "enable_batch_sharded_sampling", "enable_chunked_prefill", "enable_dbo",
    "enable_elastic_ep", "enable_ep_weight_filter", "enable_eplb", "enable_expert_parallel",
    "enable_flashinfer_autotune", "enable_prefix_caching", "enable_shm_tensor_arena", "eplb_config",
    "expert_placement_strategy", "generation_config", "hf_overrides", "kernel_config",
    "kv_cache_dtype", "kv_cache_dtype_skip_layers", "kv_offloading_backend", "kv_offloading_size",
    "kv_sharing_fast_prefill", "language_model_only", "limit_mm_per_prompt", "linear_backend",
    "load_format", "logprobs_mode", "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive", "max_cudagraph_capture_size", "max_logprobs",
    "max_num_active_seqs", "max_num_scheduled_tokens", "max_parallel_loading_workers", "model_impl",
    "moe_backend", "num_gpu_blocks_override", "offload_backend", "offload_group_size",
    "offload_num_in_group", "offload_params", "offload_prefetch_step", "optimization_level",
    "override_generation_config", "performance_mode", "prefill_context_parallel_size",
    "prefill_schedule_interval", "prefix_cache_retention_interval", "prefix_caching_hash_algo",
    "quantization", "quantization_config", "runner", "safetensors_load_strategy",
    "scheduler_reserve_full_isl", "scheduling_policy", "seed", "sparse_indexer_topk_backend",
    "stream_interval", "structured_outputs_config", "swa_bounded_replay", "tokenizer",
    "tokenizer_mode", "tokenizer_revision", "ubatch_size", "use_fp64_gumbel", "watermark",
})  # fmt: skip
"""Arguments of vLLM 0.32 that `serving.engine.extra_arguments` may contain."""

KEYS_OF_ARGUMENTS = {
    "model": "target.model",
    "revision": "target.revision",
    "dtype": "serving.engine.dtype",
    "max_model_len": "serving.engine.max_model_len",
    "max_num_seqs": "serving.engine.max_num_seqs",
    "max_num_batched_tokens": "serving.engine.max_num_batched_tokens",
    "kv_cache_memory_bytes": "serving.engine.kv_cache_gb",
    "gpu_memory_utilization": "serving.engine.gpu_memory_utilization",
    "tensor_parallel_size": "serving.engine.tensor_parallel",
    "pipeline_parallel_size": "serving.engine.pipeline_parallel",
    "data_parallel_size": "serving.engine.data_parallel",
    "enforce_eager": "serving.engine.mode",
}
"""Maps vLLM arguments to the recipe keys that set them."""

UNSERVABLE = {
    "speculative_config": "the evaluation serves base and custom speculator in turn (speculator.*)",
    "worker_cls": "Outrider's hooks extend vLLM's own worker",
    "worker_extension_cls": "capture and swaps of a speculator need Outrider's extension",
    "nnodes": "an engine runs on one node",
    "node_rank": "an engine runs on one node",
    "data_parallel_rank": "a server runs all its data-parallel engines",
    "data_parallel_start_rank": "a server runs all its data-parallel engines",
    "data_parallel_address": "an engine runs on one node",
    "data_parallel_external_lb": "a server runs all its data-parallel engines",
    "data_parallel_hybrid_lb": "a server runs all its data-parallel engines",
    "disable_log_stats": "acceptance is read from the engine's counters",
    "skip_tokenizer_init": "requests are sent as text",
}
"""vLLM arguments that Outrider's engines do not support, each with the reason."""

_VARIABLES = re.compile(
    r"VLLM_(ALL2ALL|ALLOW_LONG_MAX_MODEL_LEN|ALLREDUCE|ATTENTION|BATCH_INVARIANT|BLOCKSCALE|CPU"
    r"|DBO|DCP|DEEPEP|DEEPEPLL|DEEP_GEMM|DISABLE_(COMPILE_CACHE|PYNCCL|SHARED_EXPERTS)|DISABLED_KERNELS|ENABLE_(CUDAGRAPH|INDUCTOR)|FLASH"
    r"|FLASHINFER|FLASHMLA|FLOAT32|FP8|FUSED|HUMMING|KV_CACHE_LAYOUT|MARLIN|MAX_TOKENS_PER_EXPERT"
    r"|MLA|MOE|MULTI_STREAM|MXFP[48]|NO_USAGE_STATS|NVFP4|PP_LAYER_PARTITION|ROCM|SHARED_EXPERTS"
    r"|SKIP_P2P_CHECK|SPARSE_INDEXER|TRITON|USE|V1|XPU)(_[A-Z0-9_]+)?"
    r"|NCCL_(ALGO|PROTO|NVLS_ENABLE|CUMEM_ENABLE|P2P_DISABLE|IB_DISABLE|SHM_DISABLE)"
    r"|CUDA_(DEVICE_MAX_CONNECTIONS|LAUNCH_BLOCKING|MODULE_LOADING)|PYTORCH_(CUDA_)?ALLOC_CONF"
    r"|OMP_NUM_THREADS|MKL_NUM_THREADS|KMP_(AFFINITY|BLOCKTIME)|PYTHONHASHSEED"
)
_NOT_VARIABLES = re.compile(r"VLLM_USE_(MODELSCOPE|PRECOMPILED|RUST)\w*|\w*_(DIR|PATH|FOLDER|FILE)")
"""Refused: variables that select a download source, another program or a path."""

_CODE = re.compile(r"\w*(_cls|_class|_module|_plugin|_passes?|_path|_dir|_file|trust_remote_code)")
"""Keys within an argument's value that name code or files."""
_ARE_SETTINGS = {"pass_config"}


def why_not_variable(name: str, value: object) -> str | None:
    """Why this variable is refused (never quoting its value); None if allowed."""
    if looks_secret(name):
        return f"{name}: it looks like a secret; export it where the server is started"
    if not _VARIABLES.fullmatch(name) or _NOT_VARIABLES.fullmatch(name):
        return (
            f"{name}: not one of the variables that change what the engine computes; export it in"
            " the shell that starts the command, whose environment the engines inherit"
        )
    if not isinstance(value, str) or not value.isprintable() or redacted(value) != value:
        return f"{name}: its value is not one line of plain text without secrets"
    return None


def why_not_argument(name: str, value: object) -> str | None:
    """Why this argument is refused (never quoting its value); None if allowed."""
    if looks_secret(name):
        return f"{name}: it looks like a secret; secrets belong in the server's environment"
    if name not in ARGUMENTS and name not in KEYS_OF_ARGUMENTS:
        return f"{name}: not one of vLLM's arguments that change what the engine computes"
    return _why_not_value(name, value)


def _why_not_value(name: str, value: Any) -> str | None:
    """Why an allowed argument cannot have this value; None if it can."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if looks_secret(str(key)) or (_CODE.fullmatch(str(key)) and key not in _ARE_SETTINGS):
                return f"{name}.{key}: names code, a file or a secret"
            if reason := _why_not_value(f"{name}.{key}", inner):
                return reason
        return None
    if isinstance(value, list):
        return next((reason for each in value if (reason := _why_not_value(name, each))), None)
    if value is None or isinstance(value, bool | int | float):
        return None
    if not isinstance(value, str) or not value.isprintable() or redacted(value) != value:
        return f"{name}: its value is not plain text without secrets"
    if value.startswith("--") or (name.endswith("backend") and "." in value):
        return f"{name}: its value is a flag or names code"
    return None
