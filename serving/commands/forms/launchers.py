"""Other programs that start vLLM with its own arguments, and their words as those of `vllm serve`.

    translate_launcher("dynamo.vllm", ["--model", "org/model", "--is-prefill-worker"])
    # ["--model", "org/model"]

    words_of_prefixes("-e SM_VLLM_MODEL=org/model -e SM_VLLM_SEED=3")
    # ["vllm", "serve", "--model", "org/model", "--seed", "3"]

- NVIDIA Dynamo's worker: the module `dynamo.vllm` (0.7, components/src/dynamo/vllm/args.py)
- KServe's Hugging Face runtime: the module `huggingfaceserver` (0.15, its __main__.py)
- SageMaker's vLLM containers: variables SM_VLLM_NAME (sagemaker_entrypoint.sh), of which `false`
  leaves a flag out (AWS's documentation of its containers)
- RunPod's worker: variables with the names of flags, MODEL_NAME, and flags in VLLM_EXTRA_ARGS
  (2.7; 2.25, src/args_builder.py)
- DJL's LMI containers: `option.NAME` in serving.properties, or variables OPTION_NAME (0.33,
  vllm_rb_properties.py)
- NVIDIA NIM: variables NIM_NAME, flags in NIM_PASSTHROUGH_ARGS or after `nim-serve` (2.0)
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from outrider.common.errors import OutriderError
from outrider.serving.commands.forms.settings import FLAGS
from outrider.serving.commands.forms.shell import END, end_of_object, words_of_script

OF_ENGINE = re.compile("VLLM_[A-Z]")
"""How vLLM's own variables begin, which a launcher leaves to it."""


class Launcher(NamedTuple):
    """A program's flags that are not vLLM's, as Python names."""

    own: frozenset[str]
    """Flags without effect on what the engine computes."""
    renamed: Mapping[str, str]
    """Flags with another name in vLLM."""
    defaults: Mapping[str, str] = {}
    """Values that the program sets unless the user does, where vLLM's default is another."""
    translated: Mapping[tuple[str, str], str] = {}
    """Values of flags, under vLLM's names, for which the program sets another."""
    of_machine: Mapping[tuple[str, str], str] = {}
    """Values for which the program sets what the machine has, and what that is."""
    unset: frozenset[tuple[str, str]] = frozenset()
    """Values with which the program leaves a flag out."""
    omits_false: bool = False
    """Whether it leaves out flags whose value is `false`, so that vLLM's defaults stay."""


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
    # On a GPU it makes float16 of `auto`, which is the default (its __main__.py).
    defaults={"dtype": "float16"},
    translated={("dtype", "auto"): "float16"},
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
        "max_rolling_batch_prefill_tokens": "max_num_batched_tokens",
        "quantize": "quantization",
        "cpu_offload_gb_per_gpu": "cpu_offload_gb",
    },
    translated={
        ("dtype", "bf16"): "bfloat16",
        ("dtype", "fp16"): "float16",
        ("dtype", "fp32"): "float32",
    },
    of_machine={("tensor_parallel_size", "max"): "the number of the instance's GPUs"},
)
_RUNPOD = Launcher(
    # Of other names than flags; the last two are no flags of vLLM's any more, and ignored.
    own=frozenset({"host", "port", "api_key", "config", "help", "swap_space", "task"}),
    renamed={
        "model_name": "model",
        "model_revision": "revision",
        "tokenizer_name": "tokenizer",
        "openai_served_model_name_override": "served_model_name",
        "custom_chat_template": "chat_template",
        "vllm_config_file": "config",
    },
    unset=frozenset({("max_num_batched_tokens", "0")}),
)
_RUNPOD_OF_2_7 = _RUNPOD._replace(defaults={"enable_prefix_caching": "false"})
"""The worker before 2.24 made vLLM's arguments itself, with other defaults."""
_NIM = Launcher(
    own=frozenset(),
    renamed={
        "model_path": "model",
        "model_name": "model",
        "kvcache_percent": "gpu_memory_utilization",
        "enable_kv_cache_reuse": "enable_prefix_caching",
    },
    translated={
        ("enable_prefix_caching", "1"): "true",
        ("enable_prefix_caching", "0"): "false",
    },
)

LAUNCHERS: dict[str, Launcher] = {"dynamo.vllm": _DYNAMO, "huggingfaceserver": _KSERVE}
"""Modules that `python -m` starts."""

NIM = "NIM_"
"""Beginning of the variables of NVIDIA NIM."""

_PREFIXES = (
    ("SM_VLLM_", Launcher(frozenset(), {}, omits_false=True)),
    ("option.", _LMI),
    ("OPTION_", _LMI),
)
"""How a container's variables or settings spell vLLM's flags."""

_MODEL_OF_LMI = "HF_MODEL_ID"
_PASSTHROUGH = "NIM_PASSTHROUGH_ARGS"
_RUNPOD_IMAGE = re.compile(r"worker(?:-v1)?-vllm(?::v?(\d+)\.(\d+))?")
_RUNPOD_REWRITTEN = (2, 24)
_RUNPOD_ARGUMENTS = "VLLM_EXTRA_ARGS"
_OF_FLAGS = frozenset({_PASSTHROUGH, _RUNPOD_ARGUMENTS})
"""Variables that hold several flags."""
_TRUE = ("1", "yes", "on")
_FALSE = ("0", "no", "off")
_SWITCH = re.compile(r"(?:enable|disable|enforce|use|trust|async|skip|return)_")
"""Beginnings of the names of flags without a value."""

_SETTING = re.compile(
    r"([\"']?)\b(option\.\w+|[A-Z][A-Z0-9_]*)(?=[\"'\s:=,])"
    r"[\"']?(?:\s*[,\n]\s*[\"']?value[\"']?)?[ \t]*[:=][ \t]*"
)
"""A variable or setting before its value: NAME=, NAME:, "NAME": or `name: NAME`, `value:`."""

_SINGLE_QUOTED = re.compile(r"'([^'\n]*)'")
_DOUBLE_QUOTED = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"")
_BARE = re.compile(r"[^\"'\s,}#]{0,2000}")

_SERVE = ("vllm", "serve")

_SWITCHES = {"true": "--", "false": "--no-", "": "--"}
"""What is before the name of a flag without a value."""


def translate_launcher(module: str, words: Sequence[str]) -> list[str]:
    """Returns the words of a launcher's command that are vLLM's, under vLLM's names."""
    launcher = LAUNCHERS[module]
    kept: list[str] = []
    given: set[str] = set()
    name = ""
    is_own = False
    for word in words:
        if not word.startswith("--"):
            # A launcher has no positional arguments, so this is the value of the flag before it.
            if not is_own:
                kept.append(launcher.translated.get((name, word), word))
            continue
        flag, equals, value = word.partition("=")
        flag, dot, key = flag.removeprefix("--").partition(".")
        name = flag.replace("-", "_") + dot + key
        is_own = name in launcher.own
        name = launcher.renamed.get(name, name)
        if not is_own:
            given.add(name)
            kept.append(_flag(name) + equals + launcher.translated.get((name, value), value))
    unset = {name: value for name, value in launcher.defaults.items() if name not in given}
    return kept + [word for name, value in unset.items() for word in _words(name, value)]


def words_of_prefixes(text: str) -> list[str]:
    """Returns the command in variables or settings with a prefix; empty if there is none."""
    settings = list(_settings(text))
    model_of_lmi = dict(settings).get(_MODEL_OF_LMI, "")
    for prefix, launcher in _PREFIXES:
        of_prefix = {
            name.removeprefix(prefix): value for name, value in settings if name.startswith(prefix)
        }
        if prefix == "OPTION_":
            of_prefix.setdefault("MODEL_ID", model_of_lmi)
        if words := _command(launcher, of_prefix):
            of_engine = [f"{name}={value}" for name, value in settings if OF_ENGINE.match(name)]
            return [*of_engine, *words]
    if image := _RUNPOD_IMAGE.search(text):
        return _of_runpod(dict(settings), image)
    return []


def _of_runpod(variables: Mapping[str, str], image: re.Match[str]) -> list[str]:
    """Returns the command of RunPod's worker, whose further flags come last and count."""
    is_old = image[1] is not None and (int(image[1]), int(image[2])) < _RUNPOD_REWRITTEN
    launcher = _RUNPOD_OF_2_7 if is_old else _RUNPOD
    known = FLAGS | launcher.renamed.keys()
    settings: dict[str, str] = {}
    for name, value in variables.items():
        if name.lower() in known and value:
            is_switch = _SWITCH.match(name.lower()) is not None
            on = "true" if is_switch and value.lower() in _TRUE else value
            settings[name] = "false" if is_switch and value.lower() in _FALSE else on
    words = _command(launcher, settings)
    further = words_of_script(variables.get(_RUNPOD_ARGUMENTS, ""))
    return words and [*words, *(word for word in further if word != END)]


def translate_nim(variables: Mapping[str, str], words: Sequence[str]) -> list[str]:
    """Returns the words of vLLM's command in a NIM container.

    Arguments after `nim-serve` come before those of NIM_PASSTHROUGH_ARGS, and these before the
    other variables (its docs, "advanced configuration"). Without a number of GPUs there, a profile
    of the image decides.
    """
    known = FLAGS | _NIM.renamed.keys()
    named = {
        name.removeprefix(NIM): value for name, value in variables.items() if name.startswith(NIM)
    }
    settings = {name: value for name, value in named.items() if name.lower() in known}
    passed = [word for word in words_of_script(variables.get(_PASSTHROUGH, "")) if word != END]
    served = words[1:] if words[:1] == ["nim-serve"] else words
    arguments = [*_command(_NIM, settings)[len(_SERVE) :], *passed, *served]
    flags = {word.partition("=")[0].replace("_", "-") for word in arguments}
    if not flags & {"--tensor-parallel-size", "-tp"}:
        raise OutriderError(
            "--from-serve-command: NVIDIA NIM takes the number of GPUs from the profile that it"
            " chooses; add --tensor-parallel-size with the number to NIM_PASSTHROUGH_ARGS"
        )
    return arguments


def _command(launcher: Launcher, settings: Mapping[str, str]) -> list[str]:
    """Returns the command in a launcher's settings; empty without a model."""
    named: dict[str, str] = {}
    for setting, value in settings.items():
        name = setting.lower() if setting.isupper() else setting
        if name not in launcher.own:
            name = launcher.renamed.get(name, name)
            is_omitted = launcher.omits_false and value.lower() == "false"
            named |= {} if is_omitted or (name, value) in launcher.unset else {name: value}
    if not named.get("model"):
        return []
    named["model"] = named["model"].removeprefix("hf://")
    model = {"model": named.pop("model")}
    words: list[str] = []
    for name, value in {**model, **launcher.defaults, **named}.items():
        if found := launcher.of_machine.get((name, value)):
            raise OutriderError(
                f"--from-serve-command: {name}={value} is {found}, which is not known here; give"
                " the number"
            )
        words += _words(name, launcher.translated.get((name, value), value))
    return [*_SERVE, *words]


def _settings(text: str) -> Iterator[tuple[str, str]]:
    """Yields variables and settings with their values, from any format that names both."""
    for match in _SETTING.finditer(text):
        quote, name = match.groups()
        is_quoted_whole = quote and text[match.end(2)] == "="  # -e "NAME=VALUE"
        begin = match.start() if is_quoted_whole else match.end()
        value = _value_at(text, begin)
        # In a file of variables, a value without quotation marks is the rest of its line.
        if name in _OF_FLAGS and text[begin : begin + 1] == "-" and _begins_line(text, match):
            end = text.find("\n", begin)
            value = text[begin : end if end >= 0 else len(text)].rstrip()
        yield name, value.partition("=")[2] if is_quoted_whole else value


def _begins_line(text: str, setting: re.Match[str]) -> bool:
    """Whether a setting is the first of its line, or of an item of a YAML list."""
    before = text[text.rfind("\n", 0, setting.start()) + 1 : setting.start()]
    return before.strip() in ("", "-")


def _value_at(text: str, begin: int) -> str:
    """Returns the value that begins at a place: quoted, a JSON object, or a word."""
    if single := _SINGLE_QUOTED.match(text, begin):
        return single[1]
    if double := _DOUBLE_QUOTED.match(text, begin):
        return re.sub(r"\\(.)", r"\1", double[0][1:-1])
    if text.startswith("{", begin):
        return text[begin : end_of_object(text, begin)]
    bare = _BARE.match(text, begin)
    return bare[0] if bare else ""


def _words(name: str, value: str) -> list[str]:
    """Returns a flag with its value, or a switch that is on or off."""
    before = _SWITCHES.get(value.lower())
    return [_flag(name), value] if before is None else [before + name.replace("_", "-")]


def _flag(name: str) -> str:
    """Returns a name as a flag; as in vLLM, a key behind a dot stays as it is."""
    flag, dot, key = name.partition(".")
    return "--" + flag.replace("_", "-") + dot + key
