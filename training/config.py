"""The `training` section of a recipe: how the speculator is trained.

TrainingConfig(epochs=3, learning_rate=5e-4)
"""

import math
import re
import shlex
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

LOSSES = ("kl", "ce", "lk_alpha")

Tracker = Literal["tensorboard", "wandb", "mlflow", "trackio"]
"""Trackers of Accelerate (training/trackers.py)."""

FLOOR = 0.1
"""The learning rate decays to this share of its peak."""


DEPTH_DECAY, SCRATCH_DECAY = 0.6, 0.8
"""Loss weight of a draft relative to the one before, which must be accepted first.
For warm or closed-form starts, and for random weights."""

SCRATCH_RATE, FITTED_RATE = 2.0, 0.3
"""Multipliers of `training.learning_rate` for random weights and for closed-form starts."""

BASE_RATE = 1 / 9
"""The multiplier for a base that drafts the traffic better than a closed-form fit to it, so that it
knows this kind of text. At the whole rate, the base for SmolLM2's general traffic lost 7 to 13 % of
its tokens per step on arithmetic, customer chat and résumé screening in 50 steps, and at a third 5
and 6 % on the latter two (benchmarks/results/smollm2.md)."""


class TrainingConfig(BaseModel):
    """Loss, optimizer, batches, distribution over GPUs, evaluations and checkpoints."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    loss: str = "kl"
    """Loss between a draft's distribution q and the target's p.
    p is the distribution as served, with the request's temperature, top_k and top_p. `kl`:
    KL(p||q); `ce`: cross-entropy against p's most likely token; `lk_alpha`: -log alpha, where
    alpha is the probability that the draft is accepted. docs/explanation/training.md compares
    them. `module:function`: your own, differentiated by autograd; the module is installed or in the
    current folder (docs/how-to/try-a-kind-or-a-loss.md)."""

    features: Literal["stored", "streamed"] = "stored"
    """Source of the training part's hidden states.
    `stored`: the feature store, after capture has finished; `streamed`: a capture that runs during
    training and passes states through the memory of a Ray cluster (`cluster.address`), without a
    disk; the states are captured again in every epoch."""

    epochs: int = Field(default=3, ge=1)
    """Training epochs for a warm start (from the base or the target's own layer)."""

    scratch_epochs: int = Field(default=10, ge=1)
    """Training epochs for a head that starts from scratch."""

    learning_rate: float = Field(
        default=5e-4, gt=0, json_schema_extra={"default": "from the target"}
    )
    """Peak learning rate of AdamW.
    The rate warms up linearly, then decays along a cosine to a tenth of its peak. A recipe that
    omits this key gets 1e-3 x 192 / the target's hidden size: 3e-5 for R1. Heads that start from
    random weights use twice this rate; heads fitted in closed form use 0.3 times it, and a base
    that drafts better than such a fit a ninth."""

    warmup_fraction: ClassVar[float] = 0.05
    """Length of the warm-up, as a share of all steps."""

    max_grad_norm: ClassVar[float] = 1.0
    """Gradients with a larger global norm are scaled down to this norm."""

    row_tokens: int = Field(default=4096, ge=16, json_schema_extra={"default": "from the target"})
    """Tokens per row; whole sequences are packed into rows.
    A process handles one row at a time, so this sets the peak memory. Longer sequences are
    truncated and counted. A recipe that omits this key gets `serving.engine.max_model_len`."""

    rows_per_step: int = Field(default=2, ge=1)
    """Rows per optimizer step, over all processes.
    Unless this is a multiple of `processes`, some rows do not count (`padding` in the log)."""

    zero_stage: Literal[1, 2, 3] = 1
    """DeepSpeed ZeRO stage.
    1 shards optimizer states across processes, 2 also gradients, and 3 also weights."""

    processes: int = Field(default=1, ge=1)
    """Number of processes across all machines, one per GPU.
    If there are several, torchrun starts them on this machine, at most one per GPU if it has GPUs,
    unless `launcher` or `cluster.address` is set. On a Ray cluster, this is the maximum; if the
    cluster has less room, training runs with fewer."""

    launcher: str | None = None
    """Command that starts all `processes`, on one machine or several.
    An example is `srun --ntasks=16 python -m outrider.training.distributed.worker`; the path of the
    run's spec.json is appended. docs/how-to/scale-out.md has commands for torchrun, deepspeed and
    srun. The run directory must be on a disk that all machines share. `launcher` takes precedence
    over `cluster.address`: Ray Train starts the processes only if `launcher` is null."""

    compute: Literal["bf16", "fp32"] = "bf16"
    """Precision of training.
    `bf16`: bfloat16 with float32 master weights; `fp32`: everything in float32."""

    evaluate_every: int = Field(default=50, ge=1)
    """Steps between evaluations on the validation part; the last step is always evaluated."""

    checkpoint_every: int = Field(default=50, ge=1)
    """Steps between checkpoints; one more is written before the first step."""

    parity: Literal["strict", "warn"] = "strict"
    """What to do if draft parity fails before the first update.
    It fails if the base speculator drafts differently in the trainer than in the engine, or if
    preparing it for training changes its drafts relative to float32. `strict`: stop the run;
    `warn`: print a warning and train. Either way, the evaluation compares exact replay with the
    engine's steps."""

    seed: int = 0
    """Seed for the data order and for new weights; everything else is deterministic."""

    trackers: list[Tracker] = []
    """Where each step's metrics go besides metrics.jsonl, whatever the environment contains.
    `tensorboard`: files in the run's folder tensorboard; `wandb`: Weights & Biases if WANDB_API_KEY
    is set, else files in the run's folder wandb; `mlflow`: MLFLOW_TRACKING_URI; `trackio`: this
    machine, or TRACKIO_SPACE_ID or TRACKIO_SERVER_URL. docs/how-to/privacy.md says what is sent."""

    tracking_project: str = Field(default="outrider", pattern=r"^[\w.-]+$")
    """Project (MLflow: experiment) of the trackers."""

    wandb_project: str | None = None
    """Short for `trackers: [wandb]` with this `tracking_project`."""

    @property
    def streams(self) -> bool:
        """Whether capture and training run at the same time."""
        return self.features == "streamed"

    @field_validator("loss")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in LOSSES and not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", value):
            raise ValueError(
                f"choose {', '.join(LOSSES)}, or name your own as module:function, such as"
                " my_losses:total_variation"
            )
        return value

    @property
    def own_loss(self) -> str | None:
        """The function that computes the recipe's own loss; None for a loss of Outrider."""
        return None if self.loss in LOSSES else self.loss

    @property
    def used_trackers(self) -> list[Tracker]:
        """The trackers, with that of `wandb_project`."""
        if self.wandb_project is None or "wandb" in self.trackers:
            return self.trackers
        return [*self.trackers, "wandb"]

    @property
    def used_project(self) -> str:
        """The project of all trackers."""
        return self.tracking_project if self.wandb_project is None else self.wandb_project

    @field_validator("launcher")
    @classmethod
    def _starts_a_worker(cls, value: str | None) -> str | None:
        if value is not None and not shlex.split(value):
            raise ValueError("is empty; set the command that starts the workers, or null")
        return value

    def for_start(self, warm: bool, fitted: bool = False) -> "TrainingConfig":
        """Returns the settings for a start from base, fitted or random weights."""
        if warm:
            return self
        rate = (FITTED_RATE if fitted else SCRATCH_RATE) * self.learning_rate
        return self.model_copy(update={"epochs": self.scratch_epochs, "learning_rate": rate})

    def learning_rate_at(self, step: int, steps: int) -> float:
        """Returns the learning rate at step `step` of `steps`, counting from 0."""
        warmup = math.ceil(steps * self.warmup_fraction)
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        progress = (step - warmup) / max(1, steps - warmup)
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return self.learning_rate * (FLOOR + (1 - FLOOR) * cosine)
