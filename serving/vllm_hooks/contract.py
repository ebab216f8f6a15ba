"""What the hooks and the engine use of vLLM's private interfaces, as data.

    python -m outrider.serving.vllm_hooks.contract     # prints what the installed vLLM lacks

Written for the release in version.py. V1 and V2 are vLLM's two model runners: V2 is the default on
a GPU, V1 runs where there is no Triton. A release that changes a name, a signature or an order
below breaks the hook that is named with it.
"""

import sys

from outrider.serving.config import KEYS_OF_ARGUMENTS, UNSERVABLE
from outrider.serving.in_process import CONTRADICTS
from outrider.serving.vllm_hooks.contract_live import ADMIN, EXCHANGE
from outrider.serving.vllm_hooks.source_checks import (
    Attribute,
    Check,
    Inherits,
    Name,
    Order,
    Signature,
    Sources,
)
from outrider.serving.vllm_hooks.version import vllm_version

WORKER = "vllm.v1.worker.gpu_worker"
WORKER_BASE = "vllm.v1.worker.worker_base"
V1 = "vllm.v1.worker.gpu_model_runner"
V1_DRAFTER = "vllm.v1.spec_decode.llm_base_proposer"
V2 = "vllm.v1.worker.gpu.model_runner"
V2_BATCH = "vllm.v1.worker.gpu.input_batch"
V2_DRAFTER = "vllm.v1.worker.gpu.spec_decode.speculator"
V2_CHAIN = "vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator"
V2_BLOCK = "vllm.v1.worker.gpu.spec_decode.dflash.speculator"
SCHEDULED = "vllm.v1.core.sched.output"
SCHEDULER = "vllm.v1.core.sched.scheduler"
VOCABULARY = "vllm.model_executor.layers.vocab_parallel_embedding"
LAYER_UTILS = "vllm.model_executor.layers.utils"
RELOAD = "vllm.model_executor.model_loader.reload"
SHARED_QUEUE = "vllm.distributed.device_communicators.shm_broadcast"
DEEPSEEK = "vllm.model_executor.models.deepseek_v2"
DFLASH = "vllm.model_executor.models.qwen3_dflash"

_EXTENSION: list[Check] = [
    Attribute(WORKER_BASE, "WorkerBase", "model_runner"),
    Attribute(WORKER_BASE, "WorkerBase", "model_config"),
    Attribute(WORKER_BASE, "WorkerBase", "vllm_config"),
    Attribute(WORKER_BASE, "WorkerBase", "device"),
    Attribute(WORKER_BASE, "WorkerBase", "is_driver_worker"),
    Inherits(WORKER, "Worker", "WorkerBase"),
    Attribute("vllm.config.parallel", "ParallelConfig", "worker_extension_cls"),
    Attribute("vllm.config.vllm", "VllmConfig", "use_v2_model_runner"),
    Order(WORKER, "Worker._make_model_runner", ("self.use_v2_model_runner", "GPUModelRunnerV2")),
    Signature("vllm.entrypoints.llm", "LLM.collective_rpc", ("method",), ("args",), called=True),
]
"""Worker extensions in general: worker_base.py mixes them into the worker."""

_CAPTURE: list[Check] = [
    *(
        Attribute(SCHEDULED, "SchedulerOutput", name)
        for name in (
            "scheduled_new_reqs",
            "scheduled_cached_reqs",
            "num_scheduled_tokens",
            "total_num_scheduled_tokens",
        )
    ),
    *(
        Attribute(SCHEDULED, "NewRequestData", name)
        for name in ("req_id", "prompt_token_ids", "sampling_params", "num_computed_tokens")
    ),
    Attribute(SCHEDULED, "CachedRequestData", "req_ids"),
    Attribute(SCHEDULED, "CachedRequestData", "num_computed_tokens"),
    Attribute("vllm.sampling_params", "SamplingParams", "extra_args"),
    Attribute("vllm.config.model", "ModelConfig", "get_vocab_size"),
    Attribute("vllm.config.model", "ModelConfig", "get_hidden_size"),
    Order(
        "vllm.v1.engine.input_processor",
        "InputProcessor.assign_request_id",
        ("request.request_id = f'{request.external_req_id}-{random_uuid():.8}'",),
    ),
    # V1
    Signature(V1, "GPUModelRunner.execute_model", ("scheduler_output",)),
    Attribute(V1, "GPUModelRunner", "execute_model_state"),
    Attribute(V1, "GPUModelRunner", "input_batch"),
    Attribute(V1, "ExecuteModelState", "hidden_states"),
    Order(
        V1,
        "GPUModelRunner.execute_model",
        (
            "req_ids = self.input_batch.req_ids",
            "scheduler_output.num_scheduled_tokens[i] for i in req_ids",
            "self.execute_model_state = ExecuteModelState(scheduler_output, logits,",
            "hidden_states, sample_hidden_states",
            "return None",
        ),
    ),
    Order(
        V1,
        "GPUModelRunner.sample_tokens",
        ("= self.execute_model_state", "self.execute_model_state = None"),
    ),
    # V2
    Signature(V2, "GPUModelRunner.execute_model", ("scheduler_output",)),
    Attribute(V2, "GPUModelRunner", "execute_model_state"),
    Attribute(V2, "GPUModelRunner", "pcp_manager"),
    Attribute(V2, "ExecuteModelState", "hidden_states"),
    Attribute(V2, "ExecuteModelState", "input_batch"),
    Attribute(V2_BATCH, "InputBatch", "req_ids"),
    Order(
        V2,
        "GPUModelRunner.execute_model",
        (
            "input_batch = self.prepare_inputs(",
            "model_output = self.model(**model_inputs)",
            "hidden_states = model_output",
            "hidden_states = None",  # on a pipeline stage that is not the last
            "self.execute_model_state = ExecuteModelState(input_batch=input_batch",
            "hidden_states=hidden_states",
            "return None",
        ),
    ),
    Order(
        V2,
        "GPUModelRunner.prepare_inputs",
        (
            "req_ids = batch_req_state.req_ids",
            "np.cumsum(num_scheduled_tokens_np",
            "input_batch = InputBatch(req_ids=req_ids",
        ),
    ),
    Order(
        V2,
        "GPUModelRunner.sample_tokens",
        ("= self.execute_model_state.hidden_states", "self.execute_model_state = None"),
    ),
    Order(
        "vllm.v1.worker.cpu.model_runner",
        "CPUModelRunner",
        ("class CPUModelRunner(GPUModelRunner",),
    ),
]
"""capture_extension.py"""

_AUXILIARY: list[Check] = [
    Name("vllm.model_executor.models.interfaces", "supports_eagle3"),
    Attribute("vllm.config.model", "ModelConfig", "enforce_eager"),
    Attribute("vllm.config.model", "ModelConfig", "model"),
    Signature("vllm.config.model", "ModelConfig.get_total_num_hidden_layers", called=True),
    Attribute("vllm.config.parallel", "ParallelConfig", "pipeline_parallel_size"),
    Attribute(DEEPSEEK, "DeepseekV2Model", "aux_hidden_state_layers"),
    Signature(
        DEEPSEEK, "DeepseekV2ForCausalLM.set_aux_hidden_state_layers", ("layers",), called=True
    ),
    Inherits(DEEPSEEK, "DeepseekV3ForCausalLM", "DeepseekV2ForCausalLM"),
    Order(  # before layer idx, the residual added, in the order of the layers
        DEEPSEEK,
        "DeepseekV2Model.forward",
        (
            "aux_hidden_states = []",
            "start=self.start_layer",
            "if idx in self.aux_hidden_state_layers:",
            "aux_hidden_state = hidden_states + residual",
            "aux_hidden_states.append(aux_hidden_state)",
            "hidden_states, residual = layer(positions",
            "if not get_pp_group().is_last_rank:",
            "if self.end_layer in self.aux_hidden_state_layers:",
            "aux_hidden_states.append(hidden_states + residual)",
            "self.norm(hidden_states, residual)",
            "return (hidden_states, aux_hidden_states)",
        ),
    ),
    *(
        check
        for runner in (V1, V2)
        for check in (
            Attribute(runner, "GPUModelRunner", "use_aux_hidden_state_outputs"),
            Attribute(runner, "GPUModelRunner", "speculative_config"),
            Attribute(runner, "GPUModelRunner", "vllm_config"),
            Attribute(runner, "ExecuteModelState", "aux_hidden_states"),
            Signature(runner, "GPUModelRunner.get_model", called=True),
        )
    ),
    Order(
        V1,
        "GPUModelRunner.execute_model",
        (
            "if self.use_aux_hidden_state_outputs:",
            "hidden_states, aux_hidden_states = model_output",
            "self.execute_model_state = ExecuteModelState(",
            "aux_hidden_states",
        ),
    ),
    Order(
        V2,
        "GPUModelRunner.execute_model",
        (
            "if self.use_aux_hidden_state_outputs:",
            "hidden_states, aux_hidden_states = model_output",
            "self.execute_model_state = ExecuteModelState(",
            "aux_hidden_states=aux_hidden_states",
        ),
    ),
]
"""auxiliary_states.py"""

_DRAFTS: list[Check] = [
    # V1
    Attribute(V1, "GPUModelRunner", "drafter"),
    Inherits("vllm.v1.spec_decode.eagle", "EagleProposer", "SpecDecodeBaseProposer"),
    Order(
        V1,
        "GPUModelRunner.__init__",
        ("get_pp_group().is_last_rank", "use_eagle()", "self.drafter = EagleProposer("),
    ),
    Order(
        V1,
        "GPUModelRunner.propose_draft_token_ids",
        ("draft_token_ids = self.drafter.propose(num_speculative_tokens=",),
    ),
    Order(  # a parallel drafter: all depths in one call, request after request
        V1_DRAFTER,
        "SpecDecodeBaseProposer.propose",
        (
            "if self.num_speculative_tokens == 1 or self.parallel_drafting:",
            "self._sample_draft_tokens(sample_hidden_states, sampling_metadata)",
            "return draft_token_ids.view(-1, self.num_speculative_tokens)",
        ),
    ),
    Signature(
        V1_DRAFTER,
        "SpecDecodeBaseProposer.propose",
        named=(
            "target_positions",
            "next_token_ids",
            "token_indices_to_sample",
            "common_attn_metadata",
        ),
    ),
    Order(
        V1_DRAFTER,
        "SpecDecodeBaseProposer.propose",
        (
            "self.set_inputs_first_pass(",
            "self._sample_draft_tokens(",
            "self._sample_draft_tokens(",
            "self._sample_draft_tokens(",
        ),
    ),
    Signature(V1_DRAFTER, "SpecDecodeBaseProposer._sample_draft_tokens", ("hidden_states",)),
    Order(
        V1_DRAFTER,
        "SpecDecodeBaseProposer._sample_draft_tokens",
        ("self.model.compute_logits(hidden_states)", "return (draft_token_ids, draft_probs)"),
    ),
    Order(
        V1_DRAFTER,
        "SpecDecodeBaseProposer.set_inputs_first_pass",
        ("token_indices_to_sample = cad.query_start_loc[1:] - 1",),
    ),
    Attribute("vllm.v1.attention.backend", "CommonAttentionMetadata", "query_start_loc"),
    Inherits("vllm.v1.spec_decode.dflash", "DFlashProposer", "SpecDecodeBaseProposer"),
    Order(
        V1,
        "GPUModelRunner.__init__",
        ("get_pp_group().is_last_rank", "use_dflash()", "self.drafter = DFlashProposer("),
    ),
    # V2
    Attribute(V2, "GPUModelRunner", "speculator"),
    Inherits(V2_BLOCK, "DFlashSpeculator", "DraftModelSpeculator"),
    Signature(
        V2_BLOCK,
        "DFlashSpeculator.propose",
        named=(
            "input_batch",
            "num_sampled",
            "num_rejected",
            "last_sampled",
            "next_prefill_tokens",
            "dummy_run",
            "num_speculative_tokens",
        ),
    ),
    Order(  # all depths in one call, request after request
        V2_BLOCK,
        "DFlashSpeculator._generate_draft",
        (
            "num_sample = num_reqs * self.num_speculative_steps",
            "self.sample_draft(sample_hidden_states",
            "draft_tokens.view(num_reqs, self.num_speculative_steps)",
        ),
    ),
    Inherits(
        "vllm.v1.worker.gpu.spec_decode.mtp.speculator",
        "MTPSpeculator",
        "TargetDependentARSpeculator",
    ),
    Inherits(
        "vllm.v1.worker.gpu.spec_decode.eagle.speculator",
        "EagleSpeculator",
        "TargetDependentARSpeculator",
    ),
    Inherits(V2_CHAIN, "TargetDependentARSpeculator", "DraftModelSpeculator"),
    Order(
        V2,
        "GPUModelRunner.sample_tokens",
        (
            "self.postprocess_sampled(",
            "draft_tokens = self.speculator.propose(",
            "self.req_states.draft_tokens[input_batch.idx_mapping] = draft_tokens",
        ),
    ),
    Order(V2, "GPUModelRunner._dummy_run", ("self.speculator.propose(", "dummy_run=True")),
    Signature(
        V2_CHAIN,
        "TargetDependentARSpeculator.propose",
        named=(
            "input_batch",
            "num_sampled",
            "num_rejected",
            "last_sampled",
            "next_prefill_tokens",
            "dummy_run",
            "num_speculative_tokens",
        ),
    ),
    Order(
        V2_CHAIN,
        "TargetDependentARSpeculator.propose",
        (
            "prepare_prefill_inputs(",
            "self._prefill(num_reqs",
            "prepare_decode_inputs(",
            "self._fused_multi_step_decode",
            "self._multi_step_decode",
            "return self.draft_tokens[:num_reqs]",
        ),
    ),
    Order(  # the anchor and the token after it, which the recorder reads as this kernel does
        V2_CHAIN,
        "_prepare_prefill_inputs_kernel",
        (
            "query_len -= num_rejected",
            "if num_sampled > 0",
            "tl.load(last_sampled_ptr + req_state_idx)",
            "tl.load(next_prefill_tokens_ptr + req_state_idx)",
            "last_token_index = query_start + query_len - 1",
        ),
    ),
    Order(
        V2_CHAIN,
        "TargetDependentARSpeculator._prefill",
        (
            "sample_hidden_states = last_hidden_states[last_token_indices]",
            "self.sample_draft(sample_hidden_states",
        ),
    ),
    Order(
        V2_CHAIN,
        "TargetDependentARSpeculator._generate_draft",
        (
            "sample_hidden_states = last_hidden_states[:num_reqs]",
            "self.sample_draft(sample_hidden_states",
        ),
    ),
    Signature(
        V2_DRAFTER,
        "DraftModelSpeculator.sample_draft",
        ("hidden_states",),
        ("spec_step_idx",),
    ),
    Signature(
        V2_DRAFTER,
        "DraftModelSpeculator.compute_draft_logits",
        ("hidden_states", "spec_step_idx"),
        called=True,
    ),
    *(
        Attribute(V2_BATCH, "InputBatch", name)
        for name in ("num_reqs", "idx_mapping", "query_start_loc", "positions")
    ),
    Order(
        "vllm.v1.worker.gpu.states",
        "RequestState.__init__",
        (
            "self.last_sampled_tokens = torch.zeros(self.max_num_reqs, 1",
            "self.next_prefill_tokens = torch.zeros(num_prefill_lookahead, self.max_num_reqs",
        ),
    ),
]
"""draft_recorder.py"""

_SWAP: list[Check] = [
    Signature(V1, "GPUModelRunner.get_draft_model", called=True),
    Signature(V2, "GPUModelRunner.get_draft_model", called=True),
    Order(V2, "GPUModelRunner.get_draft_model", ("return speculator.model",)),
    Name(RELOAD, "initialize_layerwise_reload"),
    Name(RELOAD, "finalize_layerwise_reload"),
    Signature(f"{RELOAD}.layerwise", "initialize_layerwise_reload", ("model",), called=True),
    Order(
        f"{RELOAD}.layerwise",
        "finalize_layerwise_reload",
        ("finalize_layerwise_processing(*args, **kwargs)",),
    ),
    Signature(
        f"{RELOAD}.layerwise",
        "finalize_layerwise_processing",
        ("model", "model_config"),
        called=True,
    ),
    Attribute(V1_DRAFTER, "SpecDecodeBaseProposer", "model"),
    Order(
        "vllm.model_executor.models.llama_eagle3",
        "Eagle3LlamaForCausalLM.load_weights",
        ("elif 'mask_hidden' in name:", "self.mask_hidden.copy_(loaded_weight.view(1, -1))"),
    ),
    Signature(
        "vllm.model_executor.models.llama_eagle3",
        "Eagle3LlamaForCausalLM.combine_hidden_states",
        ("hidden_states",),
        called=True,
    ),
    Order(
        V1_DRAFTER,
        "SpecDecodeBaseProposer.load_model",
        (
            "self.model.mask_hidden.view(-1)",
            "self.parallel_drafting_hidden_state_tensor.copy_(self.model.combine_hidden_states(",
        ),
    ),
    Attribute(
        "vllm.model_executor.layers.fused_moe.fused_moe_method_base",
        "FusedMoEMethodBase",
        "moe_kernel",
    ),
    Signature(
        "vllm.model_executor.models.utils",
        "AutoWeightsLoader.load_weights",
        ("weights",),
        called=True,
    ),
    Signature(
        "vllm.model_executor.models.llama_eagle3",
        "Eagle3LlamaForCausalLM.load_weights",
        ("weights",),
        called=True,
    ),
    Signature(
        "vllm.model_executor.models.deepseek_eagle3",
        "Eagle3DeepseekV2ForCausalLM.load_weights",
        ("weights",),
        called=True,
    ),
    Order(
        DFLASH,
        "DFlashQwen3ForCausalLM.load_weights",
        ("loader.load_weights(", "self.model._build_fused_kv_buffers()"),
    ),
    Signature(DFLASH, "DFlashQwen3Model._build_fused_kv_buffers", called=True),
    Order(
        DFLASH,
        "DFlashQwen3Model._build_context_kv_buffers",
        (
            "self._hidden_norm_weight = self.hidden_norm.weight.data",
            "self._context_qkv_projs =",
            "self._fused_kv_weight",
            "self._k_norm_weights =",
        ),
    ),
    Order(  # the layer itself projects the context where there is no copy
        DFLASH,
        "DFlashQwen3Model._project_context_kv",
        ("if self._fused_kv_weight is not None:", "proj(normed_context_states)"),
    ),
    Signature(
        "vllm.model_executor.models.deepseek_mtp",
        "DeepSeekMTP.load_weights",
        ("weights",),
        called=True,
    ),
]
"""drafter_swap.py"""

_STEPS: list[Check] = [
    Signature(SCHEDULER, "Scheduler.schedule"),
    Attribute(SCHEDULER, "Scheduler", "num_spec_tokens"),
    Attribute(SCHEDULER, "Scheduler", "dynamic_sd_lookup"),
    Order(
        SCHEDULER,
        "Scheduler.schedule",
        ("num_spec_tokens_to_schedule = self.dynamic_sd_lookup[len(num_scheduled_tokens)]",),
    ),
    Signature(
        "vllm.v1.spec_decode.dynamic.utils",
        "build_dynamic_sd_schedule_lookup",
        (
            "num_speculative_tokens_per_batch_size",
            "vllm_max_batch_size",
            "vllm_num_speculative_tokens",
        ),
        called=True,
    ),
    # Without drafts the drafter still runs, so that its KV cache is complete.
    Order(V1_DRAFTER, "SpecDecodeBaseProposer.propose", ("if self.num_speculative_tokens == 0:",)),
    Attribute(SCHEDULED, "SchedulerOutput", "num_spec_tokens_to_schedule"),
    Order(V1, "GPUModelRunner", ("num_spec_tokens_to_schedule",)),
    Order(V2, "GPUModelRunner.sample_tokens", ("num_speculative_tokens=num_spec_tokens",)),
]
"""step_recorder.py"""

_PATCHES: list[Check] = [
    Order(
        "vllm.plugins",
        "load_general_plugins",
        ("load_plugins_by_group(group=DEFAULT_PLUGINS_GROUP)", "func()"),
    ),
    Order("vllm.plugins", "DEFAULT_PLUGINS_GROUP", ("'vllm.general_plugins'",)),
    Signature("vllm.triton_utils.dispatcher", "register_kernels", ("overrides",), called=True),
    Name("vllm.utils.cpu_triton_utils", "_expand_kernel_impl"),
    Signature(
        "vllm.v1.sample.rejection_sampler",
        "expand_kernel",
        ("output_ptr", "input_ptr", "cu_num_tokens_ptr", "replace_from", "replace_to"),
    ),
    Order(
        "vllm.platforms.cpu",
        "CpuPlatform.register_triton_kernel_overrides",
        ("if HAS_TRITON:", "'vllm.v1.sample.rejection_sampler.expand_kernel'"),
    ),
    Signature("vllm.model_executor.models.registry", "_run_in_subprocess", ("fn",), called=True),
    Signature(VOCABULARY, "UnquantizedEmbeddingMethod.process_weights_after_loading", ("layer",)),
    Order(
        VOCABULARY, "UnquantizedEmbeddingMethod.embedding", ("F.embedding(input_, layer.weight)",)
    ),
    Signature(LAYER_UTILS, "dispatch_cpu_unquantized_gemm", ("layer", "remove_weight")),
    Order(LAYER_UTILS, "cpu_unquantized_gemm", ("layer.cpu_linear(x, weight, bias)",)),
    *(
        Name(module, "get_mp_context")
        for module in (
            "vllm.utils.system_utils",
            "vllm.v1.engine.utils",
            "vllm.v1.engine.coordinator",
            "vllm.v1.executor.multiproc_executor",
        )
    ),
    Signature(SHARED_QUEUE, "SpinCondition.record_read"),
    Attribute(SHARED_QUEUE, "SpinCondition", "busy_loop_s"),
    Order(SHARED_QUEUE, "SpinCondition.wait", ("self.last_read + self.busy_loop_s", "poll(")),
]
"""plugin.py, cpu_rejection_sampler.py, cpu_vocabulary.py, idle_polling.py, model_inspection.py,
process_start.py"""

_ENGINE: list[Check] = [
    Attribute("vllm.v1.engine.llm_engine", "LLMEngine", "engine_core"),
    Attribute("vllm.v1.engine.llm_engine", "LLMEngine", "model_config"),
    Attribute("vllm.entrypoints.llm", "LLM", "llm_engine"),
    Signature("vllm.v1.engine.core_client", "MPClient.shutdown", ("timeout",), called=True),
    Signature("vllm.v1.engine.core_client", "MPClient.ensure_alive", called=True),
    # A batch that begins when it is complete (`Engine._together`).
    Signature("vllm.entrypoints.llm", "LLM.sleep", ("level",), called=True),
    Signature("vllm.entrypoints.llm", "LLM.wake_up", ("tags",), called=True),
    Signature(
        "vllm.entrypoints.llm",
        "LLM.enqueue",
        ("prompts", "sampling_params"),
        ("use_tqdm",),
        called=True,
    ),
    Order(
        "vllm.v1.engine.core",
        "EngineCoreProc.pause_scheduler",
        ("else PauseState.PAUSED_NEW", "self.scheduler.set_pause_state(pause_state)"),
    ),
    Order(
        "vllm.v1.core.sched.scheduler",
        "Scheduler.schedule",
        ("self._pause_state == PauseState.UNPAUSED", "request_queue = self.waiting"),
    ),
    Order(
        "vllm.entrypoints.serve.dev.rpc.api_router",
        "collective_rpc",
        ("body.get('method')", "body.get('kwargs'", "'results'"),
    ),
    Name("vllm.entrypoints.cli.main", "main"),
    Order(
        "vllm.entrypoints.llm", "LLM.__init__", ("_dp_size > 1", "raise ValueError(")
    ),  # in_process.py: data-parallel engines run in servers only
    Name("vllm.entrypoints.serve.dev.cache.api_router", "reset_prefix_cache"),
    Name("vllm.envs", "VLLM_ENGINE_READY_TIMEOUT_S"),
    *(
        Attribute("vllm.engine.arg_utils", "EngineArgs", name)
        for name in sorted({*KEYS_OF_ARGUMENTS, *UNSERVABLE, *CONTRADICTS})
    ),
]
"""engine.py, server.py, in_process.py, serve_command.py, vllm_command.py"""

CONTRACT: dict[str, list[Check]] = {
    "worker extensions": _EXTENSION,
    "capture_extension.py": _CAPTURE,
    "auxiliary_states.py": _AUXILIARY,
    "draft_recorder.py": _DRAFTS,
    "drafter_swap.py": _SWAP,
    "weight_transfer.py": EXCHANGE,
    "admin_route.py": ADMIN,
    "step_recorder.py": _STEPS,
    "plugin.py and patches": _PATCHES,
    "engine.py, server.py, serve_command.py": _ENGINE,
}
"""By the file that uses them."""


def check_contract(sources: Sources | None = None) -> list[str]:
    """One failure per name that the installed vLLM lacks, with the file that uses it."""
    sources = sources or Sources()
    failures = []
    for user, checks in CONTRACT.items():
        for check in checks:
            if failure := check.failure(sources):
                failures.append(f"{user}: {failure} (vLLM {vllm_version()})")
    return failures


def main() -> int:
    """Prints the failures; 1 if there are any."""
    failures = check_contract()
    for failure in failures:
        print(failure)
    print(f"{sum(map(len, CONTRACT.values()))} checks, {len(failures)} failures")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
