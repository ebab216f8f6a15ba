"""DeepSpeed's own checkpoint, every file of it safetensors (state_files.py): weights, float32 masters, moments, partitions.

    use_safetensors(engine)                  # once, after prepare
    save_engine(engine, directory)           # all processes together
    load_engine(engine, directory)           # the same number of processes; universal.py for another

DeepSpeed writes and reads each file through the engine's `checkpoint_engine`, under names that two of its methods form; both
are replaced on the instance. Its recovery script, which reads pickles, is left out.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepspeed.runtime.checkpoint_engine.checkpoint_engine import (
    CheckpointCommitInfo,
    CheckpointEngine,
)
from safetensors import SafetensorError

from outrider.common.errors import OutriderError
from outrider.training.checkpointing.state_files import read_state, write_state

FOLDER = "deepspeed"


class SafetensorsEngine(CheckpointEngine):
    """Where DeepSpeed would call torch.save and torch.load."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "SafetensorsEngine"
        self.failure: Exception | None = None

    def create(self, info: CheckpointCommitInfo) -> None:
        """A new checkpoint begins."""
        self.failure = None

    def save(self, state_dict: Any, path: str) -> None:
        """Writes one file. An error waits for `save_engine`: raised here it would leave the others at DeepSpeed's barrier."""
        try:
            write_state(Path(path), state_dict)
        except (OSError, SafetensorError) as error:
            self.failure = self.failure or error

    def load(self, path: str, map_location: Any = None) -> Any:
        """Reads one file into the CPU's memory; DeepSpeed moves it on."""
        return read_state(Path(path))

    def commit(self, info: CheckpointCommitInfo) -> bool:
        """Nothing is left to do: the whole directory is published by its caller."""
        return True


def use_safetensors(engine: Any) -> None:
    """From now on this DeepSpeed engine's checkpoints are safetensors."""
    engine.checkpoint_engine = SafetensorsEngine()
    engine._copy_recovery_script = lambda save_path: None
    for method in ("_get_ckpt_name", "_get_rank_zero_ckpt_name"):
        setattr(engine, method, _renamed(getattr(engine, method)))


def save_engine(engine: Any, directory: Path) -> None:
    """Writes `directory/deepspeed`, each process its part; raises what kept this process from writing."""
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


def _renamed(name_of: Callable[..., str]) -> Callable[..., str]:
    def safetensors_name(*arguments: Any, **options: Any) -> str:
        return name_of(*arguments, **options).removesuffix(".pt") + ".safetensors"

    return safetensors_name
