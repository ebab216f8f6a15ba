"""Resumes a checkpoint with another number of ranks, through DeepSpeed's universal checkpoint.

    load_at_other_world_size(accelerator, engine, checkpoint, zero_stage)       # all ranks together

Resharding is DeepSpeed's (`ds_to_universal`: every parameter whole, with its float32 master and
both moments). Ours is the way from safetensors to it and back: the first rank writes the checkpoint
as the pickles that `ds_to_universal` reads, converts them, and removes all of it once every rank
has loaded its part. The pickles are made here from safetensors and read with `weights_only`, so no
code runs. The conversion takes about three times the checkpoint's size on disk."""

import shutil
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from outrider.training.checkpointing.deepspeed_hooks import (
    FOLDER,
    UNIVERSAL,
    convert_to_universal,
    load_universal,
)
from outrider.training.checkpointing.free_space import require_space
from outrider.training.checkpointing.safetensors_state import read_state
from outrider.training.distributed.collective_errors import on_all_ranks

_DISK_FACTOR = 3


def load_at_other_world_size(
    accelerator: Accelerator, engine: Any, checkpoint: Path, zero_stage: int
) -> None:
    """Restores weights, masters and moments of `checkpoint` into an engine sharded otherwise."""
    scratch = checkpoint.with_name(f".{checkpoint.name}.{UNIVERSAL}")

    def convert() -> None:
        _convert(checkpoint / FOLDER, scratch, zero_stage)

    on_all_ranks(accelerator, convert, main_only=True)
    try:
        load_universal(engine, scratch)
    finally:
        accelerator.wait_for_everyone()
        on_all_ranks(accelerator, lambda: shutil.rmtree(scratch), main_only=True)


def _convert(source: Path, scratch: Path, zero_stage: int) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
    files = sorted(source.glob("*.safetensors"))
    size = sum(path.stat().st_size for path in files)
    require_space(source, _DISK_FACTOR * size, "resuming with another number of processes")
    plain, universal = scratch / "plain", scratch / UNIVERSAL
    plain.mkdir(parents=True)
    for path in files:
        torch.save(read_state(path), plain / f"{path.stem}.pt")
    convert_to_universal(plain, universal, zero_stage)
    shutil.rmtree(plain)
    # The engine looks for the small files, those without weights, under the safetensors names.
    for path in universal.glob("*_model_states.pt"):
        path.unlink()
        shutil.copy2(source / f"{path.stem}.safetensors", universal)
