"""Other programs that start vLLM with its own arguments, and their words as those of `vllm serve`.

    of_launcher("dynamo.vllm", ["--model", "org/model", "--is-prefill-worker"])
    # ["--model", "org/model"]

    words_of_prefixes("-e SM_VLLM_MODEL=org/model -e SM_VLLM_SEED=3")
    # ["vllm", "serve", "--model", "org/model", "--seed", "3"]

- NVIDIA Dynamo's worker: the module `dynamo.vllm` (0.7, components/src/dynamo/vllm/args.py)
- KServe's Hugging Face runtime: the module `huggingfaceserver` (0.15, its __main__.py)
- SageMaker's vLLM containers: variables SM_VLLM_NAME (sagemaker_entrypoint.sh)
- RunPod's worker: variables with the names of flags, and MODEL_NAME (2.7)
- DJL's LMI containers: `option.NAME` in serving.properties, or variables OPTION_NAME (0.33)
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from outrider.serving.allowed import ARGUMENTS, KEYS_OF_ARGUMENTS
from outrider.serving.vllm_flags import KNOWN


class Launcher(NamedTuple):
    """A program's flags that are not vLLM's, as Python names."""

    own: frozenset[str]
    """Flags without effect on what the engine computes."""
    renamed: Mapping[str, str]
    """Flags with another name in vLLM."""


_DYNAMO = Launcher(
    own=frozenset(
        {
            *("is_prefill_worker", "is_decode_worker", "disaggregation_mode", "connector"),
            *("endpoint", "namespace", "migration_limit", "store_kv", "discovery_backend"),
            *("request_plane", "event_plane", "use_vllm_tokenizer", "enable_local_indexer"),
            *("durable_kv_events", "dyn_tool_call_parser", "dyn_reasoning_parser"),
            *("dyn_endpoint_types", "endpoint_types", "dump_config_to", "enable_multimodal"),
            *("multimodal_processor", "multimodal_worker", "multimodal_decode_worker"),
            *("multimodal_encode_worker", "multimodal_encode_prefill_worker", "ec_processor"),
            *("mm_prompt_template", "frontend_decoding", "custom_jinja_template"),
        }
    ),
    renamed={},
)
_KSERVE = Launcher(
    own=frozenset(
        {
            *("model_name", "backend", "task", "tensor_input_names", "return_token_type_ids"),
            *("return_probabilities", "disable_lower_case", "disable_special_tokens"),
            *("http_port", "grpc_port", "workers", "max_threads", "max_asyncio_workers"),
            *("enable_grpc", "enable_docs_url", "enable_latency_logging", "configure_logging"),
            *("access_log_format", "predictor_host", "predictor_protocol", "predictor_use_ssl"),
            *("predictor_request_timeout_seconds", "protocol"),
        }
    ),
    renamed={
        "model_id": "model",
        "model_dir": "model",
        "model_revision": "revision",
        "max_length": "max_model_len",
    },
)
_LMI = Launcher(
    own=frozenset(
        {
            *("rolling_batch", "async_mode", "entryPoint", "entrypoint", "mpi_mode"),
            *("model_loading_timeout", "predict_timeout", "output_formatter", "parallel_loading"),
        }
    ),
    renamed={
        "model_id": "model",
        "tensor_parallel_degree": "tensor_parallel_size",
        "pipeline_parallel_degree": "pipeline_parallel_size",
        "max_rolling_batch_size": "max_num_seqs",
    },
)

LAUNCHERS: dict[str, Launcher] = {"dynamo.vllm": _DYNAMO, "huggingfaceserver": _KSERVE}
"""Modules that `python -m` starts."""

_VALUE = r"[\"']?\s*[:=]\s*[\"']?([^\"'\s,}]*)"
_PREFIXES = (
    (re.compile(rf"\bSM_VLLM_([A-Z0-9_]+){_VALUE}"), Launcher(frozenset(), {})),
    (re.compile(r"^[ \t]*option\.(\w+)[ \t]*=[ \t]*([^\s#]*)", re.MULTILINE), _LMI),
    (re.compile(rf"\b(?:OPTION|HF(?=_MODEL_ID))_([A-Z0-9_]+){_VALUE}"), _LMI),
)
"""How a container's variables or settings spell vLLM's flags."""

_RUNPOD = re.compile(r"worker(?:-v1)?-vllm")
_VARIABLE = re.compile(rf"\b([A-Z][A-Z0-9_]+){_VALUE}")

_SWITCHES = {"true": "--", "false": "--no-", "": "--"}
"""What is before the name of a flag without a value."""


def of_launcher(module: str, words: Sequence[str]) -> list[str]:
    """Returns the words of a launcher's command that are vLLM's, under vLLM's names."""
    launcher = LAUNCHERS[module]
    kept: list[str] = []
    is_own = False
    for word in words:
        if not word.startswith("--"):
            # A launcher has no positional arguments, so this is the value of the flag before it.
            if not is_own:
                kept.append(word)
            continue
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        is_own = name in launcher.own
        if not is_own:
            kept.append(_flag(launcher.renamed.get(name, name)) + equals + value)
    return kept


def words_of_prefixes(text: str) -> list[str]:
    """Returns the command in variables or settings with a prefix; empty if there is none."""
    for pattern, launcher in _PREFIXES:
        words: list[str] = []
        for logged, value in pattern.findall(text):
            name = logged.lower() if logged.isupper() else logged
            if name in launcher.own:
                continue
            words += _words(launcher.renamed.get(name, name), value)
        if "--model" in words:
            return ["vllm", "serve", *words]
    return _of_runpod(text) if _RUNPOD.search(text) else []


def _of_runpod(text: str) -> list[str]:
    """Returns the command in the variables of RunPod's worker."""
    variables = {name.lower(): value for name, value in _VARIABLE.findall(text)}
    model = variables.pop("model_name", "")
    known = KNOWN | ARGUMENTS | KEYS_OF_ARGUMENTS.keys()
    words = [word for name in variables if name in known for word in _words(name, variables[name])]
    return ["vllm", "serve", "--model", model, *words] if model else []


def _words(name: str, value: str) -> list[str]:
    """Returns a flag with its value, or a switch that is on or off."""
    before = _SWITCHES.get(value.lower())
    return [_flag(name), value] if before is None else [before + name.replace("_", "-")]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
