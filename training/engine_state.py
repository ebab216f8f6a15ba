"""DeepSpeed's training state as whole tensors: float32 masters and AdamW's moments by parameter.

    save_state(engine, directory, rank, world)      # all ranks together; each writes its share
    load_state(engine, directory)                   # at any number of ranks, any ZeRO stage

DeepSpeed's own checkpoints are pickles, which run code when they are loaded, and another number of
ranks needs a conversion. Its calls for single parameters (`safe_get_full_fp32_param` and others)
give every parameter whole, whatever the partition, so one format serves all layouts.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
)
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

MASTER = "master"
MOMENTS = ("exp_avg", "exp_avg_sq")


def save_state(engine: Any, directory: Path, rank: int, world: int) -> str:
    """Writes `rank-R.safetensors` with every `world`-th tensor, and returns the file's name.

    Tensors are gathered one at a time, the largest first, so that shares are of like size.
    """
    share, updates = {}, _updates(engine)
    wanted = (MASTER, *MOMENTS) if updates else (MASTER,)
    tensors = [(*each, state) for each in _trained(engine) for state in wanted]
    for number, (name, parameter, state) in enumerate(tensors):
        if state == MASTER:
            whole = safe_get_full_fp32_param(parameter)
        else:
            whole = safe_get_full_optimizer_state(parameter, state)
        if number % world == rank:
            share[f"{state} {name}"] = whole.cpu().contiguous()
    file = f"rank-{rank:05d}.safetensors"
    save_file(share, directory / file, metadata={"updates": str(updates)})
    return file


def load_state(engine: Any, directory: Path) -> None:
    """Restores weights, masters, moments and AdamW's count of updates, in place."""
    parameters = dict(_trained(engine))
    _clear_moments(engine)
    for file in sorted(directory.glob("rank-*.safetensors")):
        with safe_open(file, "pt", device=str(engine.device)) as tensors:
            for key in tensors.keys():  # noqa: SIM118 (a safetensors file is no dict)
                state, name = key.split(" ", 1)
                _restore(parameters[name], state, tensors.get_tensor(key))
            updates = float(tensors.metadata()["updates"])
    for adam in _adam_states(engine):
        adam["step"].fill_(updates)


def _restore(parameter: nn.Parameter, state: str, value: torch.Tensor) -> None:
    if state != MASTER:
        safe_set_full_optimizer_state(parameter, value, state)
        return
    safe_set_full_fp32_param(parameter, value)
    with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
        parameter.data.copy_(value)


def _trained(engine: Any) -> Iterator[tuple[str, nn.Parameter]]:
    """Trained parameters, the largest first. Under ZeRO-3 a parameter's size is in `ds_numel`."""
    named = [each for each in engine.module.named_parameters() if each[1].requires_grad]
    named.sort(key=lambda each: -getattr(each[1], "ds_numel", each[1].numel()))
    yield from named


def _updates(engine: Any) -> int:
    """Updates that AdamW has made."""
    return max((int(adam["step"]) for adam in _adam_states(engine)), default=0)


def _adam_states(engine: Any) -> list[dict[str, torch.Tensor]]:
    return [state for state in engine.optimizer.optimizer.state.values() if state]


def _clear_moments(engine: Any) -> None:
    """Zeros the moments. AdamW makes them in its first step, so before it they are made here."""
    zero, states = engine.optimizer, engine.optimizer.optimizer.state
    stage_3 = engine.zero_optimization_stage() == 3
    if stage_3:
        flat = zero.fp32_partitioned_groups_flat
    else:
        flat = [each for group in zero.optimizer.param_groups for each in group["params"]]
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
