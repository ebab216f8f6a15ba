"""The weights that training starts from: a base, random weights, or a fit to the traffic.

    start = choose_start(plan, accelerator, validation)
    start.drafter, start.settings

A base that knows little about the traffic drafts worse than a closed-form fit, and a head that
starts from it needs more responses to become as good. If there are both, the one with the larger
acceptance length on the validation part is trained.
"""

import dataclasses

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast

from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds.drafter import Drafter
from outrider.speculators.kinds.protocol import Origin
from outrider.training.checkpoints import TrainerState, newest_state
from outrider.training.config import BASE_RATE, FITTED_RATE, TrainingConfig
from outrider.training.distributed.accelerator import COMPUTE_DTYPE, ChainUnroll
from outrider.training.plan import TrainingPlan
from outrider.training.validation import Validation


@dataclasses.dataclass(frozen=True)
class Start:
    """A drafter with its first weights, which are equal in every process."""

    drafter: Drafter
    ends: TargetEnds
    origin: Origin
    settings: TrainingConfig
    """The plan's settings, with a smaller learning rate for the better one of base and fit."""
    saved: TrainerState | None
    """The newest checkpoint, to resume from; it contains all trained weights."""

    @property
    def from_base(self) -> bool:
        """Whether the weights are the base's."""
        return self.origin.base_dir is not None and not self.origin.refit


def choose_start(plan: TrainingPlan, accelerator: Accelerator, validation: Validation) -> Start:
    """Loads, draws or fits the first weights; a resumed run repeats its first choice.

    Removes the checkpoints of another run from the directory.
    """
    saved = newest_state(accelerator, plan.spec.checkpoints_dir, plan.digest)
    dtype = COMPUTE_DTYPE[plan.settings.compute]
    ends = load_target_ends(plan.spec.target_dir, dtype).to(accelerator.device)
    origin = plan.origin(accelerator.device)
    fits = plan.fitted and saved is None
    start = Start(
        drafter=_drafter(plan, accelerator, origin, fits),
        ends=ends,
        origin=origin,
        settings=plan.settings,
        saved=saved,
    )
    if plan.base_dir is None or not plan.fitted:
        return start
    base = dataclasses.replace(start, settings=_slower(plan.settings, BASE_RATE))
    if saved is not None and not saved["refit"]:
        return base
    refit = dataclasses.replace(origin, refit=True)
    fit = dataclasses.replace(
        start,
        drafter=_drafter(plan, accelerator, refit, fits),
        origin=refit,
        settings=_slower(plan.settings, FITTED_RATE),
    )
    if saved is not None:
        return fit
    of_base = _acceptance_length(base, validation, plan.depth)
    of_fit = _acceptance_length(fit, validation, plan.depth)
    better = "fit" if of_fit > of_base else "base"
    accelerator.print(
        f"acceptance length on validation before training: base {of_base:.3f}, closed-form"
        f" fit {of_fit:.3f}; training starts from the {better}",
        flush=True,
    )
    return fit if better == "fit" else base


def _slower(settings: TrainingConfig, share: float) -> TrainingConfig:
    """Returns settings with a share of the learning rate."""
    return settings.model_copy(update={"learning_rate": share * settings.learning_rate})


def _drafter(plan: TrainingPlan, accelerator: Accelerator, origin: Origin, fits: bool) -> Drafter:
    """Returns the origin's drafter, with identical weights in every process."""
    # Only the first process fits to the rows, and none does if a checkpoint has the weights.
    if not (fits and accelerator.is_main_process):
        origin = dataclasses.replace(origin, rows=None)
    dtype: torch.dtype = COMPUTE_DTYPE[plan.settings.compute]
    drafter = plan.kind.start(origin, dtype, accelerator.device, plan.settings.seed)
    if origin.base_dir is None or origin.refit:
        for parameter in drafter.parameters():
            broadcast(parameter.data)
        # On GPUs only the stream waits for a broadcast, and DeepSpeed's start has a timeout.
        accelerator.wait_for_everyone()
    return drafter


def _acceptance_length(start: Start, validation: Validation, depth: int) -> float:
    unroll = ChainUnroll(start.drafter, start.ends, depth).eval()
    return validation.profile(unroll)["acceptance_length"][-1]
