"""Settings of the target, the engine and serving.

TargetConfig(model="nano_r1").directory()
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.layout import INDEX, read_layout
from outrider.speculators.kinds import target_tensors

EMBEDDED_TARGETS = {
    "nano_r1": Path(__file__).resolve().parent.parent / "recipes" / "nano_r1" / "target"
}
"""Targets that come with the package, by their names in a recipe."""

SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.py")
"""Files of a checkpoint on the hub besides its weights: config, index, tokenizer, template."""


class TargetConfig(BaseModel):
    """The model whose decoding is sped up."""

    model_config = ConfigDict(extra="forbid")

    model: str = "nano_r1"
    """`nano_r1` (comes with the package), a local directory, or a model id on the Hugging Face
    hub."""

    revision: str | None = None
    """Commit, tag or branch of a hub model. With a tag or branch, a later run may get other
    weights."""

    quantization: str | None = None
    """vLLM's quantization method. null: that of the checkpoint's config.json (FP8 for R1)."""

    def directory(self) -> Path:
        """The checkpoint's local directory; a hub model is downloaded on first use."""
        return self._local() or _download(self.model, self.revision)

    def training_directory(self) -> Path:
        """The local directory with what ingest and training read.

        Of a hub model's weights only the shards with its own speculator, the embedding or the head
        are downloaded (R1: a few of 163). An engine needs `directory`.
        """
        if local := self._local():
            return local
        small = _download(self.model, self.revision, allow_patterns=list(SMALL_FILES))
        if (small / INDEX).is_file():
            layout = read_layout(small)
            shards = layout.files(target_tensors(layout))
        else:
            shards = ["*.safetensors"]
        # By the commit of the first download: a branch may move between the two.
        return _download(self.model, small.name, allow_patterns=[*SMALL_FILES, *shards])

    @property
    def on_hub(self) -> bool:
        """Whether the model is a hub id rather than a directory."""
        return self._local() is None

    def _local(self) -> Path | None:
        """The directory of a local model; None for a hub id."""
        directory = EMBEDDED_TARGETS.get(self.model, Path(self.model).expanduser())
        if (directory / "config.json").is_file():
            return directory
        if self.model in EMBEDDED_TARGETS:
            raise OutriderError(
                f"{directory}: the embedded target has no config.json; install the package again,"
                f" or build the target with `python -m outrider.recipes.{self.model}.build`"
            )
        if directory.is_dir():
            raise OutriderError(
                f"{directory}: no config.json; target.model must be a Hugging Face checkpoint"
            )
        if self.model.count("/") != 1 or self.model.startswith((".", "/", "~")):
            raise OutriderError(
                f"target.model = {self.model!r}: no such directory; give a checkpoint's directory,"
                f" a hub id (owner/name), or one of {', '.join(sorted(EMBEDDED_TARGETS))}"
            )
        return None

    def fetch(self, patterns: tuple[str, ...], into: Path) -> Path:
        """Downloads only the files of a hub model that match, such as its tokenizer."""
        return _download(self.model, self.revision, allow_patterns=list(patterns), local_dir=into)


class EngineConfig(BaseModel):
    """vLLM's settings, shared by capture, evaluation and the exported serve.sh."""

    model_config = ConfigDict(extra="forbid")

    mode: Literal["eager", "compiled"] = "eager"
    """`eager` starts in seconds. `compiled` uses torch.compile (CUDA graphs on a GPU), which starts
    slowly and serves faster."""

    max_model_len: int = Field(default=2048, ge=16)
    """Longest prompt plus completion, in tokens."""

    max_num_seqs: int = Field(default=8, ge=1)
    """Largest number of requests in one engine step."""

    max_num_batched_tokens: int = Field(default=2048, ge=16)
    """Largest number of tokens in one engine step; longer prompts are prefilled in chunks of it."""

    kv_cache_gb: float | None = Field(default=None, gt=0)
    """Memory of the KV cache in GiB. null: 1 on a CPU; on a GPU what `gpu_memory_utilization`
    leaves."""

    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of each GPU's memory that the engine uses. No effect on a CPU."""

    tensor_parallel: int = Field(default=1, ge=1)
    """Tensor-parallel GPUs (8 for R1 in FP8 on one node)."""

    expert_parallel: bool = False
    """Place whole experts on each GPU instead of a slice of every expert."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "bfloat16"
    """Type of activations and of unquantized weights."""

    cpu_cores: str = "auto"
    """Cores of the worker on a CPU: `auto` (all), or a list such as `0-3`. No effect on a GPU."""

    seed: int = 0
    """Seed of the engine's sampler; a request's own seed overrides it."""

    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the engine's processes; they override Outrider's."""


class ServingSection(BaseModel):
    """The engine, its port, and known step times."""

    model_config = ConfigDict(extra="forbid")

    engine: EngineConfig = Field(default_factory=EngineConfig)
    """The engine's settings."""

    port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the first server on 127.0.0.1; further servers use the following ports. null: any
    free port."""

    target_step_ms: float | None = Field(default=None, gt=0)
    """Time of one decoding step without speculation at batch size 1, in milliseconds. With the next
    two it predicts the speed of each k. null: steps are timed in the engine."""

    draft_step_ms: float | None = Field(default=None, ge=0)
    """Time of one drafted token, in milliseconds."""

    fixed_step_ms: float | None = Field(default=None, ge=0)
    """Time of a speculative step besides the target's step and the drafts, in milliseconds."""


class ServingConfig(ServingSection):
    """How a speculator is served: the recipe's `serving` section, and how drafts are chosen."""

    draft_sample_method: Literal["greedy", "probabilistic"] = "greedy"
    """`speculator.draft_sample_method`."""

    def with_engine(self, **settings: Any) -> "ServingConfig":
        """A copy with other engine settings."""
        return self.model_copy(update={"engine": self.engine.model_copy(update=settings)})


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
