"""The recipe: everything that a run is told, in the order in which the stages read it.

The sections belong to the folders that use them; here they are only put together, and rules that span two of them checked.
docs/recipes.md is generated from the docstrings (`python -m outrider.recipes.config.reference`).

    Recipe(name="mine", traffic=TrafficConfig(path="logs/"))
"""

import re

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from outrider.data.config import CaptureConfig, PrivacyConfig, SplitConfig, TrafficConfig
from outrider.eval.config import EvalConfig, EvalSection, ReportConfig
from outrider.serving.config import ServingConfig, ServingSection, TargetConfig
from outrider.speculators.config import SpeculatorConfig
from outrider.training.config import TrainingConfig


class ExportConfig(BaseModel):
    """What leaves the run."""

    model_config = ConfigDict(extra="forbid")

    verify: bool = True
    """Load the bundle in vLLM as an endpoint would, and compare its acceptance with the evaluated one, before it is published."""

    tolerance: float = Field(default=0.03, gt=0, lt=1)
    """Largest relative difference between the bundle's acceptance length and the evaluated one, over the same prompts, greedily.
    bf16 engines that batch differently part at near ties, so not quite 0."""

    k_per_batch_size: bool = False
    """Whether the exported serve.sh drafts as many tokens as were best for the number of requests at hand
    (`num_speculative_tokens_per_batch_size`) rather than the evaluation's one k. Speeds were served with the one k."""

    to: str | None = None
    """A directory or an fsspec URL (`s3://...`) to which the verified bundle is copied as well. Null: it stays in the run
    directory. `export-speculator --to` names one without changing the recipe."""


class Recipe(BaseModel):
    """One customer's speculator: from which traffic, for which target, trained and judged how."""

    model_config = ConfigDict(extra="forbid")

    name: str
    """Name of the run; its directory is runs/NAME. Default: the recipe file's name without its ending."""

    target: TargetConfig = Field(default_factory=TargetConfig)
    """The model whose tokens are drafted ahead of."""

    traffic: TrafficConfig
    """The customer's logs."""

    privacy: PrivacyConfig = Field(default_factory=PrivacyConfig)
    """What is personal in them, and how long they are kept."""

    split: SplitConfig = Field(default_factory=SplitConfig)
    """Which of the traffic trains, chooses and judges."""

    capture: CaptureConfig = Field(default_factory=CaptureConfig)
    """The target's hidden states over the traffic."""

    speculator: SpeculatorConfig = Field(default_factory=SpeculatorConfig)
    """What is trained."""

    training: TrainingConfig = Field(default_factory=TrainingConfig)
    """How it is trained."""

    serving: ServingSection = Field(default_factory=ServingSection)
    """The engine in which it is captured, measured and served."""

    eval: EvalSection = Field(default_factory=EvalSection)
    """How it is judged, and what it takes to ship."""

    report: ReportConfig = Field(default_factory=ReportConfig)
    """What people are shown."""

    export: ExportConfig = Field(default_factory=ExportConfig)
    """What leaves the run."""

    def speculative_serving(self) -> ServingConfig:
        """`serving`, and how the speculator drafts."""
        method = self.speculator.draft_sample_method
        return ServingConfig(**dict(self.serving), draft_sample_method=method)

    def evaluation(self) -> EvalConfig:
        """`eval`, and how closely trainer and engine must agree on drafts."""
        return EvalConfig(**dict(self.eval), parity=self.speculator.parity)

    @field_validator("name")
    @classmethod
    def _is_a_directory_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise ValueError(
                "it names a directory: letters, digits, `.`, `_` and `-` only, a letter or digit first"
            )
        return name

    @model_validator(mode="after")
    def _drafts_what_it_was_trained_for(self) -> "Recipe":
        if isinstance(self.eval.k, int) and self.eval.k > self.speculator.depth:
            raise ValueError(
                f"eval.k = {self.eval.k} drafts deeper than speculator.depth = {self.speculator.depth} was trained; "
                "raise speculator.depth or lower eval.k"
            )
        return self

    @model_validator(mode="after")
    def _measures_no_queue(self) -> "Recipe":
        widest, seats = max(self.eval.concurrency), self.serving.engine.max_num_seqs
        if widest > seats:
            raise ValueError(
                f"eval.concurrency has {widest}, but serving.engine.max_num_seqs is {seats}: requests would queue, and the queue "
                f"be measured; raise serving.engine.max_num_seqs to {widest} or lower eval.concurrency"
            )
        return self

    @model_validator(mode="after")
    def _shows_nothing_that_it_deletes(self) -> "Recipe":
        if self.report.samples and self.privacy.retention == "delete_all":
            raise ValueError(
                "report.samples = true puts customer text into the report, which privacy.retention = delete_all does not delete; "
                "set report.samples: false or a privacy.retention of keep or delete_features"
            )
        return self
