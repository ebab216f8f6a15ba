"""Environment variables and arguments that recipes, serve commands and bundles may set.

    variable_refusal("LD_PRELOAD", "/tmp/x.so")       # a reason
    argument_refusal("block_size", 64)                # None: allowed
    bundle_argument_refusal("block_size", "64")             # a reason: vLLM reads a number there
    KEYS_OF_ARGUMENTS["dtype"]                        # the recipe key that sets it

There are two lists. A user's own recipe or serve command may set `ARGUMENTS`: what changes what the
engine computes, but no secrets and nothing that names code. A bundle may come from anyone, so it
may set only `OF_BUNDLES`: flags, numbers and plain words, each of the type that vLLM parses, and
the named keys of a few objects. None of these values names a file, a host or code. Other machine
settings belong in the environment of the command that starts Outrider or the server; engines
inherit it.
"""

import math
import re
from collections.abc import Callable
from typing import Any

from outrider.common.redaction import looks_secret, redact

ARGUMENTS = frozenset({
    "all2all_backend", "allow_deprecated_quantization", "async_scheduling", "attention_backend",
    "attention_config", "block_size", "compilation_config", "convert",
    "cp_kv_cache_interleave_size", "cpu_offload_gb", "cpu_offload_params",
    "cudagraph_capture_sizes",
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
    "stream_interval", "structured_outputs_config", "swa_bounded_replay",
    "tokenizer_mode", "ubatch_size", "use_fp64_gumbel", "watermark",
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

TARGETS_TOKENIZER = (
    "Outrider tokenizes with the files in the target's directory, so give a copy of the target in"
    " which they are that tokenizer's (target.model)"
)

UNSERVABLE = {
    "speculative_config": "the evaluation serves base and custom speculator in turn (speculator.*)",
    "worker_cls": "Outrider's hooks extend vLLM's own worker",
    "worker_extension_cls": "capture and swaps of a speculator need Outrider's extension",
    "skip_tokenizer_init": "requests are sent as text",
    "tokenizer": TARGETS_TOKENIZER,
    "tokenizer_revision": TARGETS_TOKENIZER,
}
"""vLLM arguments that Outrider's engines do not support, each with the reason."""

_VARIABLES = re.compile(
    r"VLLM_(ALL2ALL|ALLOW_LONG_MAX_MODEL_LEN|ALLREDUCE|ATTENTION|BATCH_INVARIANT|BLOCKSCALE|CPU"
    r"|DBO|DCP|DEEPEP|DEEPEPLL|DEEP_GEMM|DISABLE_(COMPILE_CACHE|PYNCCL|SHARED_EXPERTS)|DISABLED_KERNELS|ENABLE_(CUDAGRAPH|INDUCTOR)|FLASH"
    r"|FLASHINFER|FLASHMLA|FLOAT32|FP8|FUSED|HUMMING|KV_CACHE_LAYOUT|MARLIN|MAX_TOKENS_PER_EXPERT"
    r"|MLA|MOE|MULTI_STREAM|MXFP[48]|NO_USAGE_STATS|NVFP4|PP_LAYER_PARTITION|ROCM|SHARED_EXPERTS"
    r"|SKIP_P2P_CHECK|SPARSE_INDEXER|TRITON|USE|V1|XPU)(_[A-Z0-9_]+)?"
    r"|NCCL_(ALGO|PROTO|NVLS_ENABLE|CUMEM_ENABLE|P2P_DISABLE|P2P_LEVEL|IB_DISABLE|SHM_DISABLE)"
    r"|CUDA_(DEVICE_MAX_CONNECTIONS|LAUNCH_BLOCKING|MODULE_LOADING)|PYTORCH_(CUDA_)?ALLOC_CONF"
    r"|OMP_NUM_THREADS|MKL_NUM_THREADS|KMP_(AFFINITY|BLOCKTIME)|PYTHONHASHSEED"
)
_NOT_VARIABLES = re.compile(
    r"VLLM_USE_(MODELSCOPE|PRECOMPILED|RUST)\w*|\w*_(DIR|PATH|FOLDER|FILE|CONFIG)"
)
"""Refused: variables that select a download source, another program, a path, or JSON or its file
(`VLLM_HUMMING_*_CONFIG`)."""


def _shown(name: str) -> str:
    """The name in one line: a line break in it would begin a line of the terminal."""
    return name if name and name.isprintable() else repr(name)


def variable_refusal(name: str, value: object) -> str | None:
    """Why this variable is refused (never quoting its value); None if allowed."""
    if looks_secret(name):
        return f"{_shown(name)}: it looks like a secret; export it where the server is started"
    if not _VARIABLES.fullmatch(name) or _NOT_VARIABLES.fullmatch(name):
        return (
            f"{_shown(name)}: not one of the variables that change what the engine computes;"
            " export it in the shell that starts the command, whose environment the engines inherit"
        )
    if not isinstance(value, str) or not value.isprintable() or redact(value) != value:
        return f"{name}: its value is not one line of plain text without secrets"
    return None


def argument_refusal(name: str, value: object) -> str | None:
    """Why a recipe or command may not set this argument (no value is quoted); None if it may."""
    if looks_secret(name):
        return f"{_shown(name)}: it looks like a secret; secrets belong in the server's environment"
    if name not in ARGUMENTS and name not in KEYS_OF_ARGUMENTS:
        return f"{_shown(name)}: not one of vLLM's arguments that change what the engine computes"
    words = value if isinstance(value, list) else [value]
    for word in words:
        if isinstance(word, str) and word.lstrip().startswith(("-", "{", "[")):
            return f"{name}: its value is a flag, or JSON in a string; write JSON as YAML"
    return _why_not_value(name, value)


_CODE = re.compile(
    r".*[._-](cls|class|module|plugin|pass(es)?|path|dir|file|cxx)|.*trust[_-]remote[_-]code",
    re.DOTALL | re.IGNORECASE,
)
"""Keys within an argument's value that name code or files."""


def _why_not_value(name: str, value: Any) -> str | None:
    """Why an argument of a recipe or command cannot have this value; None if it can."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if looks_secret(str(key)) or _CODE.fullmatch(str(key)):
                return f"{name}.{_shown(str(key))}: names code, a file or a secret"
            if reason := _why_not_value(f"{name}.{key}", inner):
                return reason
        return None
    if isinstance(value, list):
        return next((reason for item in value if (reason := _why_not_value(name, item))), None)
    if value is None or isinstance(value, bool | int | float):
        return None
    if not isinstance(value, str) or not value.isprintable() or redact(value) != value:
        return f"{name}: its value is not plain text without secrets"
    if name.endswith("backend") and "." in value:
        return f"{name}: its value names code"
    return None


_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_NOT_WORDS = {"true", "false", "null", "NaN", "Infinity", "None"}
"""Words that JSON or vLLM reads as another value."""
_OPERATION = re.compile(r"[+-]?[a-z][a-z0-9_]{0,63}")
_KEY = re.compile(r"[a-z][a-z0-9_]{0,63}")
_LARGEST = 2**53
"""Above it, JSON readers disagree about integers."""


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _integer(value: object) -> bool:
    # -1 is vLLM's `auto` or "no limit". Argparse would read -1e-05 as a flag.
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value <= _LARGEST


def _number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value) and 0 <= value <= _LARGEST
    return _integer(value)


def _word(value: object) -> bool:
    if not isinstance(value, str) or value in _NOT_WORDS:
        return False
    return _WORD.fullmatch(value) is not None


def _integers(value: object) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(_integer, value))


def _operations(value: object) -> bool:
    """Custom operations: names that `+` turns on and `-` turns off."""
    return isinstance(value, list) and all(
        isinstance(name, str) and _OPERATION.fullmatch(name) for name in value
    )


def _one_of(*values: object) -> Callable[[object], bool]:
    # The types too: in Python, 1 == True == 1.0.
    allowed = {(type(value), value) for value in values}
    return lambda value: isinstance(value, (str, int)) and (type(value), value) in allowed


def _object(**keys: Callable[[object], bool]) -> Callable[[object], bool]:
    """Objects with some of these keys."""

    def allows(value: object) -> bool:
        if not isinstance(value, dict) or not value.keys() <= keys.keys():
            return False
        return all(keys[key](inner) for key, inner in value.items())

    return allows


def _by_name(value: object, allows: Callable[[object], bool]) -> bool:
    """Objects with plain keys, each with an allowed value."""
    if not isinstance(value, dict):
        return False
    if not all(isinstance(key, str) and _KEY.fullmatch(key) for key in value):
        return False
    return all(map(allows, value.values()))


def _flags_by_name(value: object) -> bool:
    return _by_name(value, _flag)


def _rope(value: object) -> bool:
    """RoPE parameters: scalars by name, such as `rope_type: yarn`."""
    return _by_name(value, lambda inner: _flag(inner) or _number(inner) or _word(inner))


REASONING_PARSERS = (
    "cohere_command3", "cohere_command4", "deepseek_r1", "deepseek_v3", "deepseek_v4",
    "deepseek_v41", "ernie45", "gemma4", "glm45", "glm47", "granite", "granite_thinking_parser",
    "hf", "holo2", "hunyuan_a13b", "hy_v3", "hy_v4", "inkling", "k2_horizon", "kimi_k2", "kimi_k3",
    "ling3", "mimo", "minicpmv", "minimax_m2", "minimax_m2_append_think", "minimax_m3", "mistral",
    "muse_glimmer", "nemotron_v3", "olmo3", "openai_gptoss", "plamo3", "poolside_v1", "qwen3",
    "seed_oss", "step3", "step3p5",
)  # fmt: skip
"""vLLM 0.32's reasoning parsers (vllm/reasoning/__init__.py)."""

TOKENIZER_MODES = ("auto", "hf", "mistral", "deepseek_v32", "deepseek_v4")
OPTIMIZATION_LEVELS = (0, 1, 2, 3, "0", "1", "2", "3")
CUDAGRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")

_BY_TYPE: dict[Callable[[object], bool], tuple[str, ...]] = {
    _flag: (
        "allow_deprecated_quantization", "async_scheduling", "dcp_q_replicate",
        "disable_cascade_attn", "disable_chunked_mm_input", "disable_custom_all_reduce",
        "disable_hybrid_kv_cache_manager", "disable_nccl_for_dp_synchronization",
        "disable_sliding_window", "enable_batch_sharded_sampling", "enable_chunked_prefill",
        "enable_dbo", "enable_elastic_ep", "enable_ep_weight_filter", "enable_eplb",
        "enable_expert_parallel", "enable_flashinfer_autotune", "enable_prefix_caching",
        "enable_shm_tensor_arena", "enforce_eager", "kv_sharing_fast_prefill",
        "language_model_only", "long_prefill_token_threshold_adaptive",
        "scheduler_reserve_full_isl", "swa_bounded_replay", "use_fp64_gumbel",
    ),
    _integer: (
        "block_size", "cp_kv_cache_interleave_size", "data_parallel_size",
        "dbo_decode_token_threshold", "dbo_prefill_token_threshold",
        "dcp_kv_cache_interleave_size", "decode_context_parallel_size",
        "distributed_timeout_seconds", "dp_sync_interval", "kv_cache_memory_bytes",
        "long_prefill_token_threshold", "max_cudagraph_capture_size", "max_logprobs",
        "max_model_len", "max_num_active_seqs", "max_num_batched_tokens",
        "max_num_scheduled_tokens", "max_num_seqs", "max_parallel_loading_workers",
        "num_gpu_blocks_override", "offload_group_size", "offload_num_in_group",
        "offload_prefetch_step", "pipeline_parallel_size", "prefill_context_parallel_size",
        "prefill_schedule_interval", "prefix_cache_retention_interval", "seed",
        "stream_interval", "tensor_parallel_size", "ubatch_size",
    ),
    _number: ("cpu_offload_gb", "gpu_memory_utilization", "kv_offloading_size", "watermark"),
    _word: (
        "all2all_backend", "attention_backend", "convert",
        "dcp_comm_backend", "dtype", "expert_placement_strategy", "kv_cache_dtype",
        "kv_offloading_backend", "linear_backend", "logprobs_mode", "moe_backend",
        "offload_backend", "performance_mode", "prefix_caching_hash_algo", "quantization",
        "runner", "safetensors_load_strategy", "scheduling_policy", "sparse_indexer_topk_backend",
    ),
    _integers: ("cudagraph_capture_sizes",),
}  # fmt: skip

_BY_CHOICE: dict[str, Callable[[object], bool]] = {
    "distributed_executor_backend": _one_of("mp", "ray", "uni", "external_launcher"),
    # Other values are a path or a hub repository.
    "generation_config": _one_of("auto", "vllm"),
    "model_impl": _one_of("auto", "vllm", "transformers"),
    "optimization_level": _one_of(*OPTIMIZATION_LEVELS),
    "tokenizer_mode": _one_of(*TOKENIZER_MODES),
}

_COMPILATION = _object(
    mode=_one_of(0, 1, 2, 3),
    cudagraph_mode=_one_of(*CUDAGRAPH_MODES),
    cudagraph_capture_sizes=_integers,
    compile_sizes=_integers,
    custom_ops=_operations,
    pass_config=_flags_by_name,
)
_STRUCTURED_OUTPUTS = _object(
    backend=_word,
    disable_any_whitespace=_flag,
    enable_in_reasoning=_flag,
    reasoning_parser=_one_of(*REASONING_PARSERS),
)
_BY_KEY: dict[str, Callable[[object], bool]] = {
    "attention_config": _object(backend=_word, flash_attn_version=_integer),
    "compilation_config": _COMPILATION,
    "eplb_config": _object(
        window_size=_integer,
        step_interval=_integer,
        num_redundant_experts=_integer,
        log_balancedness=_flag,
        use_async=_flag,
    ),
    "hf_overrides": _object(
        rope_parameters=_rope, rope_scaling=_rope, max_position_embeddings=_integer
    ),
    "kernel_config": _object(enable_flashinfer_autotune=_flag, moe_backend=_word),
    "limit_mm_per_prompt": _object(image=_integer, video=_integer, audio=_integer),
    "override_generation_config": _object(
        temperature=_number,
        top_p=_number,
        top_k=_integer,
        min_p=_number,
        repetition_penalty=_number,
        max_new_tokens=_integer,
    ),
    "structured_outputs_config": _STRUCTURED_OUTPUTS,
}

OF_BUNDLES: dict[str, Callable[[object], bool]] = {**_BY_CHOICE, **_BY_KEY}
"""Arguments of vLLM 0.32 that a bundle may set, each with the check of its value."""
for _allows, _names in _BY_TYPE.items():
    OF_BUNDLES |= dict.fromkeys(_names, _allows)

_VALUE_OF_BUNDLES = re.compile(r"[A-Za-z0-9_.,:|+\[\]-]{0,200}")
"""Values of a bundle's variables: no path, no space, nothing that a shell or Kubernetes expands."""


def bundle_argument_refusal(name: str, value: object) -> str | None:
    """Why a bundle may not set this argument (its value is not quoted); None if it may."""
    if name not in OF_BUNDLES:
        return f"{_shown(name)}: not one of the arguments that a bundle may set"
    if value is not None and not OF_BUNDLES[name](value):
        return f"{name}: not a value that a bundle may set"
    return None


def bundle_variable_refusal(name: str, value: object) -> str | None:
    """Why a bundle may not set this variable (its value is not quoted); None if it may."""
    reason = variable_refusal(name, value)
    if reason is None and not _VALUE_OF_BUNDLES.fullmatch(str(value)):
        return f"{name}: not a value that a bundle may set"
    return reason
