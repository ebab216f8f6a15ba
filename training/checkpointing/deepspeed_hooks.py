"""Private hooks into DeepSpeed: its checkpoint files as safetensors, resume at another world size.

    use_safetensors(engine)                  # once, after prepare
    save_engine(engine, directory)           # all ranks together
    load_engine(engine, directory)           # at the same world size
    load_universal(engine, directory)        # at any; see other_world_size.py

They are ours because DeepSpeed and accelerate write pickles, which run code when they are loaded.
DeepSpeed reads and writes each file through the engine's `checkpoint_engine`, which no setting
exchanges, under names that two private methods form; these are replaced on the instance. What the
files contain is DeepSpeed's: weights, float32 masters, moments, partitions. Its recovery script,
which reads pickles, is left out.
"""

import argparse
import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.checkpoint import ds_to_universal
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import (
    CheckpointCommitInfo,
    CheckpointEngine,
)
from packaging.version import Version
from safetensors import SafetensorError

from outrider.common.errors import OutriderError
from outrider.training.checkpointing.safetensors_state import KNOWN, read_state, write_state

WRITTEN_FOR = "0.19.8"
"""The DeepSpeed version that these hooks were written for and tested with. Another minor version is
refused; raise this after reading the methods named here in the new version."""

FOLDER = "deepspeed"
UNIVERSAL = "universal"


class SafetensorsEngine(CheckpointEngine):
    """DeepSpeed's checkpoint engine with safetensors instead of torch.save and torch.load."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "SafetensorsEngine"
        self.failure: Exception | None = None

    def create(self, info: CheckpointCommitInfo) -> None:
        """Begins a new checkpoint."""
        self.failure = None

    def save(self, state_dict: Any, path: str) -> None:
        """Writes one file. `save_engine` raises an error later: here the other ranks would hang."""
        try:
            write_state(Path(path), state_dict)
        except (OSError, SafetensorError) as error:
            self.failure = self.failure or error

    def load(self, path: str, map_location: Any = None) -> Any:
        """Reads one file into the CPU's memory; DeepSpeed moves it on."""
        return read_state(Path(path))

    def commit(self, info: CheckpointCommitInfo) -> bool:
        """Does nothing: the caller publishes the whole directory."""
        return True


def use_safetensors(engine: Any) -> None:
    """Makes this DeepSpeed engine write and read its checkpoints as safetensors."""
    _require_version(deepspeed.__version__)
    engine.checkpoint_engine = SafetensorsEngine()
    engine._copy_recovery_script = lambda save_path: None
    for method in ("_get_ckpt_name", "_get_rank_zero_ckpt_name"):
        setattr(engine, method, _renamed(getattr(engine, method)))


def save_engine(engine: Any, directory: Path) -> None:
    """Writes `directory/deepspeed`, each rank its part; raises if this rank could not write."""
    engine.save_checkpoint(str(directory), tag=FOLDER, save_latest=False)
    if engine.checkpoint_engine.failure is not None:
        raise engine.checkpoint_engine.failure


def load_engine(engine: Any, directory: Path, folder: str = FOLDER) -> None:
    """Restores weights, masters and moments in place."""
    loaded, _ = engine.load_checkpoint(str(directory), tag=folder)
    if loaded is None:
        raise OutriderError(
            f"{directory / folder}: DeepSpeed found no checkpoint there; delete {directory}"
        )


def load_universal(engine: Any, directory: Path) -> None:
    """Restores weights, masters and moments from `directory/universal`."""
    engine._config.load_universal_checkpoint = True
    try:
        with _weights_only():
            load_engine(engine, directory, UNIVERSAL)
    finally:
        engine._config.load_universal_checkpoint = False


def convert_to_universal(plain: Path, universal: Path, zero_stage: int) -> None:
    """Runs `ds_to_universal` in this process on checkpoint files written by torch.save."""
    arguments = argparse.Namespace(
        input_folder=str(plain),
        output_folder=str(universal),
        # In this process: workers would not inherit the allowed classes.
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        # DeepSpeed writes the entry "universal, version 0.2" in stage 3 alone.
        inject_missing_state=zero_stage < 3,
    )
    with (
        _weights_only(),
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        ds_to_universal.main(arguments)


def _require_version(installed: str) -> None:
    if Version(installed).release[:2] != Version(WRITTEN_FOR).release[:2]:
        raise OutriderError(
            f"deepspeed {installed} is installed; checkpoints need the private methods of version"
            f" {WRITTEN_FOR}: pip install deepspeed=={WRITTEN_FOR}"
        )


def _renamed(name_of: Callable[..., str]) -> Callable[..., str]:
    def safetensors_name(*arguments: Any, **options: Any) -> str:
        return name_of(*arguments, **options).removesuffix(".pt") + ".safetensors"

    return safetensors_name


@contextlib.contextmanager
def _weights_only() -> Iterator[None]:
    """Inside, every torch.load reads tensors, plain containers and DeepSpeed's classes alone.

    DeepSpeed passes weights_only=False; the environment variable overrides it.
    """
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        with torch.serialization.safe_globals([*KNOWN.values(), OrderedDict]):
            yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
