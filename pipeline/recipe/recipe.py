"""The recipe: all settings of a run, in stage order.

Each section is defined in the package that reads it. This module combines the sections and checks
rules that span two of them. docs/reference is generated from the docstrings (`make reference`).
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from outrider.common.cluster.config import ClusterConfig
from outrider.common.redaction import has_credentials
from outrider.data.config import CaptureConfig, PrivacyConfig, SplitConfig, TrafficConfig
from outrider.eval.config import EvalConfig, ReportConfig
from outrider.serving.config import ServingConfig, TargetConfig
from outrider.speculators.config import LookupConfig, SpeculatorConfig
from outrider.training.config import TrainingConfig

STANDARD = "standard"

EFFORTS: dict[str, dict[str, dict[str, Any]]] = {
    "trial": {
        "split": {
            "max_train_sequences": 3500,
            "max_validation_sequences": 150,
            "max_heldout_sequences": 300,
        },
        "training": {"epochs": 1, "scratch_epochs": 5},
        "eval": {
            "measure": "until_decided",
            "repeats": 3,
            "starts": 3,
            "requests": 8,
            "verification_requests": 48,
        },
    },
    STANDARD: {
        "split": {
            "max_train_sequences": 5000,
            "max_validation_sequences": 300,
            "max_heldout_sequences": 600,
        },
        "training": {"epochs": 2, "scratch_epochs": 10},
        "eval": {
            "measure": "until_decided",
            "repeats": 8,
            "starts": 6,
            "requests": 8,
            "verification_requests": 100,
            "capacity_minutes": 15,
        },
    },
    "thorough": {
        "split": {
            "max_train_sequences": 40_000,
            "max_validation_sequences": 1000,
            "max_heldout_sequences": 2000,
        },
        "capture": {"answers_up_to": 1000},
        "training": {"epochs": 2, "scratch_epochs": 10},
        "eval": {
            "measure": "full",
            "repeats": 5,
            "starts": 5,
            "requests": 16,
            "verification_requests": 200,
            "capacity_minutes": 15,
        },
    },
}
"""Defaults of each `effort`, for keys that the recipe does not set."""


class AdaptConfig(BaseModel):
    """Following a live endpoint's traffic: windows, rounds and budget."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    window: PositiveInt = 500
    """Log rows (exchanges, in most formats) that are captured and measured together. A decision is
    made after each window, and a round trains on at most four windows' worth of sequences.
    Decisions use confidence intervals over sessions; a window should span at least 30 sessions."""

    from_start: bool = False
    """Whether the first start reads rows already in the log. false: only rows added later."""

    min_drop: ClassVar[float] = 0.07
    """A round starts when the acceptance length of the speculator in use, relative to base, has
    fallen significantly since its release, by more than this share and for several windows. Smaller
    changes come and go with weekends and drift; `fresh` covers those that last."""

    fresh: PositiveInt | None = 5000
    """A round also starts after this many rows since the last round, even if acceptance has not
    fallen. The number doubles with each consecutive round that does not ship. null: never."""

    max_older_loss: float = Field(0.03, ge=0, lt=1)
    """Maximum loss of acceptance length on traffic of earlier rounds, relative to the speculator in
    use: a round ships only if the interval of custom / base on held-back sessions lies above 1
    minus this. On traffic after the training it must lie above `eval.gate.min_acceptance_ratio`."""

    max_gb: PositiveFloat = 200.0
    """Maximum disk space in GB for windows (text and hidden states). If it is exceeded, the oldest
    are deleted, but never the newest. Windows are also deleted after 30 days and, unless
    `privacy.retention` is `keep`, when their round has ended."""

    gpu_hours_per_day: PositiveFloat | None = None
    """Maximum GPU-hours of capture, training and replay in any 24 hours, on the GPUs of
    `serving.engine`. At the limit, new windows wait. null: no limit."""

    @model_validator(mode="after")
    def _round_trains_on_a_window(self) -> "AdaptConfig":
        if self.fresh is not None and self.fresh < self.window:
            raise ValueError(
                f"adapt.fresh = {self.fresh} is below adapt.window = {self.window}: decisions are"
                " made after whole windows; raise adapt.fresh or lower adapt.window"
            )
        return self


class PlanConfig(BaseModel):
    """Assumptions of `--dry-run`; they change no result."""

    model_config = ConfigDict(extra="forbid")

    download_gb_per_s: PositiveFloat = 0.5
    """Speed in GB/s at which a target of the hub is downloaded."""


class ExportConfig(BaseModel):
    """The export bundle: how it is verified and what it contains."""

    model_config = ConfigDict(extra="forbid")

    tolerance: float | None = Field(default=0.03, gt=0, lt=1)
    """Largest allowed relative difference between the bundle's acceptance length and the evaluated
    one, on the same prompts with greedy decoding, checked in vLLM before the bundle is published.
    bf16 engines that batch differently resolve near ties differently. null: no check."""

    k_per_batch_size: bool | Literal["auto"] = "auto"
    """Whether the exported serve.sh drafts the best number of tokens for the current batch size
    (`num_speculative_tokens_per_batch_size`) instead of a fixed k: 0 where drafting does not pay
    off, and above the largest of `eval.concurrency`. The evaluation then serves base and custom
    with their schedules too. `auto`: if vLLM's model runner V2 serves both (on GPUs), without data
    parallelism, and `eval.concurrency` has several values."""

    other_formats: bool = True
    """Whether the bundle also contains the speculator in formats of other programs: `sglang_nextn`
    (an MTP layer for SGLang) and `speculators` (a head in vllm-project/speculators format).
    They duplicate the weights, so false halves the bundle's size."""


class Recipe(BaseModel):
    """One customer's speculator: its target, its traffic, its training and evaluation."""

    model_config = ConfigDict(extra="forbid")

    name: str
    """Name of the run; its directory is runs/NAME. Default: the recipe's file name without
    suffix."""

    effort: Literal["trial", "standard", "thorough"] = "standard"
    """Amount of data, training and measurement. `trial`: a first verdict; `standard`: enough to
    decide; `thorough`: for a release. It sets the three `split.max_*_sequences` limits,
    `capture.answers_up_to`, `training.epochs`, `training.scratch_epochs`, `eval.measure`,
    `eval.repeats`, `eval.requests`, `eval.verification_requests` and `eval.capacity_minutes`; keys
    that the recipe sets take precedence."""

    target: TargetConfig = Field(default_factory=TargetConfig)
    """The model whose decoding is sped up."""

    traffic: TrafficConfig
    """The customer's logs."""

    privacy: PrivacyConfig = Field(default_factory=PrivacyConfig)
    """Personal data in the logs, and retention."""

    split: SplitConfig = Field(default_factory=SplitConfig)
    """Training, validation and held-out parts of the traffic."""

    capture: CaptureConfig = Field(default_factory=CaptureConfig)
    """The target's hidden states over the traffic."""

    speculator: SpeculatorConfig = Field(default_factory=SpeculatorConfig)
    """The drafter: its kind, depth, trained weights, and how it drafts."""

    lookup: LookupConfig = Field(default_factory=LookupConfig)
    """The history that a lookup searches."""

    training: TrainingConfig = Field(default_factory=TrainingConfig)
    """Loss, optimizer, batches, processes and checkpoints."""

    serving: ServingConfig = Field(default_factory=ServingConfig)
    """The engine for capture, evaluation and serving."""

    eval: EvalConfig = Field(default_factory=EvalConfig)
    """Measurements, and the gate for shipping."""

    report: ReportConfig = Field(default_factory=ReportConfig)
    """Content of the report."""

    export: ExportConfig = Field(default_factory=ExportConfig)
    """The export bundle."""

    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    """A Ray cluster for capture, training and evaluation."""

    adapt: AdaptConfig = Field(default_factory=AdaptConfig)
    """`outrider adapt`, which keeps up with a live endpoint's traffic."""

    plan: PlanConfig = Field(default_factory=PlanConfig)
    """Assumptions of `--dry-run`."""

    @property
    def answers_up_to(self) -> int:
        """`capture.answers_up_to`, or 0 if no states of the training part are stored."""
        is_stored = self.speculator.kinds and not self.training.streams
        return self.capture.answers_up_to if is_stored else 0

    def of_kinds(self, names: Sequence[str]) -> "Recipe":
        """The recipe restricted to these kinds of drafter."""
        return self.model_copy(update={"speculator": self.speculator.of_kinds(names)})

    @field_validator("name")
    @classmethod
    def _is_a_directory_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
            raise ValueError(
                "a directory name: at most 100 letters, digits, `.`, `_`, `-`, starting with a"
                " letter or digit"
            )
        return name

    @model_validator(mode="after")
    def _has_no_credentials(self) -> "Recipe":
        for key, text in _texts(self.model_dump()):
            if has_credentials(text):
                raise ValueError(
                    f"{key}: a password or a signed URL, which the run directory would keep; give"
                    " the store's credentials in its own files or variables (AWS_..., HF_TOKEN,"
                    " ~/.config/fsspec), or download the file"
                )
        return self

    @model_validator(mode="after")
    def _sections_fit_together(self) -> "Recipe":
        k = self.eval.k
        depth = self.speculator.depth
        widest = max(self.eval.concurrency)
        # vLLM's smallest default is 128, on a CPU.
        seats = self.serving.engine.max_num_seqs or 128
        for wrong, message in (
            (
                isinstance(k, int) and k > depth,
                f"eval.k = {k} is above speculator.depth = {depth}, the longest draft that is"
                " trained; raise speculator.depth or lower eval.k",
            ),
            (
                widest > seats,
                f"eval.concurrency has {widest}, but serving.engine.max_num_seqs is {seats}: the"
                " measurement would include a queue; raise serving.engine.max_num_seqs to"
                f" {widest} or lower eval.concurrency",
            ),
            (
                self.training.streams and self.cluster.address is None,
                "training.features = streamed captures during training, on a Ray cluster; set"
                " cluster.address (local: a private one on this machine), or training.features:"
                " stored",
            ),
            (
                self.training.streams and self.privacy.regenerate,
                "training.features = streamed trains on the logged responses, and"
                " privacy.regenerate = true replaces some of them before the capture; set"
                " training.features: stored, or privacy.regenerate: false",
            ),
            (
                self.report.samples and self.privacy.retention == "delete_all",
                "report.samples = true puts customer text into the report, which"
                " privacy.retention = delete_all does not delete; set report.samples: false or a"
                " privacy.retention of keep or delete_features",
            ),
        ):
            if wrong:
                raise ValueError(message)
        return self


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yields every string of a section with its dotted key."""
    if isinstance(value, str):
        yield key.removeprefix("."), value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, key)
