"""Words of the commands that charts and frameworks make of their settings for vLLM.

    words_of_settings([{"modelURL": "org/model", "vllmConfig": {"tensorParallelSize": 8}}])
    # [["vllm", "serve", "org/model", "--tensor-parallel-size", "8"]]

- vLLM's production stack: the enabled `modelSpec` of its chart, or `model` of its CRD
- Ray Serve LLM: `model_loading_config` and `engine_kwargs`, which are vLLM's own arguments
- llm-d's modelservice and KServe's LLMInferenceService: a model's `uri`, `parallelism`,
  `speculativeDecoding`, and the container's arguments, also in VLLM_ADDITIONAL_ARGS
- KServe's Hugging Face runtime (`modelFormat`), KubeAI's kind Model, VS Code's launch.json
- the file of `vllm serve --config` itself
- what vLLM logs when it starts: `non-default args: {...}`, before 0.9 `args: Namespace(...)`

Documentation, templates and public values of them were read in November 2026.
"""

import ast
import contextlib
import dataclasses
import functools
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from outrider.common.errors import OutriderError
from outrider.serving.allowed import ARGUMENTS, KEYS_OF_ARGUMENTS, UNSERVABLE
from outrider.serving.commands.forms.variables import IMAGE_USED
from outrider.serving.vllm_flags import KNOWN

SERVE = ("vllm", "serve")

OF_ENGINE = ARGUMENTS | KEYS_OF_ARGUMENTS.keys() | UNSERVABLE.keys()
"""Arguments that change what the engine computes."""

FLAGS = KNOWN | OF_ENGINE
"""All flags of vLLM's, by their Python names."""

PARALLELISM = {
    "expert": "enable_expert_parallel",
    "tensor": "tensor_parallel_size",
    "pipeline": "pipeline_parallel_size",
    "data": "data_parallel_size",
    "dataLocal": "data_parallel_size_local",
}
"""Arguments for the keys of `parallelism`."""

ADDED = "VLLM_ADDITIONAL_ARGS"
"""The variable with further flags that KServe's containers read."""

STACKS = frozenset({"extraArgs", "v0", "v1", "env", "prometheusMultiprocDir"})
"""Keys of `vllmConfig` that are not vLLM's arguments."""

OF_CHART = {"enablePrefixCaching": False}
"""What the stack's chart sets unless its values do (templates/deployment-vllm-multi.yaml)."""

MODEL_KEYS = {
    "chatTemplate": "chat_template",
    "enableLoRA": "enable_lora",
    "enableTool": "enable_auto_tool_choice",
    "modelRevision": "revision",
    "toolCallParser": "tool_call_parser",
}
"""Arguments for the keys next to `vllmConfig`, where a model has them."""

SPECULATION = {"method": "method", "numSpeculativeTokens": "num_speculative_tokens"}
OF_SPECULATOR = {"tensorParallelSize": "draft_tensor_parallel_size", "maxModelLen": "max_model_len"}
"""Keys of `speculative_config` for those of `speculativeDecoding`, and of its `speculator`
(docs/samples/llmisvc/speculative-decoding of KServe)."""

LOGGED = frozenset({"model", "model_tag", "subparser", "dispatch_function"})
"""Keys of the logged arguments that are no flags."""

RUNTIMES = ("ServingRuntime", "ClusterServingRuntime")
"""KServe's kinds whose containers serve the models of an InferenceService."""

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
"""Where a new word of a name begins; LoRA is one."""
_SCHEME = re.compile(r"(?:pvc\+)?hf://")
OF_EMBEDDINGS = re.compile(
    r"--(?:runner|task)[\s=\"',]{1,20}(?:pooling|embed|embedding|classify|score|reward)\b"
)
"""Flags of servers that generate no text (find.py, NEVER_DRAFTS)."""

_ARGUMENTS = re.compile(r"non-default args: (\{.*)")
_NAMESPACE = re.compile(r"args: (Namespace\(.*\))")
NOT_OF_NAMESPACE = LOGGED | {"tokenizer", "prefix_caching_hash_algo"}
"""Arguments of a namespace that are the model's again, or have defaults that 0.32 lacks."""

_MEMBER = re.compile(r"<\w+\.(\w+): [^<>]*>")
"""How Python prints an enumeration's member: <CUDAGraphMode.PIECEWISE: 1>."""

_OBJECT_IN_REPR = re.compile(r"<[^<>]*>")
"""How Python prints an object without a form of its own: <function serve at 0x7f...>."""

IN_NAMESPACE = frozenset({"speculative_config", "reasoning_parser"})
"""Arguments besides the engine's own that are read from a logged namespace."""


def words_of_settings(mappings: Iterable[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yields the command that each of a document's mappings stands for.

    Raises an `OutriderError` if several models are served, of which none is the target.
    """
    mappings = list(mappings)
    if len(enabled := _enabled_in_stack(mappings)) > 1:
        raise OutriderError(
            f"--from-serve-command: modelSpec enables several models, {', '.join(enabled)}; leave"
            " only that of the target in the file, or set enabled: false in the others"
        )
    models = {model: None for settings in mappings if (model := _model_of_ray(settings))}
    if len(models) > 1:
        raise OutriderError(
            f"--from-serve-command: llm_configs of several models, {', '.join(models)}; leave only"
            " that of the target in the file"
        )
    for settings in mappings:
        for read in (_of_stack, _of_ray, _of_chart, _of_kubeai, _of_launch):
            words = read(settings)
            if words:
                yield words


KSERVE_CONTAINER = "kserve-container"
"""Name of the container of a runtime that gets a model's arguments."""


def words_of_kserve(mappings: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yields the command of each `predictor.model` of KServe, after the arguments of its runtime.

    The runtime of the format `huggingface` is KServe's own, and that of `vLLM`, or one of vLLM that
    the model names under any format, in the documents.
    """
    runtimes: dict[str, Mapping[str, Any]] = {}
    for settings in mappings:
        if str(settings.get("kind")) in RUNTIMES:
            containers = _list(_mapping(settings, "spec"), "containers")
            listed = [one for one in containers if isinstance(one, Mapping)]
            engines = [one for one in listed if one.get("name") == KSERVE_CONTAINER]
            first = next(iter([*engines, *listed]), {})
            runtimes[str(_mapping(settings, "metadata").get("name"))] = first
    for settings in mappings:
        model_format = _mapping(settings, "modelFormat").get("name")
        stored = settings.get("storageUri")
        model, *revision = _of_hub(stored) if isinstance(stored, str) else [""]
        arguments = [str(argument) for argument in _list(settings, "args")]
        any_runtime = next(iter(reversed(runtimes.values())), {})
        named = settings.get("runtime")
        runtime = any_runtime if named is None else runtimes.get(str(named), {})
        of_runtime = [str(argument) for argument in _list(runtime, "args")]
        starts = f"{runtime.get('image')} {_list(runtime, 'command')}"
        is_named = str(named) in runtimes and "vllm" in starts
        of_vllm = str(model_format).lower() == "vllm" or is_named
        if model_format == "huggingface":
            of_model = [f"--model_id={model}"] if model else []
            of_model += [f"--model_revision={number}" for number in revision[1:]]
            yield [*_variables(settings), "-m", "huggingfaceserver", *of_model, *arguments]
        elif of_vllm and (model or of_runtime):
            # With a storageUri, the model is at the place that KServe copies it to.
            rest = list(_without_model(of_runtime)) if model else of_runtime
            image = runtime.get("image")
            of_image = [f"{IMAGE_USED}={image}"] if isinstance(image, str) else []
            variables = [*of_image, *_variables(runtime), *_variables(settings)]
            of_model = [model, *revision] if model else []
            yield [*variables, *SERVE, *of_model, *rest, *arguments]


def _without_model(words: Iterable[str]) -> Iterator[str]:
    """Yields the words without `--model` and its value."""
    previous = ""
    for word in words:
        if "--model" not in (word, previous) and not word.startswith("--model="):
            yield word
        previous = word


def words_of_config(documents: Iterable[Any]) -> Iterator[list[str]]:
    """Yields the command of each document that holds flags, as `vllm serve --config` reads it.

    Its keys are flags, also `no-` forms. Without a model, at least one is an engine's.
    """
    for document in documents:
        if not isinstance(document, Mapping) or len(document) < 2:
            continue
        arguments = {str(name).replace("-", "_"): value for name, value in document.items()}
        names = {name.removeprefix("no_") for name in arguments}
        if names <= FLAGS and names & OF_ENGINE:
            model = arguments.pop("model", None)
            yield [*SERVE, *([model] if isinstance(model, str) else []), *_flags(arguments)]


def launcher_keys(documents: Iterable[Any]) -> list[str]:
    """Returns the keys that vLLM lacks in an engine's settings; none for other documents."""
    for document in documents:
        if not isinstance(document, Mapping) or not isinstance(document.get("model"), str):
            continue
        names = {str(name): str(name).replace("-", "_") for name in document}
        if OF_ENGINE & {*names.values()} - {"model"}:
            return [name for name, flag in names.items() if flag not in FLAGS]
    return []


def words_of_config_file(documents: Sequence[Any], model: Sequence[str]) -> list[str]:
    """Returns the flags of the file of `--config`, after its model unless the command has one."""
    settings = documents[0] if documents else None
    if not isinstance(settings, Mapping):
        return []
    arguments = {str(name).replace("-", "_"): value for name, value in settings.items()}
    named = arguments.pop("model", None)
    return [*([] if model or named is None else [str(named)]), *_flags(arguments)]


def words_of_log(text: str) -> Iterator[list[str]]:
    """Yields the command of each start of vLLM in its log, the last one first."""
    for logged in reversed(_ARGUMENTS.findall(text)):
        try:
            printed = _MEMBER.sub(r"'\1'", logged[: logged.rfind("}") + 1])
            arguments = ast.literal_eval(_OBJECT_IN_REPR.sub("None", printed))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        model = arguments.get("model_tag") or arguments.get("model")
        flags = {
            name: _without_empty(value) for name, value in arguments.items() if name not in LOGGED
        }
        yield [*SERVE, *([str(model)] if model else []), *_flags(flags)]
    for logged in reversed(_NAMESPACE.findall(text)):
        yield _of_namespace(logged)


def _without_empty(value: Any) -> Any:
    """Returns a logged configuration without the keys that only show a default, such as None."""
    if not isinstance(value, dict):
        return value
    kept = {key: _without_empty(inner) for key, inner in value.items()}
    return {key: inner for key, inner in kept.items() if inner not in (None, "", [], {})}


def _of_namespace(logged: str) -> list[str]:
    """Returns the command of a logged `Namespace(...)`, which has every argument's default, too.

    vLLM before 0.9 logs it (api_server.py, `args: %s`). Kept is what 0.32 has and what is no
    default here, since those of earlier releases are not known.
    """
    try:
        printed = _OBJECT_IN_REPR.sub("None", _MEMBER.sub(r"'\1'", logged))
        call = ast.parse(printed, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return []
    arguments: dict[str, Any] = {}
    for keyword in call.keywords if isinstance(call, ast.Call) else ():
        with contextlib.suppress(ValueError):
            arguments[str(keyword.arg)] = ast.literal_eval(keyword.value)
    model = arguments.get("model_tag") or arguments.get("model")
    of_vllm = _defaults_of_vllm()
    flags = {
        name: value
        for name, value in arguments.items()
        if name not in NOT_OF_NAMESPACE and (name in OF_ENGINE or name in IN_NAMESPACE)
        if value not in (None, False, "", [], {}, "auto", 0) and value != of_vllm.get(name)
    }
    return [*SERVE, str(model), *_flags(flags)] if model else []


@functools.cache
def _defaults_of_vllm() -> dict[str, Any]:
    from vllm.engine.arg_utils import EngineArgs

    return {field.name: field.default for field in dataclasses.fields(EngineArgs)}


def _of_stack(settings: Mapping[str, Any]) -> list[str]:
    of_crd = _mapping(settings, "model")
    model = settings.get("modelURL") or of_crd.get("modelURL")
    # The chart deploys a model unless it is disabled, and needs no vllmConfig.
    section = settings.get("vllmConfig", {} if "modelURL" in settings else None)
    if not isinstance(section, Mapping) or not model or settings.get("enabled") is False:
        return []
    sizes = {name: of_crd[name] for name in ("maxModelLen", "maxNumSeqs") if name in of_crd}
    arguments = {**sizes, **section}
    if settings.get("modelURL"):
        arguments = {**arguments, **OF_CHART, **arguments}
    flags = {_snake(name): value for name, value in arguments.items() if name not in STACKS}
    if settings.get("modelURL"):
        flags |= {MODEL_KEYS[key]: settings[key] for key in MODEL_KEYS if settings.get(key)}
    more = map(str, _list(section, "extraArgs"))
    variables = _variables(settings)
    if "repository" in settings:
        variables.append(f"{IMAGE_USED}={settings['repository']}:{settings.get('tag', 'latest')}")
    return [*variables, *SERVE, str(model), *_flags(flags), *more]


def _of_hub(uri: str) -> list[str]:
    """Returns a model with its revision: KServe's storage reads hf://OWNER/MODEL:REVISION."""
    model = _SCHEME.sub("", uri)
    name, colon, revision = model.partition(":")
    return [name, "--revision", revision] if colon and model != uri else [model]


def _enabled_in_stack(mappings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the models that the production stack's chart deploys, once each."""
    specs = [spec for settings in mappings for spec in _list(settings, "modelSpec")]
    listed = (spec for spec in specs if isinstance(spec, Mapping))
    enabled = (spec for spec in listed if spec.get("enabled") is not False and not _pools(spec))
    return list(dict.fromkeys(str(spec["modelURL"]) for spec in enabled if spec.get("modelURL")))


def _pools(spec: Mapping[str, Any]) -> bool:
    """Whether a model of the chart is one of embeddings, which are never drafted."""
    words = [str(word) for word in _list(_mapping(spec, "vllmConfig"), "extraArgs")]
    return OF_EMBEDDINGS.search(" ".join(words)) is not None


def _of_ray(settings: Mapping[str, Any]) -> list[str]:
    model = _model_of_ray(settings)
    if model is None:
        return []
    exported = _mapping(_mapping(settings, "runtime_env"), "env_vars")
    variables = [f"{name}={value}" for name, value in exported.items()]
    return [*variables, *SERVE, model, *_flags(_mapping(settings, "engine_kwargs"))]


def _model_of_ray(settings: Mapping[str, Any]) -> str | None:
    """The model of an LLMConfig; None for any other settings."""
    loaded = _mapping(settings, "model_loading_config")
    model = loaded.get("model_source") or loaded.get("model_id")
    return model if isinstance(model, str) else None


def _of_chart(settings: Mapping[str, Any]) -> list[str]:
    """Returns the command of llm-d's values or of KServe's `spec`."""
    uri = _mapping(settings, "modelArtifacts").get("uri") or _mapping(settings, "model").get("uri")
    pods = [settings, *(_mapping(settings, key) for key in ("decode", "template"))]
    containers = [container for pod in pods for container in _list(pod, "containers")]
    if not isinstance(uri, str) or not containers or not isinstance(containers[0], Mapping):
        return []
    if containers[0].get("command"):
        return []
    sizes: dict[str, Any] = {}
    for pod in pods:
        of_pod = _mapping(pod, "parallelism")
        sizes |= {PARALLELISM[key]: of_pod[key] for key in PARALLELISM if key in of_pod}
    arguments = [str(argument) for argument in _list(containers[0], "args")]
    variables: list[str] = []
    for variable in _variables(containers[0]):
        name, _, value = variable.partition("=")
        if name == ADDED:
            arguments += shlex.split(value)
        else:
            variables.append(variable)
    speculation = _speculation_of(_mapping(settings, "speculativeDecoding"))
    flags = _flags(sizes | ({"speculative_config": speculation} if speculation else {}))
    return [*variables, *SERVE, *_of_hub(uri), *flags, *arguments]


def _speculation_of(section: Mapping[str, Any]) -> dict[str, Any]:
    """Returns vLLM's `speculative_config` for an LLMInferenceService's `speculativeDecoding`."""
    speculator = _mapping(section, "speculator")
    settings = {SPECULATION[key]: section[key] for key in SPECULATION if key in section}
    settings |= {OF_SPECULATOR[key]: speculator[key] for key in OF_SPECULATOR if key in speculator}
    uri = _mapping(speculator, "model").get("uri")
    if isinstance(uri, str):
        settings["model"] = _SCHEME.sub("", uri)
    # Further keys of vLLM's, whose values the resource has as texts.
    for name, value in _mapping(section, "additionalConfig").items():
        settings[name] = yaml.safe_load(value) if isinstance(value, str) else value
    return settings


def _of_kubeai(settings: Mapping[str, Any]) -> list[str]:
    url = settings.get("url")
    if settings.get("engine") != "VLLM" or not isinstance(url, str):
        return []
    variables = [f"{name}={value}" for name, value in _mapping(settings, "env").items()]
    arguments = [str(argument) for argument in _list(settings, "args")]
    return [*variables, *SERVE, *_of_hub(url), *arguments]


def _of_launch(settings: Mapping[str, Any]) -> list[str]:
    """Returns the command of a configuration of launch.json: a module and its arguments."""
    module = settings.get("module")
    if not isinstance(module, str):
        return []
    variables = [f"{name}={value}" for name, value in _mapping(settings, "env").items()]
    arguments = [str(argument) for argument in _list(settings, "args")]
    return [*variables, "python", "-m", module, *arguments]


def _flags(arguments: Mapping[str, Any]) -> list[str]:
    """Returns arguments as words; vLLM reads objects as JSON, and lists as several words."""
    words: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            negative = [] if flag.startswith("no-") else [f"--no-{flag}"]
            words += [f"--{flag}"] if value else negative
        elif isinstance(value, list | tuple):
            words += [f"--{flag}", *map(str, value)]
        elif value is not None:
            text = json.dumps(value) if isinstance(value, Mapping) else str(value)
            words += [f"--{flag}", text]
    return words


def _snake(name: str) -> str:
    return _HUMP.sub("_", name.replace("LoRA", "Lora")).lower()


def _mapping(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = holder.get(key)
    return value if isinstance(value, Mapping) else {}


def _list(holder: Mapping[str, Any], key: str) -> list[Any]:
    value = holder.get(key)
    return value if isinstance(value, list) else []


def _variables(container: Mapping[str, Any]) -> list[str]:
    """Returns the variables of a container, as words before its command."""
    entries = [entry for entry in _list(container, "env") if isinstance(entry, Mapping)]
    return [f"{entry.get('name')}={entry['value']}" for entry in entries if "value" in entry]
