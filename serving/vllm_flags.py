"""Flags of `vllm serve` that are no engine setting of a recipe, and why each is left out.

allowed.py lists the engine's settings, which are kept. Every other flag of vLLM 0.32's parser is
here, by its Python name, and so is every flag that releases since 0.2 had and 0.32 has not, from
the history of vllm/engine/arg_utils.py and vllm/entrypoints/openai/cli_args.py. A flag on no list
is unknown.
"""

from typing import Any

CHANGES_TEXT = frozenset({
    "anthropic_disabled_thinking_effort", "chat_template", "chat_template_content_format",
    "cohere_format", "default_chat_template_kwargs", "enable_lora",
    "exclude_tools_when_tool_choice_none", "lora_modules", "reasoning_config", "tool_strict_level",
    "trust_request_chat_template",
    # Of earlier releases.
    "chat_template_text_format", "expand_tools_even_if_tool_choice_none",
    "logits_processor_pattern",
})  # fmt: skip
"""Flags that change prompts, weights or what a request may generate. They are left out and named:
logged token ids contain what they did."""

ADAPTERS = frozenset({"enable_lora", "lora_modules"})
"""Flags with which requests may name an adapter instead of the target."""

ACROSS_NODES = frozenset({
    "data_parallel_address", "data_parallel_backend", "data_parallel_external_lb",
    "data_parallel_hybrid_lb", "data_parallel_multi_port_external_lb", "data_parallel_rank",
    "data_parallel_rpc_port", "data_parallel_size_local", "data_parallel_start_rank",
    "data_parallel_supervisor_port", "master_addr", "master_port", "nnodes", "node_rank",
})  # fmt: skip
"""Flags that divide an engine's ranks among nodes (vllm/engine/arg_utils.py, create_engine_config).
The sizes that decide what it computes count the ranks of all nodes."""

PROMPT_ADAPTER = "vLLM 0.32 has no prompt adapters"
LOSSY = "accepts drafts that the target would not have sampled; vLLM 0.32 has only exact acceptance"
ROPE = (
    'vLLM 0.32 has it in --hf-overrides \'{"rope_parameters": {"rope_type": ..., "rope_theta": ...,'
    ' "factor": ...}, "max_position_embeddings": ...}\'; write it so'
)
GUIDED = "vLLM 0.32 has it in --structured-outputs-config '{\"backend\": ...}'; write it so"
EPLB = "vLLM 0.32 has it in --eplb-config '{\"num_redundant_experts\": ...}'; write it so"
KV_SCALES = "vLLM 0.32 reads the scales of an FP8 KV cache from the checkpoint only"

REFUSED = {
    "additional_config": "settings of a platform's plug-in, whose effect is unknown",
    "config_format": (
        "only config.json and safetensors in Hugging Face's format are read, and with `mistral`"
        " vLLM reads params.json and Mistral's own weights: set target.model to a directory of the"
        " model in Hugging Face's format"
    ),
    "diffusion_config": "for diffusion models, which are no supported targets",
    "headless": "the command of a further node; give the first node's, without --headless",
    "hf_config_path": "config.json is read from the target's directory; copy the file there",
    "ir_op_priority": "write it as --kernel-config '{\"ir_op_priority\": ...}'",
    "logits_processors": "code that changes the logits that drafts are verified against",
    "model_class_overrides": "another implementation of the model than vLLM's own",
    "scheduler_cls": "Outrider's engines run vLLM's own scheduler",
    "watermark_config": "changes which tokens are sampled",
    # Of earlier releases.
    "calculate_kv_scales": KV_SCALES,
    "enable_prompt_adapter": PROMPT_ADAPTER,
    "eplb_log_balancedness": EPLB,
    "eplb_step_interval": EPLB,
    "eplb_window_size": EPLB,
    "guided_decoding_backend": GUIDED,
    "guided_decoding_disable_additional_properties": GUIDED,
    "guided_decoding_disable_any_whitespace": GUIDED,
    "guided_decoding_disable_fallback": GUIDED,
    "model_weights": "the weights are read from the target's directory",
    "num_redundant_experts": EPLB,
    "override_attention_dtype": "vLLM 0.32 computes attention in --dtype",
    "override_neuron_config": "Outrider's engines run on CUDA GPUs and CPUs",
    "prompt_adapters": PROMPT_ADAPTER,
    "qlora_adapter_name_or_path": "changes the weights; merge the adapter into the checkpoint",
    "quantization_param_path": KV_SCALES,
    "rope_scaling": ROPE,
    "rope_theta": ROPE,
    "spec_decoding_acceptance_method": LOSSY,
    "typical_acceptance_sampler_posterior_alpha": LOSSY,
    "typical_acceptance_sampler_posterior_threshold": LOSSY,
    "use_dummy_weights": "vLLM 0.32 has it as --load-format dummy",
}
"""Flags that change what the engine computes and have no equal in Outrider's engines, and why."""

FASTER_LOADING = (
    "auto", "fastsafetensors", "hf", "instanttensor", "ipc_cache", "modelexpress", "runai_streamer",
    "safetensors", "tensorizer",
)  # fmt: skip
"""Values of --load-format with which the weights are those of the target's safetensors files
(vllm/config/load.py). `tensorizer` and `ipc_cache` read a copy of them from elsewhere."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "additional_config": ({},),
    "config_format": ("auto", "hf"),
    "load_format": FASTER_LOADING,
    "spec_decoding_acceptance_method": ("rejection_sampler",),
}
"""Values with which a flag has no effect."""

SPECULATIVE = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
    # Of earlier releases.
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
    "num_speculative_tokens": "num_speculative_tokens",
    "speculative_disable_by_batch_size": "disable_by_batch_size",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
    "speculative_max_model_len": "max_model_len",
    "speculative_model": "model",
    "speculative_model_quantization": "quantization",
}
"""Flags that set a key of `speculative_config`."""

HARMLESS = frozenset({
    # The API server: addresses, keys, logs, formats of answers.
    "allow_credentials", "allowed_headers", "allowed_local_media_path", "allowed_media_domains",
    "allowed_methods", "allowed_origins", "api_key", "api_server_count",
    "cohere_is_reasoning_model", "config",
    "disable_access_log_for_endpoints", "disable_fastapi_docs", "disable_uvicorn_access_log",
    "dp_supervisor_probe_failure_threshold", "dp_supervisor_probe_interval_s",
    "dp_supervisor_probe_timeout_s", "enable_auto_tool_choice", "enable_flash_late_interaction",
    "enable_force_include_usage", "enable_log_deltas", "enable_log_outputs", "enable_log_requests",
    "enable_offline_docs", "enable_per_request_metrics", "enable_prompt_tokens_details",
    "enable_request_id_headers", "enable_scale_out", "enable_server_load_tracking",
    "enable_ssl_refresh", "enable_tokenizer_info_endpoint", "fingerprint_mode",
    "fingerprint_value", "grpc", "grpc_port", "h11_max_header_count",
    "h11_max_incomplete_event_size", "help", "host", "log_config_file", "log_error_stack",
    "log_level", "max_log_len", "max_num_queued_reqs", "max_num_queued_tokens", "middleware",
    "port", "reasoning_parser", "reasoning_parser_plugin", "renderer_num_workers", "response_role",
    "return_tokens_as_token_ids", "root_path", "served_model_name", "shutdown_timeout",
    "sse_keep_alive_interval", "ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_ciphers",
    "ssl_keyfile", "tokens_only", "tool_call_parser", "tool_parser_plugin", "tool_server",
    "trust_request_mm_kwargs", "uds", "uvicorn_log_level",
    # What requests may ask for in addition.
    "enable_prompt_embeds", "enable_return_routed_experts", "enable_trace_replay",
    "return_sampling_mask", "aux_output_config", "pooler_config", "io_processor_plugin",
    # Metrics and profiles.
    "aggregate_engine_logging", "collect_detailed_traces", "cudagraph_metrics",
    "custom_histogram_buckets", "disable_log_stats", "enable_layerwise_nvtx_tracing",
    "enable_logging_iteration_details",
    "enable_mfu_metrics", "jit_monitor_mode", "jit_monitor_verbose", "kv_cache_metrics",
    "kv_cache_metrics_sample", "logging_config", "otlp_traces_endpoint",
    "per_request_spec_decode_metrics", "profiler_config", "ray_workers_use_nsight",
    "show_hidden_metrics_for_version",
    # Where files and code come from. vLLM has its own code for every supported target.
    "code_revision", "download_dir", "hf_token", "ignore_patterns", "model_loader_extra_config",
    "pt_load_map_location", "safetensors_prefetch_block_size", "safetensors_prefetch_num_threads",
    "trust_remote_code", "use_tqdm_on_load",
    # Where processes run, and what they exchange with other servers.
    "cpu_distributed_timeout_seconds", "device_ids", "ec_manager_config",
    "ec_transfer_config", "elastic_ep_max_dp_size", "enable_cumem_allocator",
    "enable_fault_tolerance", "enable_nccl_comm_suspend", "enable_sleep_mode",
    "fail_on_environ_validation", "fault_tolerance_config", "kv_events_config",
    "kv_transfer_config", "numa_bind", "numa_bind_cpus",
    "numa_bind_nodes", "prefix_match_unit", "sleep_mode_offload_cudagraph",
    "sleep_preserve_parameter_names", "weight_transfer_config",
    # For Mamba, linear attention, hyper-connections and n-gram embeddings: no supported target.
    "enable_hc_sp", "enable_mamba_cache_stochastic_rounding",
    "enable_mamba_shared_prefix_checkpoint", "engram_config", "gdn_prefill_backend",
    "kda_decode_backend", "kda_prefill_backend", "mamba_backend", "mamba_block_size",
    "mamba_cache_dtype", "mamba_cache_mode", "mamba_cache_philox_rounds",
    "mamba_ssm_cache_dtype", "mamba_ssu_algorithm", "replayssm_buffer_len", "use_replayssm",
    # For images, audio and video: supported targets read text.
    "enable_mm_embeds", "interleave_mm_strings", "media_io_kwargs", "mm_device_do_normalize",
    "mm_encoder_attn_backend", "mm_encoder_attn_dtype", "mm_encoder_fp8_scale_path",
    "mm_encoder_fp8_scale_save_margin", "mm_encoder_fp8_scale_save_path", "mm_encoder_only",
    "mm_encoder_tp_mode", "mm_hasher_algorithm", "mm_ipc_gpu_memory_gb", "mm_processor_cache_gb",
    "mm_processor_cache_type", "mm_processor_device", "mm_processor_kwargs",
    "mm_shm_cache_max_object_size_mb", "mm_tensor_ipc", "skip_mm_profiling", "video_pruning_method",
    "video_pruning_rate",
    # Sizes for adapters, which --enable-lora switches on.
    "default_mm_loras", "enable_mixed_moe_lora_format", "enable_moe_shared_loras",
    "enable_tower_connector_lora", "fully_sharded_loras", "lora_dtype", "lora_target_modules",
    "max_cpu_loras", "max_lora_cls_labels", "max_lora_rank", "max_loras", "specialize_active_lora",
    # Of earlier releases, which commands in use still have: scheduling, memory, processes,
    # adapters, images, pooling, loading.
    "cuda_graph_sizes", "device", "disable_async_output_proc", "disable_frontend_multiprocessing",
    "disable_image_processor", "disable_log_requests", "disable_logprobs_during_spec_decoding",
    "disable_mm_preprocessor_cache", "enable_lora_bias", "enable_mm_processor_stats",
    "enable_multimodal_encoder_data_parallel", "enable_reasoning", "encryption_keyfile",
    "engine_use_ray", "exclude_log_deltas", "forced_num_gpu_blocks", "image_feature_size",
    "image_input_shape", "image_input_type", "image_processor", "image_processor_revision",
    "image_token_id", "long_lora_scaling_factors", "lora_extra_vocab_size", "mamba_config",
    "max_context_len_to_capture", "max_long_partial_prefills", "max_num_partial_prefills",
    "max_paddings", "max_prompt_adapter_token", "max_prompt_adapters", "max_seq_len_to_capture",
    "mm_cache_preprocessor", "multi_step_stream_outputs", "num_lookahead_slots", "num_readers",
    "num_scheduler_steps", "override_pooler_config", "pooling_norm", "pooling_returned_token_ids",
    "pooling_softmax", "pooling_step_tag_id", "pooling_type", "preemption_mode", "s3_access_key_id",
    "s3_endpoint", "s3_secret_access_key", "scheduler_delay_factor",
    "speculative_disable_mqa_scorer", "swap_space", "task", "tensorizer_uri",
    "tokenizer_pool_extra_config", "tokenizer_pool_size",
    "tokenizer_pool_type", "use_gpu_for_pooling_score", "use_np_weights", "use_v2_block_manager",
    "verify_hash", "vllm_tensorized", "worker_use_ray",
})  # fmt: skip
"""Flags without effect on what the engine computes for a supported target."""

SWITCHES = frozenset({
    "calculate_kv_scales", "disable_async_output_proc", "disable_frontend_multiprocessing",
    "disable_image_processor", "disable_log_requests", "disable_logprobs_during_spec_decoding",
    "disable_mm_preprocessor_cache", "enable_lora_bias", "enable_mm_processor_stats",
    "enable_multimodal_encoder_data_parallel", "enable_prompt_adapter", "enable_reasoning",
    "engine_use_ray", "eplb_log_balancedness", "exclude_log_deltas",
    "expand_tools_even_if_tool_choice_none", "guided_decoding_disable_additional_properties",
    "guided_decoding_disable_any_whitespace", "guided_decoding_disable_fallback",
    "mm_cache_preprocessor", "multi_step_stream_outputs", "pooling_norm", "pooling_softmax",
    "speculative_disable_mqa_scorer", "use_dummy_weights", "use_gpu_for_pooling_score",
    "use_np_weights", "use_v2_block_manager", "verify_hash", "vllm_tensorized", "worker_use_ray",
})  # fmt: skip
"""Flags of earlier releases without a value."""

PLUGIN_FLAGS = frozenset({
    "--enable-shift-parallel", "--shift-parallel-threshold", "--ulysses-sequence-parallel-size",
})  # fmt: skip
"""Flags that the plug-in ArcticInference adds (its vllm/args.py)."""

KNOWN = CHANGES_TEXT | REFUSED.keys() | SPECULATIVE.keys() | HARMLESS | ACROSS_NODES

FLAGS_OF_VARIABLES = {
    "VLLM_ALL2ALL_BACKEND": "--all2all-backend",
    "VLLM_ATTENTION_BACKEND": "--attention-backend",
    "VLLM_FLASH_ATTN_VERSION": "--attention-config.flash_attn_version",
    "VLLM_FLASHINFER_MOE_BACKEND": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_FP16": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_FP4": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_FP8": "--moe-backend",
}
"""Variables of earlier releases, and the flag that vLLM 0.32 has instead."""
