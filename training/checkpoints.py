"""Checkpoints for exact resume: published atomically, the last two kept.

    save_checkpoint(accelerator, directory, step, {"digest": ..., "best": ...})
    state = newest_state(accelerator, directory, digest)         # None: nothing to resume
    load_checkpoint(accelerator, directory, state["step"])

A checkpoint is a directory `step-0000050`:

    state.json               the trainer's state
    rank-00000.safetensors   a rank's share of the float32 master weights and AdamW's moments

DeepSpeed's own checkpoints are pickles, which can run code when loaded and must be converted for
a different number of ranks. Its functions for single parameters (`safe_get_full_fp32_param` and
others) return whole parameters, so one format serves all layouts.

The data order and the learning rate depend only on the step, and training draws no random numbers,
so checkpoints store none of them. Every rank needs the directory, so with several nodes it must be
on a shared disk.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NotRequired, TypeVar

import deepspeed
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from deepspeed import DeepSpeedEngine
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
)
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from typing_extensions import TypedDict

from outrider.common.errors import OutriderError
from outrider.common.files import publish, says_disk_is_full, write_json
from outrider.common.json_forms import read_form
from outrider.training.results import Profile

STATE = "state.json"

MASTER = "master"
MOMENTS = ("exp_avg", "exp_avg_sq")

KEPT = 2
"""Number of checkpoints to keep, in case the newest is damaged.
Each takes 12 bytes per trained parameter."""

Result = TypeVar("Result")


class TrainerState(TypedDict):
    """What a resumed run needs to know, besides its weights and moments."""

    digest: str
    """Digest of the run's plan."""
    refit: bool
    """Whether training started from a fit instead of the base."""
    base: Profile
    """Validation before the first step."""
    best: Profile
    best_step: int
    started_over: int
    """How often training has started over at a lower learning rate."""
    latest: Profile
    """Validation at `evaluated_at`."""
    evaluated_at: int
    """Step of the newest evaluation."""
    start_peak_bytes: int
    step: NotRequired[int]
    """Number of completed steps; set when the checkpoint is written."""


def save_checkpoint(
    accelerator: Accelerator, directory: Path, step: int, state: TrainerState
) -> None:
    """Publishes a checkpoint of all ranks; removes the oldest beyond `KEPT`.

    The one before the first step is kept until an evaluation is better than the start's, because
    training may start over from it (start_over.py). If one rank cannot write, all raise an
    `OutriderError`, and `directory` is unchanged.
    """
    path = checkpoint_at(directory, step)
    draft = directory / f".{path.name}.draft"
    rank = accelerator.process_index
    world = accelerator.num_processes
    engine = accelerator.deepspeed_engine_wrapped.engine

    def begin() -> None:
        directory.mkdir(parents=True, exist_ok=True)
        _remove_drafts(directory)
        draft.mkdir()

    def finish() -> None:
        with publish(path) as temporary:
            draft.rename(temporary)
            write_json(temporary / STATE, {**state, "step": step})
        for old in published_checkpoints(directory)[:-KEPT]:
            if state["best_step"] > 0 or old != checkpoint_at(directory, 0):
                shutil.rmtree(old)

    try:
        on_all_ranks(accelerator, begin, main_only=True)
        on_all_ranks(accelerator, lambda: save_state(engine, draft, rank, world))
        on_all_ranks(accelerator, finish, main_only=True)
    finally:
        if accelerator.is_main_process:
            shutil.rmtree(draft, ignore_errors=True)


def newest_state(accelerator: Accelerator, directory: Path, digest: str) -> TrainerState | None:
    """Returns the trainer's state in the newest checkpoint, if there is one.

    Removes unfinished checkpoints of a killed run, and checkpoints of another run (whose `digest`
    differs).
    """

    def newest() -> TrainerState | None:
        _remove_drafts(directory)
        saved = saved_states(directory)
        if not saved:
            return None
        if saved[-1]["digest"] != digest:
            accelerator.print(
                f"{directory}: checkpoints of a run with different settings; starting over",
                flush=True,
            )
            shutil.rmtree(directory)
            return None
        return saved[-1]

    return on_all_ranks(accelerator, newest, main_only=True)[0]


def load_checkpoint(accelerator: Accelerator, directory: Path, step: int) -> None:
    """Restores a checkpoint; raises an `OutriderError` if it is damaged."""
    load_state(accelerator.deepspeed_engine_wrapped.engine, checkpoint_at(directory, step))


def checkpoint_at(directory: Path, step: int) -> Path:
    """Returns the path of the checkpoint after `step` steps."""
    return directory / f"step-{step:07d}"


def remove_after(directory: Path, step: int) -> None:
    """Removes checkpoints of later steps, newest first."""
    for path in reversed(published_checkpoints(directory)):
        if path.name > checkpoint_at(directory, step).name:
            shutil.rmtree(path)


def published_checkpoints(directory: Path) -> list[Path]:
    """Returns checkpoints, oldest first; omits unfinished ones (leading dot)."""
    return sorted(directory.glob("step-*"))


def saved_states(directory: Path) -> list[TrainerState]:
    """Returns the trainer's state in each checkpoint, oldest first."""
    fix = "delete its folder to resume from the previous checkpoint"
    return [read_form(TrainerState, path / STATE, fix) for path in published_checkpoints(directory)]


def _remove_drafts(directory: Path) -> None:
    """Removes unfinished checkpoints of a killed run."""
    for path in directory.glob(".step-*"):
        shutil.rmtree(path)


def on_all_ranks(
    accelerator: Accelerator, action: Callable[[], Result], *, main_only: bool = False
) -> list[Result]:
    """Runs `action` on every rank and returns the results by rank.

    With `main_only`, only the first rank runs it; the other results are None. An `OutriderError`,
    an `OSError` (e.g. a full disk) or a safetensors error on any rank is raised on all ranks as an
    `OutriderError`; otherwise the other ranks would hang in the next collective.
    """
    result = None
    failure = None
    if accelerator.is_main_process or not main_only:
        try:
            result = action()
        except (OutriderError, OSError, SafetensorError) as error:
            failure = str(error)
            if says_disk_is_full(error):
                failure += ": no space left on the disk; free some and rerun the command"
    gathered = gather_object([(accelerator.process_index, result, failure)])
    for rank, _, message in gathered:
        if message is not None:
            several = accelerator.num_processes > 1
            raise OutriderError(f"rank {rank}: {message}" if several else message)
    return [result for _, result, _ in gathered]


def save_state(engine: DeepSpeedEngine, directory: Path, rank: int, world: int) -> None:
    """Writes `rank-R.safetensors` with every `world`-th tensor.

    Tensors are gathered one at a time, largest first, so that the shares have similar sizes.
    """
    share = {}
    updates = max((int(adam["step"]) for adam in _adam_states(engine)), default=0)
    # Before the first update there are no moments.
    states_of_tensor = (MASTER, *MOMENTS) if updates else (MASTER,)
    tensors = [
        (name, parameter, state)
        for name, parameter in _trained(engine)
        for state in states_of_tensor
    ]
    for number, (name, parameter, state) in enumerate(tensors):
        # Every rank gathers every tensor, because gathering is collective.
        if state == MASTER:
            whole = safe_get_full_fp32_param(parameter)
        else:
            whole = safe_get_full_optimizer_state(parameter, state)
        if number % world == rank:
            share[f"{state} {name}"] = whole.cpu().contiguous()
    metadata = {"updates": str(updates), "ranks": str(world)}
    save_file(share, directory / f"rank-{rank:05d}.safetensors", metadata)


def load_state(engine: DeepSpeedEngine, directory: Path) -> None:
    """Restores weights, master weights, moments and AdamW's update count, in place.

    Raises an `OutriderError` if a file is missing or damaged.
    """
    parameters = dict(_trained(engine))
    _clear_moments(engine)
    files = sorted(directory.glob("rank-*.safetensors"))
    ranks = "unknown"
    try:
        for file in files:
            with safe_open(file, "pt", device=str(engine.device)) as tensors:
                for key in tensors.keys():  # noqa: SIM118 (a safetensors file is not a dict)
                    state, name = key.split(" ", 1)
                    _restore(parameters[name], state, tensors.get_tensor(key))
                updates = float(tensors.metadata()["updates"])
                ranks = tensors.metadata()["ranks"]
        if str(len(files)) != ranks:
            raise OutriderError(f"{len(files)} of {ranks} files")
    except (SafetensorError, OutriderError) as error:
        raise OutriderError(
            f"{directory}: damaged ({error}); delete it to resume from the previous checkpoint"
        ) from None
    for adam in _adam_states(engine):
        adam["step"].fill_(updates)


def _restore(parameter: nn.Parameter, state: str, value: torch.Tensor) -> None:
    if state != MASTER:
        safe_set_full_optimizer_state(parameter, value, state)
        return
    safe_set_full_fp32_param(parameter, value)
    with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
        parameter.data.copy_(value)


def _trained(engine: DeepSpeedEngine) -> list[tuple[str, nn.Parameter]]:
    """Returns trained parameters by name, largest first."""
    trained = [
        (name, parameter)
        for name, parameter in engine.module.named_parameters()
        if parameter.requires_grad
    ]
    return sorted(trained, key=lambda item: -_size(item[1]))


def _size(parameter: nn.Parameter) -> int:
    """Number of values; under ZeRO-3 a parameter is empty, and `ds_numel` has its size."""
    size: int = getattr(parameter, "ds_numel", parameter.numel())
    return size


def _adam_states(engine: DeepSpeedEngine) -> list[dict[str, torch.Tensor]]:
    return [state for state in engine.optimizer.optimizer.state.values() if state]


def _clear_moments(engine: DeepSpeedEngine) -> None:
    """Zeros the moments, or creates them before AdamW's first step."""
    zero = engine.optimizer
    states = engine.optimizer.optimizer.state
    stage_3 = engine.zero_optimization_stage() == 3
    if stage_3:
        flat = zero.fp32_partitioned_groups_flat
    else:
        flat = [masters for group in zero.optimizer.param_groups for masters in group["params"]]
    for masters in flat:
        if states[masters]:
            for moment in MOMENTS:
                states[masters][moment].zero_()
        else:
            step = torch.zeros((), dtype=torch.float32, device=masters.device)
            moments = {moment: torch.zeros_like(masters) for moment in MOMENTS}
            states[masters] = {"step": step, **moments}
    if not stage_3:
        zero._lazy_init_hp_params_optimizer_state()  # links parameters to these moments
