"""How the speculator learns: the `training` section of a recipe.

TrainingConfig(epochs=3, learning_rate=5e-4)
"""

import shlex
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Loss = Literal["kl", "ce", "tv", "lk_alpha", "lk_hybrid"]
DepthWeights = Literal["decay", "uniform", "visited"]


class TrainingConfig(BaseModel):
    """Loss, optimisation, batches, and how often to look."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    loss: Loss = "kl"
    """What a draft's distribution q is moved towards the target's p by, p and q as the customer's requests are served. `kl`:
    KL(p||q); `ce`: cross-entropy against p's most likely token; with alpha the probability that the draft is accepted, `tv`:
    1 - alpha, `lk_alpha`: -log alpha, `lk_hybrid`: from kl to tv as alpha grows. docs/training.md has them side by side."""

    depth_weights: DepthWeights = "decay"
    """How much each draft counts. `decay`: position s weighs depth_decay^s, because it is reached only when all before it were
    accepted; `uniform`: all the same; `visited`: how often the engine would offer it while serving the logged response, from
    exact replay with the weights of the step."""

    base_kl: float = Field(default=0.0, ge=0)
    """Weight of KL(base||custom) beside the loss, over the same drafts: how strongly the custom speculator is held to what the base one
    drafts, so that it forgets less of other traffic. It costs a second unroll, without gradients, and the base's weights in memory; 0
    does without."""

    depth_decay: float = Field(default=0.6, gt=0, le=1)
    """beta of `depth_weights: decay`; the weights are normalised to sum 1."""

    epochs: int = Field(default=3, ge=1)
    """Passes over the training part."""

    learning_rate: float = Field(default=5e-4, gt=0)
    """Peak learning rate of AdamW; it warms up linearly and decays as a cosine to a tenth."""

    warmup_fraction: float = Field(default=0.05, ge=0, lt=1)
    """Share of all steps that the warm-up takes."""

    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay of AdamW. The warm start is what generalises: none by default."""

    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients of a larger global norm are scaled down to it."""

    row_tokens: int = Field(default=4096, ge=16)
    """Tokens of a row, into which whole sequences are packed; one row is what a process computes at once, so this is the
    memory knob. Longer sequences are cut at their end."""

    rows_per_step: int = Field(default=2, ge=1)
    """Rows of one optimizer step over all processes together; a multiple of `processes`."""

    zero_stage: Literal[1, 2, 3] = 1
    """DeepSpeed ZeRO: shards optimizer states (1), gradients too (2), weights too (3) over the processes."""

    processes: int = Field(default=1, ge=1)
    """Processes over all machines, one for each GPU; more than one are started by torchrun on this machine, unless `launcher`
    says otherwise."""

    launcher: str | None = None
    """Command that starts all `processes`, on one machine or several, such as `srun --ntasks=16 python -m
    outrider.training.distributed.worker`; the path of the run's spec.json is appended. docs/scaling.md has one for torchrun, deepspeed
    and srun each. The run directory must be on a disk that all machines share."""

    compute: Literal["bf16", "fp32"] = "bf16"
    """`bf16`: forward and backward in bfloat16 over float32 master weights; `fp32`: everything in float32."""

    evaluate_every: int = Field(default=50, ge=1)
    """Steps between two evaluations on the validation part; the last step is always evaluated."""

    checkpoint_every: int = Field(default=50, ge=1)
    """Steps between two checkpoints that a stopped run resumes from. One more is written before the first step."""

    keep_checkpoints: int = Field(default=2, ge=1)
    """Checkpoints that are kept, the newest; each takes 12 bytes a trained parameter and the weights. With 2 or more, one that
    a power cut tore is passed over for the one before it."""

    spike_factor: float | None = Field(default=5.0, gt=1)
    """A loss above this many times the median of the last 32 steps is undone: back to the last checkpoint, and on without that
    batch, whose sequences are named. A loss or gradient that is no number always is. null: only those. On nano R1's résumés no
    step came above 1.15 times the median."""

    max_rollbacks: int = Field(default=5, ge=0)
    """Batches that may be undone in one run; one more is an error that names them."""

    patience: int | None = Field(default=None, ge=1)
    """Stop after this many evaluations in a row without a better acceptance length; null: train to the end."""

    parity: Literal["strict", "warn"] = "strict"
    """What happens when, before the first update, the base speculator drafts otherwise in the trainer than in the engine
    (`eval.parity`): `strict` stops the run, `warn` says so and trains; the evaluation's gate refuses it in either case."""

    parity_tolerance: float = Field(default=0.02, gt=0, lt=1)
    """Largest difference in any draft position's acceptance, before the first update, between the speculator as DeepSpeed
    prepared it and the base one in float32; beyond it the run stops."""

    tokens_per_s: float | None = Field(default=None, gt=0)
    """What `--dry-run` is to assume of training's speed, in tokens of rows/s over all processes; changes nothing else. Null: the
    measured rate of the embedded target, and no time for any other."""

    seed: int = 0
    """Order of the data; the rest is deterministic."""

    wandb_project: str | None = "outrider"
    """Weights & Biases project; offline, below the log directory, unless WANDB_API_KEY is set. null: no tracker."""

    @model_validator(mode="after")
    def _rows_divide(self) -> "TrainingConfig":
        if self.rows_per_step % self.processes:
            raise ValueError(
                f"training.rows_per_step={self.rows_per_step} is not a multiple of training.processes={self.processes};"
                f" take {-(-self.rows_per_step // self.processes) * self.processes}"
            )
        return self

    @field_validator("launcher")
    @classmethod
    def _starts_a_worker(cls, value: str | None) -> str | None:
        if value is not None and not shlex.split(value):
            raise ValueError("is empty; name the command that starts the workers, or leave it null")
        return value
