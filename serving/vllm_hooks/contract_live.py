"""What the live endpoint's hooks use of vLLM's private interfaces; a part of contract.py."""

from outrider.serving.vllm_hooks.source_checks import Attribute, Check, Name, Order, Signature

TRANSFER = "vllm.distributed.weight_transfer"
WORKER = "vllm.v1.worker.gpu_worker"
ASYNC_LLM = "vllm.v1.engine.async_llm"
PROCESSOR = "vllm.v1.engine.output_processor"
LAYER_UTILS = "vllm.model_executor.layers.utils"

EXCHANGE: list[Check] = [
    Signature(
        f"{TRANSFER}.factory",
        "WeightTransferEngineFactory.register_engine",
        ("name", "module_path_or_cls", "class_name"),
        called=True,
    ),
    Signature(
        f"{TRANSFER}.base",
        "WeightTransferEngine.__init__",
        ("config", "vllm_config", "device", "model"),
    ),
    *(
        Signature(f"{TRANSFER}.base", f"WeightTransferEngine.{method}", first)
        for method, first in (
            ("init_transfer_engine", ("init_info",)),
            ("start_weight_update", ()),
            ("receive_weights", ("update_info",)),
            ("finish_weight_update", ()),
            ("shutdown", ()),
        )
    ),
    Name(f"{TRANSFER}.base", "WeightTransferInitInfo"),
    Name(f"{TRANSFER}.base", "WeightTransferUpdateInfo"),
    Attribute(f"{TRANSFER}.base", "WeightTransferEngine", "_default_model"),
    Attribute(f"{TRANSFER}.base", "WeightTransferEngine", "_default_model_config"),
    Name("vllm.config", "set_current_vllm_config"),
    Attribute(WORKER, "Worker", "weight_transfer_engine"),
    Order(  # the engine is made after the drafter is loaded
        WORKER,
        "Worker.load_model",
        ("self.model_runner.load_model(", "WeightTransferEngineFactory.create_engine("),
    ),
    Signature(WORKER, "Worker.init_weight_transfer_engine", ("init_info",), called=True),
    Signature(WORKER, "Worker.start_draft_weight_update", called=True),
    Signature(WORKER, "Worker.update_weights", ("update_info",), called=True),
    Signature(WORKER, "Worker.finish_weight_update", called=True),
    Order(  # a failed update ends the session
        WORKER,
        "Worker.update_weights",
        (
            "self.weight_transfer_engine.update_weights(local_update_info)",
            "self._weight_update_active = False",
            "raise",
        ),
    ),
    # One worker's error leaves the other workers' answers unread, so ours do not raise.
    Order(
        "vllm.v1.executor.multiproc_executor",
        "MultiprocExecutor.collective_rpc",
        ("for mq in response_mqs:", "raise RuntimeError("),
    ),
    Attribute("vllm.config.speculative", "SpeculativeConfig", "model"),
    Attribute("vllm.config.speculative", "SpeculativeConfig", "num_speculative_tokens"),
    Attribute("vllm.config.speculative", "SpeculativeConfig", "draft_model_config"),
    Order(LAYER_UTILS, "dispatch_cpu_unquantized_gemm", ("layer.cpu_linear = ",)),
]
"""weight_transfer.py, exchange.py, drafter_digest.py"""

ADMIN: list[Check] = [
    Name("vllm.engine.protocol", "EngineClient"),
    Attribute("vllm.plugins.endpoint_plugins.interface", "EndpointPlugin", "required_tasks"),
    Signature("vllm.plugins.endpoint_plugins.interface", "EndpointPlugin.attach_router", ("app",)),
    Signature(
        "vllm.plugins.endpoint_plugins.interface",
        "EndpointPlugin.init_state",
        ("engine_client", "state", "args"),
    ),
    Order(  # looked up when it is called, so that ours is
        "vllm.plugins.endpoint_plugins.interface",
        "attach_endpoint_plugins",
        (
            "from vllm.plugins import load_endpoint_plugins",
            "load_endpoint_plugins(supported_tasks)",
            "app.state.endpoint_plugins = endpoint_plugins",
        ),
    ),
    Signature(ASYNC_LLM, "AsyncLLM.pause_generation", named=("mode", "clear_cache"), called=True),
    Signature(ASYNC_LLM, "AsyncLLM.resume_generation", called=True),
    Attribute(ASYNC_LLM, "AsyncLLM", "engine_core"),
    Attribute(ASYNC_LLM, "AsyncLLM", "output_processor"),
    Attribute(ASYNC_LLM, "AsyncLLM", "vllm_config"),
    Signature(
        "vllm.v1.engine.core_client",
        "AsyncMPClient.call_utility_all_async",
        ("method",),
        called=True,
    ),
    Signature(
        "vllm.v1.engine.core",
        "EngineCore.collective_rpc",
        ("method", "timeout", "args", "kwargs"),
        called=True,
    ),
    # What a finished request has.
    Signature(
        PROCESSOR,
        "OutputProcessor._update_stats_from_finished",
        ("req_state", "finish_reason", "iteration_stats"),
    ),
    Signature(PROCESSOR, "OutputProcessor.abort_requests", ("request_ids", "internal")),
    Attribute(PROCESSOR, "OutputProcessor", "request_states"),
    Order(
        PROCESSOR,
        "OutputProcessor.process_outputs",
        (
            "req_state.spec_decode_metrics = engine_core_output.spec_decode_metrics",
            "self._update_stats_from_finished(",
        ),
    ),
    *(
        Attribute(PROCESSOR, "RequestState", name)
        for name in ("external_req_id", "prompt_len", "stats", "spec_decode_metrics")
    ),
    *(
        Attribute("vllm.v1.metrics.stats", "RequestStateStats", name)
        for name in (
            "arrival_time",
            "first_token_ts",
            "last_token_ts",
            "first_token_latency",
            "num_generation_tokens",
        )
    ),
    Attribute("vllm.v1.metrics.stats", "RequestSpecDecodeMetrics", "histogram"),
    Attribute("vllm.config.cache", "CacheConfig", "enable_prefix_caching"),
    Attribute(
        "vllm.config.observability", "ObservabilityConfig", "per_request_spec_decode_metrics"
    ),
    Attribute("vllm.config.vllm", "VllmConfig", "weight_transfer_config"),
]
"""admin_route.py, live_speculator.py, live_requests.py, live_flags.py"""
