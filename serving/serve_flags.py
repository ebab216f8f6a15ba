"""Arguments and environment of a bundle's server, from bundle.json.

    flags = read_serve_flags(bundle, "/mnt/speculator")     # for a container
    command, environment = bundle_command(bundle)           # for a process on this machine

serve.sh is for people; Outrider never runs or parses it, because a bundle may be untrusted.
bundle.json describes the evaluated engine as data, and only settings that allowed.py permits are
taken from it. The speculative configuration is built here, from the kind and the number of drafts.
"""

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from outrider.common.errors import OutriderError
from outrider.serving.allowed import bundle_argument_refusal, bundle_variable_refusal
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.hooked import HOOKED
from outrider.serving.runner import runner_with
from outrider.serving.speculator import Drafting
from outrider.serving.vllm_arguments import engine_arguments, engine_environment, flags_of
from outrider.serving.vllm_command import COMMAND
from outrider.speculators.checkpoints.target_fingerprint import check_bundle_target, read_bundle


def _plain_name(model: str) -> str:
    """Refuses a model whose name is a flag or has a variable, which Kubernetes would expand."""
    if Path(model).name.startswith("-") or "$" in model or not model.isprintable():
        raise ValueError("not the name of a model")
    return model


class _Settings(BaseModel):
    """The entries of an untrusted bundle.json that become words of a command or a manifest."""

    model_config = ConfigDict(strict=True)

    class Serve(BaseModel):
        """The evaluated engine, without speculation."""

        arguments: dict[str, Any]
        environment: dict[str, Any]

    class Target(BaseModel):
        """The target; its name is also the served model's."""

        model: Annotated[str, AfterValidator(_plain_name)]
        revision: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$")] | None = None

    serve: Serve
    target: Target
    vllm: Annotated[str, Field(pattern=r"^[0-9][0-9A-Za-z.]*([+][0-9A-Za-z.]+)?$")]
    method: str
    num_speculative_tokens: Annotated[int, Field(ge=0)]
    num_speculative_tokens_per_batch_size: (
        list[Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=3, max_length=3)]] | None
    )
    draft_sample_method: Literal["greedy", "probabilistic"]


@dataclass(frozen=True)
class ServeFlags:
    """Arguments and environment of a bundle's server."""

    arguments: dict[str, Any]
    """Arguments by their Python names in vLLM."""
    environment: dict[str, str]

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """Each flag with its values."""
        return flags_of(self.arguments)

    @property
    def words(self) -> list[str]:
        """The arguments after `vllm serve MODEL`."""
        return [word for group in self.groups for word in group]

    @property
    def gpus(self) -> int:
        """Number of GPUs per server: the product of its parallelism degrees."""
        kinds = ("tensor", "pipeline", "data")
        return math.prod(int(self.arguments.get(f"{kind}_parallel_size", 1)) for kind in kinds)

    def replacing(self, speculative: dict[str, Any] | None) -> "ServeFlags":
        """Returns these flags with another `speculative_config`; None removes speculation."""
        return replace(self, arguments=self.arguments | {"speculative_config": speculative})


def serve_entry(target: TargetConfig, engine: EngineConfig) -> dict[str, Any]:
    """Returns bundle.json's `serve` entry: the evaluated engine without speculation."""
    arguments = engine_arguments(target, engine)
    del arguments["model"], arguments["disable_log_stats"]
    return {"arguments": arguments, "environment": exported_environment(engine)}


def exported_environment(engine: EngineConfig) -> dict[str, str]:
    """Returns the engine's environment variables that also apply on other machines."""
    of_this_machine = ("HF_HUB_OFFLINE", "LD_PRELOAD", "VLLM_LOGGING_STREAM", *HOOKED)
    variables = engine_environment(engine)
    return {name: value for name, value in variables.items() if name not in of_this_machine}


_REFUSED = "refused; if the bundle is yours, start the servers with its serve.sh"


def read_serve_flags(bundle: Path, speculator: str) -> ServeFlags:
    """Reads the flags of a bundle's server, which finds the bundle at `speculator`.

    Raises an `OutriderError` for a flag or a variable that no bundle may set.
    """
    path = bundle / "bundle.json"
    manifest = read_bundle(path)
    try:
        serve = _Settings.model_validate(manifest).serve
    except ValidationError as error:
        wrong = error.errors(include_input=False)[0]
        key = ".".join(map(str, wrong["loc"]))
        raise OutriderError(f"{path}: {key}: {wrong['msg']}; export again") from None
    arguments = serve.arguments
    environment = serve.environment
    drafting = Drafting.from_manifest(manifest, Path(speculator))
    for name, value in arguments.items():
        if reason := bundle_argument_refusal(name, value):
            raise OutriderError(f"{path}: serve.arguments: {reason}; {_REFUSED}")
    for name, value in environment.items():
        if reason := bundle_variable_refusal(name, value):
            raise OutriderError(f"{path}: serve.environment: {reason}; {_REFUSED}")
    runner = runner_with(drafting.speculator.drafter_kind, arguments, environment)
    return ServeFlags(arguments, environment).replacing(drafting.settings(runner))


def bundle_command(bundle: Path) -> tuple[list[str], dict[str, str]]:
    """Returns a bundle's serve command and environment; executes nothing from the bundle."""
    flags = read_serve_flags(bundle, str(bundle.resolve()))
    manifest = read_bundle(bundle / "bundle.json")
    target = TargetConfig.model_validate(manifest["target"])
    check_bundle_target(manifest, bundle, target.directory())
    # Absolute, so that no folder's name is read as a flag.
    command = [*COMMAND, "serve", str(target.directory().absolute()), *flags.words]
    command += ["--served-model-name", Path(target.model).name]
    return command, engine_environment(EngineConfig()) | flags.environment


def without_quotes(flags: Sequence[Sequence[str]]) -> str:
    """Joins flags into one string that needs no shell quoting.

    KServe's templates expand VLLM_ADDITIONAL_ARGS, some with `eval` and some without, so a value
    must contain neither spaces nor quotes. JSON objects become vLLM's dotted flags
    (`--speculative-config.method=...`, `--compilation-config.custom_ops+=all,none`).
    """
    words: list[str] = []
    for name, *values in flags:
        if len(values) == 1 and values[0].startswith("{"):
            for key, value in _leaves(json.loads(values[0])):
                words.append(f"{name}.{key}={value}")
        else:
            words += [name, *values]
    for word in words:
        if shlex.quote(word) != word and not re.fullmatch(r"[\w\[\],.:/=+-]+", word):
            raise OutriderError(
                f"serve.sh: the value {word!r} cannot be passed through VLLM_ADDITIONAL_ARGS; "
                "set it in an LLMInferenceServiceConfig of the cluster"
            )
    return " ".join(words)


def _leaves(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Returns dotted keys with their unquoted values."""
    leaves: list[tuple[str, str]] = []
    for key, inner in value.items():
        if isinstance(inner, dict):
            leaves += _leaves(inner, f"{prefix}{key}.")
        elif isinstance(inner, list) and inner and all(isinstance(item, str) for item in inner):
            leaves.append((f"{prefix}{key}+", ",".join(inner)))
        elif isinstance(inner, str):
            leaves.append((f"{prefix}{key}", inner))
        else:
            leaves.append((f"{prefix}{key}", json.dumps(inner, separators=(",", ":"))))
    return leaves
