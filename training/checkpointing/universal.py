"""Resumes a checkpoint with another number of processes, through DeepSpeed's universal checkpoint.

    load_with_other_world(accelerator, engine, checkpoint, zero_stage)       # all processes together

The first process writes the checkpoint's safetensors as the files that `ds_to_universal` reads, converts them (every parameter
whole: float32 master, both moments), and removes all of it once every process has taken its part. Those files are pickles, written
a moment before from safetensors and read with `weights_only` in place of DeepSpeed's own setting: no code comes out of them.
While it lasts it takes about three times the checkpoint's size on the disk.
"""

import argparse
import contextlib
import os
import shutil
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from deepspeed.checkpoint import ds_to_universal

from outrider.training.checkpointing.deepspeed_files import FOLDER, load_engine
from outrider.training.checkpointing.free_space import require_space
from outrider.training.checkpointing.state_files import KNOWN, read_state
from outrider.training.distributed.collective_errors import together

_UNIVERSAL = "universal"
_DISK_FACTOR = 3


def load_with_other_world(
    accelerator: Accelerator, engine: Any, checkpoint: Path, zero_stage: int
) -> None:
    """Restores weights, masters and moments of `checkpoint` into `engine`, whose partitions are others."""
    scratch = checkpoint.with_name(f".{checkpoint.name}.{_UNIVERSAL}")
    together(
        accelerator, lambda: _convert(checkpoint / FOLDER, scratch, zero_stage), main_only=True
    )
    engine._config.load_universal_checkpoint = True
    try:
        with _weights_only():
            load_engine(engine, scratch, _UNIVERSAL)
    finally:
        engine._config.load_universal_checkpoint = False
        accelerator.wait_for_everyone()
        together(accelerator, lambda: shutil.rmtree(scratch), main_only=True)


def _convert(source: Path, scratch: Path, zero_stage: int) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
    files = sorted(source.glob("*.safetensors"))
    size = sum(path.stat().st_size for path in files)
    require_space(source, _DISK_FACTOR * size, "resuming with another number of processes")
    plain, universal = scratch / "plain", scratch / _UNIVERSAL
    plain.mkdir(parents=True)
    for path in files:
        torch.save(read_state(path), plain / f"{path.stem}.pt")
    arguments = argparse.Namespace(
        input_folder=str(plain),
        output_folder=str(universal),
        # In this process: others would not inherit `weights_only`.
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        # DeepSpeed leaves out what says "universal, version 0.2" in stages 1 and 2.
        inject_missing_state=zero_stage < 3,
    )
    with (
        _weights_only(),
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        ds_to_universal.main(arguments)
    shutil.rmtree(plain)
    # The engine looks for the small files, those with no weights, under its own names.
    for path in universal.glob("*_model_states.pt"):
        path.unlink()
        shutil.copy2(source / f"{path.stem}.safetensors", universal)


@contextlib.contextmanager
def _weights_only() -> Iterator[None]:
    """While inside, torch.load unpickles tensors, plain containers and DeepSpeed's few classes, whatever it is asked."""
    load = torch.load

    def guarded(*arguments: Any, **options: Any) -> Any:
        return load(*arguments, **(options | {"weights_only": True}))

    torch.load = guarded
    try:
        with torch.serialization.safe_globals([*KNOWN.values(), OrderedDict]):
            yield
    finally:
        torch.load = load
