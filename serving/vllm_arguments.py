"""vLLM's arguments and environment for servers, in-process engines and serve.sh.

    engine_arguments(TargetConfig(), EngineConfig())      # keyword arguments of vllm.LLM
    serve_arguments(TargetConfig(), EngineConfig())       # words after `vllm serve`

Capture, evaluation and the exported serve.sh must compute the same results, so all use
`engine_arguments`; only the speculator and the mode differ. CPU builds get two extra settings: all
custom ops except the rotary one are on, because DeepSeek-V3's rotary embedding is otherwise wrong
in eager mode; and MLA runs as plain attention, which verifies several drafts faster than the CPU's
MLA kernel.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.hooked import HOOKED
from outrider.serving.runner import runner_of, runner_refusal
from outrider.serving.speculator import Drafting
from outrider.serving.vllm_version import runs_on_cpu
from outrider.speculators.checkpoints.model_config import read_head_config


def runs_mla(target_config: Mapping[str, Any], engine: EngineConfig) -> bool:
    """Whether the engine uses MLA's KV cache for target and speculator.

    Without vLLM, as on a machine that only plans a run, a GPU engine is assumed.
    """
    if not target_config.get("kv_lora_rank"):
        return False
    return (os.environ | engine_environment(engine)).get("VLLM_MLA_DISABLE", "0") == "0"


def pipeline_refusal(engine: EngineConfig) -> str | None:
    """Why the engine cannot serve a drafter with weights over its pipeline stages; None if it can.

    vLLM 0.32 gives a drafter on the last stage no embedding, and a speculator's directory has none.
    """
    if engine.pipeline_parallel == 1:
        return None
    ranks = engine.tensor_parallel * engine.pipeline_parallel
    return (
        f"serving.engine.pipeline_parallel = {engine.pipeline_parallel}: vLLM 0.32 gives a"
        " drafter on the last pipeline stage no embedding, and a speculator's directory has"
        " none; serve with as many GPUs in tensor parallelism:"
        f" serving.engine.pipeline_parallel=1 serving.engine.tensor_parallel={ranks}"
    )


def speculator_refusal(drafting: Drafting, engine: EngineConfig) -> str | None:
    """Why the engine cannot draft as `drafting` describes; None if it can."""
    kind = drafting.speculator.drafter_kind
    directory = drafting.speculator.directory
    if refusal := runner_refusal(kind, engine):
        return refusal
    path = (directory or Path()) / "config.json"
    if directory is None or not path.is_file():
        return None
    config = read_head_config(path)
    if runs_on_cpu() and (refusal := kind.cpu_refusal(config)):
        return f"{path}: {refusal}"
    most = kind.max_drafts(config)
    if most is not None and drafting.k > most:
        return (
            f"{path}: block_size = {config['block_size']}: {kind.in_words} of this block drafts at"
            f" most {most} tokens a step, not {drafting.k}; set speculator.depth, and eval.k and"
            f" eval.current_k if they are set, to at most {most}"
        )
    return None


def engine_environment(engine: EngineConfig) -> dict[str, str]:
    """Environment variables of every vLLM process, in servers and in-process engines."""
    environment = HOOKED | {
        "PYTHONHASHSEED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",  # the target is a local directory, so nothing is looked up
        # Log to the original stderr, never to stdout or sys.stderr (a stage's terminal).
        "VLLM_LOGGING_STREAM": "ext://sys.__stderr__",
    }
    if runs_on_cpu():
        environment |= {
            "VLLM_MLA_DISABLE": "1",
            # Use every core; by default vLLM reserves one per worker for its scheduler
            # (vllm/utils/ompmultiprocessing.py, line 46).
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "auto",
            # vLLM 0.32 cannot load its ahead-of-time compiled code on a CPU, so each start compiles
            # again (nano R1, one core: 75 to 104 s). torch.compile's own cache works: 18 to 25 s.
            "VLLM_USE_AOT_COMPILE": "0",
        }
        openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
        preloaded = os.environ.get("LD_PRELOAD", "")
        # vLLM refuses two OpenMP runtimes (vllm/utils/ompmultiprocessing.py, line 41).
        if openmp.is_file() and "libgomp" not in preloaded:
            # With Intel's OpenMP, idle threads go to sleep after 5 ms instead of spinning.
            preloads = [*preloaded.split(":"), str(openmp)]
            environment["LD_PRELOAD"] = ":".join(dict.fromkeys(filter(None, preloads)))
    else:
        # vLLM's default is fork, which deadlocks after GNU's OpenMP has run in this process.
        environment["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    return environment | engine.environment


def engine_arguments(
    target: TargetConfig, engine: EngineConfig, drafting: Drafting | None = None
) -> dict[str, Any]:
    """Returns keyword arguments for `vllm.LLM`; without `drafting`, there is no speculation."""
    on_cpu = runs_on_cpu()
    arguments: dict[str, Any] = {
        "model": str(target.directory()),
        "dtype": engine.dtype,
        "max_model_len": engine.max_model_len,
        "disable_log_stats": False,
    }
    # Whatever the recipe leaves open is vLLM's default, as in production.
    if engine.max_num_seqs is not None:
        arguments["max_num_seqs"] = engine.max_num_seqs
    if engine.max_num_batched_tokens is not None:
        arguments["max_num_batched_tokens"] = engine.max_num_batched_tokens
    if engine.mode == "eager":
        arguments["enforce_eager"] = True
    parallel = {
        "tensor_parallel_size": engine.tensor_parallel,
        "pipeline_parallel_size": engine.pipeline_parallel,
        "data_parallel_size": engine.data_parallel,
    }
    arguments |= {name: size for name, size in parallel.items() if size > 1}
    arguments |= engine.extra_arguments
    if on_cpu:
        custom_ops = {"custom_ops": ["all", "-rotary_embedding"]}
        arguments["compilation_config"] = custom_ops | arguments.get("compilation_config", {})
    else:
        arguments["gpu_memory_utilization"] = engine.gpu_memory_utilization
    kv_cache_gb = engine.kv_cache_gb if engine.kv_cache_gb is not None or not on_cpu else 0.5
    if kv_cache_gb is not None:
        arguments["kv_cache_memory_bytes"] = round(kv_cache_gb * 2**30)
    if drafting is None:
        return arguments
    if drafting.speculator.drafter_kind.has_weights and (refusal := pipeline_refusal(engine)):
        raise OutriderError(refusal)
    if refusal := speculator_refusal(drafting, engine):
        raise OutriderError(refusal)
    if settings := drafting.settings(runner_of(drafting.speculator.drafter_kind, engine)):
        arguments["speculative_config"] = settings
    return arguments


def serve_arguments(
    target: TargetConfig, engine: EngineConfig, drafting: Drafting | None = None
) -> list[str]:
    """`engine_arguments` as command-line arguments of `vllm serve`."""
    arguments = engine_arguments(target, engine, drafting)
    return [arguments.pop("model"), *words_of(arguments)]


def words_of(arguments: Mapping[str, Any]) -> list[str]:
    """Converts arguments, keyed by Python name, to command-line words."""
    return [word for flag in flags_of(arguments) for word in flag]


def flags_of(arguments: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Arguments of `vllm.LLM` as flags of `vllm serve`, each with its values."""
    flags: list[tuple[str, ...]] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if name == "disable_log_stats" or value is None:
            continue  # the server's default needs no flag
        if isinstance(value, bool):
            flags.append((f"--{flag}" if value else f"--no-{flag}",))
        elif isinstance(value, dict):
            flags.append((f"--{flag}", json.dumps(value)))
        else:
            flags.append((f"--{flag}", *map(str, value if isinstance(value, list) else [value])))
    return flags


def start_limit_s(directory: Path) -> float:
    """Time limit in seconds for starting an engine with this checkpoint.

    15 minutes to compile, plus reading at the 0.2 GB/s of a slow network disk (R1: 4,255 s in all).
    """
    size = sum(file.stat().st_size for file in Path(directory).glob("*.safetensors"))
    return 900.0 + size / 0.2e9


def start_limit_environment(directory: Path) -> dict[str, str]:
    """Returns variables that set vLLM's limit (default 600 s) to `start_limit_s`."""
    # vllm/envs.py, line 811
    return {"VLLM_ENGINE_READY_TIMEOUT_S": str(round(start_limit_s(directory)))}
