"""Settings for the target, the engine and serving.

TargetConfig(model="nano_r1").directory()
"""

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.serving.allowed import (
    KEYS_OF_ARGUMENTS,
    UNSERVABLE,
    argument_refusal,
    variable_refusal,
)
from outrider.speculators.checkpoints.architectures import is_supported
from outrider.speculators.checkpoints.layout import INDEX, read_layout
from outrider.speculators.checkpoints.model_config import read_config
from outrider.speculators.kinds import target_tensors

ADAPTER = "adapter_config.json"

EMBEDDED_TARGETS = {
    "nano_r1": Path(__file__).resolve().parent.parent / "recipes" / "nano_r1" / "target"
}
"""Targets that come with the package, by their names in a recipe."""

SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.py")
"""Files of a hub checkpoint other than its weights: config, index, tokenizer, template."""


class TargetConfig(BaseModel):
    """The target model, whose decoding is accelerated."""

    model_config = ConfigDict(extra="forbid")

    model: str = "nano_r1"
    """`nano_r1` (comes with the package), a local directory, or a Hugging Face model id."""

    revision: str | None = None
    """Commit, tag or branch of a hub model. A tag or branch may later point to other weights."""

    def directory(self) -> Path:
        """Returns the checkpoint's local directory; downloads a hub model on first use."""
        return self.local_directory() or _download(self.model, self.revision)

    def training_directory(self) -> Path:
        """Returns a local directory with the files that ingest and training read.

        For a hub model, downloads only the weight shards that contain its own speculator, the
        embedding or the head (R1: a few of 163). Engines need all shards; see `directory`.
        """
        if local := self.local_directory():
            return local
        small = _download(self.model, self.revision, allow_patterns=list(SMALL_FILES))
        if not is_supported(read_config(small / "config.json")):
            return small  # only measured: nothing of it is trained
        if (small / INDEX).is_file():
            layout = read_layout(small)
            shards = layout.files(target_tensors(layout))
        else:
            shards = ["*.safetensors"]
        # Use the commit of the first download, because a branch may have moved since then.
        return _download(self.model, small.name, allow_patterns=[*SMALL_FILES, *shards])

    @property
    def on_hub(self) -> bool:
        """Whether the model is a hub id rather than a directory."""
        return self.local_directory() is None

    def local_directory(self) -> Path | None:
        """The directory of a local model; None for a hub id.

        Raises an `OutriderError` if `model` is neither.
        """
        # Unlike Path.expanduser, does not raise for `~m`, whose user is unknown.
        directory = EMBEDDED_TARGETS.get(self.model, Path(os.path.expanduser(self.model)))  # noqa: PTH111
        if (directory / "config.json").is_file():
            return directory
        if hub_id(self.model) is not None:
            return None
        what = f"no such directory ({directory.absolute()})"
        if "://" in self.model:
            what = "a store's address, which is not read; copy it to a directory of this machine"
        elif directory.is_dir():
            what = _without_config(directory)
        elif directory.exists():
            what = f"a file, not a directory ({directory.absolute()})"
        raise OutriderError(
            f"target.model = {self.model!r}: {what}; give a"
            " checkpoint's directory, a hub id (owner/name), or one of"
            f" {', '.join(sorted(EMBEDDED_TARGETS))}"
        )

    def fetch(self, patterns: tuple[str, ...], into: Path) -> Path:
        """Downloads the matching files of a hub model, such as its tokenizer."""
        return _download(self.model, self.revision, allow_patterns=list(patterns), local_dir=into)


class EngineConfig(BaseModel):
    """vLLM's settings, shared by capture, evaluation and the exported serve.sh."""

    model_config = ConfigDict(extra="forbid")

    mode: Literal["eager", "compiled"] = "eager"
    """`eager` starts in seconds; `compiled` uses torch.compile (CUDA graphs on a GPU), which
    starts more slowly but serves faster. The evaluation and the bundle use `eval.engine_modes`."""

    max_model_len: int = Field(
        default=2048, ge=16, json_schema_extra={"default": "from the target"}
    )
    """Maximum prompt plus completion tokens. Default: the target's maximum, but at most 32,768."""

    max_num_seqs: int | None = Field(default=None, ge=1)
    """Maximum number of requests in one engine step. null: vLLM's default, in the timed servers and
    the bundle alike (128 on a CPU, 256 to 1,024 on a GPU)."""

    max_num_batched_tokens: int | None = Field(default=None, ge=16)
    """Maximum number of tokens in one engine step; longer prompts are prefilled in chunks. null:
    vLLM's default for servers (2,048 on a CPU, up to 16,384 on a GPU); 2,048 in the capture."""

    kv_cache_gb: float | None = Field(default=None, gt=0)
    """KV-cache memory in GiB. null: 0.5 on a CPU; on a GPU, what is left of
    `gpu_memory_utilization` once the model is loaded."""

    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of each GPU's memory that the engine uses. No effect on a CPU."""

    tensor_parallel: int = Field(default=1, ge=1)
    """Tensor-parallel GPUs (8 for R1 in FP8 on one node)."""

    pipeline_parallel: int = Field(default=1, ge=1)
    """Pipeline stages, each of `tensor_parallel` GPUs."""

    data_parallel: int = Field(default=1, ge=1)
    """Data-parallel engines per server. Capture and parity use tensor parallelism instead."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "bfloat16"
    """Data type of activations and unquantized weights."""

    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the engine's processes; they override Outrider's. Only variables
    that change what the engine computes are accepted, such as `VLLM_USE_DEEP_GEMM`; engines inherit
    all others from the command's environment. Accepted variables are exported with the bundle, so
    secrets are refused."""

    extra_arguments: dict[str, Any] = Field(default_factory=dict)
    """vLLM's other engine arguments, by Python name (`kv_cache_dtype: fp8`, `quantization: fp8`).
    Capture, evaluation and serve.sh use them, but capture omits and reports those that are
    incompatible with it. Arguments that name code or hold secrets are refused."""

    @field_validator("extra_arguments")
    @classmethod
    def _have_no_key(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if key := KEYS_OF_ARGUMENTS.get(name):
                raise ValueError(f"{name} has its own key: set {key}")
            if name in UNSERVABLE:
                raise ValueError(f"{name}: {UNSERVABLE[name]}; leave it out")
            if reason := argument_refusal(name, value[name]):
                raise ValueError(f"{reason}; leave it out")
        return value

    @field_validator("environment")
    @classmethod
    def _is_public(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if reason := variable_refusal(name, text):
                raise ValueError(reason)
        return value

    @property
    def structured_outputs(self) -> dict[str, Any]:
        """Keys of vLLM's StructuredOutputsConfig, which determine a grammar's masks."""
        settings: dict[str, Any] = self.extra_arguments.get("structured_outputs_config") or {}
        return settings

    @property
    def generation(self) -> dict[str, Any]:
        """Arguments that decide how requests without a sampling parameter are sampled."""
        names = ("generation_config", "override_generation_config")
        return {name: self.extra_arguments[name] for name in names if name in self.extra_arguments}

    @property
    def prefix_caching(self) -> bool:
        """Whether requests with the same prefix share its KV cache; by vLLM's default, they do."""
        return self.extra_arguments.get("enable_prefix_caching") is not False

    @property
    def seats(self) -> int:
        """Number of requests that the evaluation sends at a time where its size is free."""
        return self.max_num_seqs or 8

    @property
    def changes_drafters(self) -> bool:
        """Whether a running server can change its speculator and number of drafts.

        With data parallelism, vLLM drops the draft schedule and returns only the first engine's
        answer to a call, hiding failed swaps. EPLB moves experts, so a swap would miss them.
        """
        return self.data_parallel == 1 and not self.extra_arguments.get("enable_eplb")

    @property
    def gpus(self) -> int:
        """Number of GPUs per server."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel


class ServingConfig(BaseModel):
    """Engine settings for capture, evaluation and serving."""

    model_config = ConfigDict(extra="forbid")

    engine: EngineConfig = Field(default_factory=EngineConfig)
    """The engine's settings."""

    production_release: str | None = Field(default=None, pattern=r"^\d+\.\d+\.\d+")
    """vLLM's release in production, such as 0.26.0, if it is another than the tested one. The
    report names it. `--from-serve-command` sets it from the tag of a vLLM image."""

    ignored_flags: list[str] = Field(default_factory=list)
    """Flags of `--from-serve-command` that vLLM does not know, such as `[--of-our-plugin]`. Other
    unknown flags are an error. List only flags without effect on what the engine computes."""


def hub_id(model: str) -> str | None:
    """The target's hub id, owner/name; None for a path."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if model.count("/") != 1 or Path(model).exists():
        return None
    try:
        validate_repo_id(model)  # refuses ./m, ../m, /m, ~/m and owner/
    except HFValidationError:
        return None
    return model


def _without_config(directory: Path) -> str:
    """What a directory without config.json is, and what to take instead if that is known."""
    what = f"no config.json there ({directory.absolute()})"
    if (directory / ADAPTER).is_file():
        settings = read_json(directory / ADAPTER)
        of_model = settings.get("base_model_name_or_path") if isinstance(settings, dict) else None
        return (
            f"{what}, but PEFT's {ADAPTER}: an adapter of {of_model or 'another model'}. Merge it"
            " (`merge_and_unload`), save the merged model, and give its directory; or take that"
            " model if the endpoint serves several adapters"
        )
    if (directory / "params.json").is_file():
        return (
            f"{what}, only Mistral's params.json, and checkpoints in its format are not read; take"
            " the model's repository or revision in Hugging Face's format"
        )
    return what


def _download(model: str, revision: str | None, **which: Any) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, **which))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        at = f" at revision {revision}" if revision else ""
        raise OutriderError(
            f"target.model = {model!r}: neither a local directory nor a model that could be"
            f" downloaded from the hub{at} ({type(error).__name__}); download it and give its"
            " directory"
        ) from error
