"""What a stopped run resumes from, published whole, the last few kept; a torn one is passed over.

    save_checkpoint(accelerator, out_dir / "checkpoints", step, {"digest": ..., "best": ...}, keep=2)
    state = load_checkpoint(accelerator, out_dir / "checkpoints", digest)      # None: nothing to resume

A checkpoint is a directory `step-0000050`:

    state.json                    the trainer's own state: step, best so far, losses lately, what was skipped
    deepspeed/*.safetensors       weights, float32 masters and moments, as DeepSpeed partitions them (engine_files.py)
    random-00000.safetensors      the random generators of each process
    manifest.json                 size and SHA-256 of every file (seal.py)

The order of the data and the learning rate are functions of the step. All files are safetensors or JSON. Every process
needs the directory: with several nodes it lies on a disk that they share.
"""

import shutil
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from outrider.common.errors import OutriderError
from outrider.common.files import publish, read_json, write_json
from outrider.training.checkpointing.deepspeed_files import load_engine, save_engine
from outrider.training.checkpointing.free_space import checkpoint_bytes, require_space
from outrider.training.checkpointing.manifest import file_digests, torn, write_manifest
from outrider.training.checkpointing.random_state import load_random_state, save_random_state
from outrider.training.checkpointing.universal import load_with_other_world
from outrider.training.distributed.collective_errors import together

STATE = "state.json"


def save_checkpoint(
    accelerator: Accelerator, directory: Path, step: int, state: dict[str, Any], keep: int
) -> None:
    """All processes together: every share into one draft, sealed, then one rename; the oldest beyond `keep` are removed.

    An `OutriderError` in all processes when any of them cannot write; what `directory` held is untouched then.
    """
    path = directory / f"step-{step:07d}"
    draft = directory / f".{path.name}.draft"
    rank, world = accelerator.process_index, accelerator.num_processes
    engine = accelerator.deepspeed_engine_wrapped.engine

    def begin() -> None:
        directory.mkdir(parents=True, exist_ok=True)
        _remove_drafts(directory)
        require_space(directory, checkpoint_bytes(engine.module, world), "a checkpoint")
        draft.mkdir()

    def write_share() -> None:
        save_engine(engine, draft)
        save_random_state(draft / f"random-{rank:05d}.safetensors")
        if accelerator.is_main_process:
            write_json(draft / STATE, state | {"step": step, "processes": world})

    def finish() -> None:
        write_manifest(draft, {name: each for share in shares for name, each in share.items()})
        with publish(path) as temporary:
            draft.rename(temporary)
        for old in finished(directory)[:-keep]:
            shutil.rmtree(old)

    try:
        together(accelerator, begin, main_only=True)
        together(accelerator, write_share)
        shares = together(accelerator, lambda: file_digests(draft, rank, world))
        together(accelerator, finish, main_only=True)
    finally:
        if accelerator.is_main_process:
            shutil.rmtree(draft, ignore_errors=True)


def load_checkpoint(
    accelerator: Accelerator, directory: Path, digest: str
) -> dict[str, Any] | None:
    """Restores the newest whole checkpoint and returns its state. Those of another run are removed, torn ones with a warning."""
    path = _newest_whole(accelerator, directory)
    if path is None:
        return None
    state = read_json(path / STATE)
    if state["digest"] != digest:
        accelerator.print(
            f"{directory}: checkpoints of a run with other settings; starting anew", flush=True
        )
        together(accelerator, lambda: shutil.rmtree(directory), main_only=True)
        return None
    engine = accelerator.deepspeed_engine_wrapped.engine
    if state["processes"] == accelerator.num_processes:
        load_engine(engine, path)
        load_random_state(path / f"random-{accelerator.process_index:05d}.safetensors")
    elif (
        state["step"] > 0
    ):  # at step 0 the weights are the base speculator's, and there are no moments
        accelerator.print(
            f"{path.name} was written by {state['processes']} processes, {accelerator.num_processes} go on with it",
            flush=True,
        )
        load_with_other_world(accelerator, engine, path, accelerator.deepspeed_plugin.zero_stage)
    return state


def finished(directory: Path) -> list[Path]:
    """Published checkpoints, oldest first (one being written has a name with a leading dot)."""
    return sorted(directory.glob("step-*"))


def states(directory: Path) -> list[dict[str, Any]]:
    """The trainer's state in each published checkpoint that tells it, oldest first."""
    found = []
    for path in finished(directory):
        try:
            found.append(read_json(path / STATE))
        except OutriderError:  # torn: passed over when it comes to be loaded
            continue
    return found


def _newest_whole(accelerator: Accelerator, directory: Path) -> Path | None:
    """The newest checkpoint whose files are as the manifest says; newer ones are removed, each with a warning."""
    together(accelerator, lambda: _remove_drafts(directory), main_only=True)
    [present, *_] = together(accelerator, lambda: [path.name for path in finished(directory)])
    for name in reversed(present):
        path = directory / name
        problems = together(
            accelerator,
            lambda path=path: torn(path, accelerator.process_index, accelerator.num_processes),
        )
        problem = next((each for each in problems if each), None)
        if problem is None:
            return path
        accelerator.print(
            f"warning: {path}: {problem}; passed over and removed, an older checkpoint is taken",
            flush=True,
        )
        together(accelerator, lambda path=path: shutil.rmtree(path), main_only=True)
    return None


def _remove_drafts(directory: Path) -> None:
    """What a killed run was writing or had put aside."""
    for path in directory.glob(".step-*"):
        shutil.rmtree(path)
