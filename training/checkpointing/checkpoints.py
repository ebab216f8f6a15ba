"""Checkpoints for exact resume: published atomically, the last few kept, torn ones skipped.

    save_checkpoint(accelerator, directory, step, {"digest": ..., "best": ...}, keep=2)
    state = load_checkpoint(accelerator, directory, digest)      # None: nothing to resume

A checkpoint is a directory `step-0000050`:

    state.json                    the trainer's state: step, best so far, recent losses, rollbacks
    deepspeed/*.safetensors       weights, float32 masters, moments, partitions (deepspeed_hooks.py)
    random-00000.safetensors      the random generators of each rank
    manifest.json                 size and SHA-256 of every file (manifest.py)

This is ours because accelerate's `save_state` writes pickles, publishes nothing atomically and
loads a torn file as far as it goes. The order of the data and the learning rate are functions of
the step, so they need no state. Every rank needs the directory: with several nodes it is on a
shared disk."""

import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from outrider.common.errors import OutriderError
from outrider.common.files import publish, read_json, write_json
from outrider.training.checkpointing.deepspeed_hooks import load_engine, save_engine
from outrider.training.checkpointing.free_space import checkpoint_bytes, require_space
from outrider.training.checkpointing.manifest import file_digests, torn, write_manifest
from outrider.training.checkpointing.other_world_size import load_at_other_world_size
from outrider.training.checkpointing.safetensors_state import read_state, write_state
from outrider.training.distributed.collective_errors import on_all_ranks

STATE = "state.json"


def save_checkpoint(
    accelerator: Accelerator, directory: Path, step: int, state: dict[str, Any], keep: int
) -> None:
    """Writes and publishes a checkpoint, all ranks together; removes the oldest beyond `keep`.

    Raises an `OutriderError` in all ranks when one of them cannot write; `directory` is unchanged
    then.
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
        write_state(draft / f"random-{rank:05d}.safetensors", random_state())
        if accelerator.is_main_process:
            write_json(draft / STATE, state | {"step": step, "processes": world})

    def finish() -> None:
        digests = {}
        for share in shares:
            digests.update(share)
        write_manifest(draft, digests)
        with publish(path) as temporary:
            draft.rename(temporary)
        for old in published(directory)[:-keep]:
            shutil.rmtree(old)

    try:
        on_all_ranks(accelerator, begin, main_only=True)
        on_all_ranks(accelerator, write_share)
        shares = on_all_ranks(accelerator, lambda: file_digests(draft, rank, world))
        on_all_ranks(accelerator, finish, main_only=True)
    finally:
        if accelerator.is_main_process:
            shutil.rmtree(draft, ignore_errors=True)


def load_checkpoint(
    accelerator: Accelerator, directory: Path, digest: str
) -> dict[str, Any] | None:
    """Restores the newest complete checkpoint and returns its state; None without one.

    Removes checkpoints of another run (`digest` differs), and torn ones with a warning.
    """
    path = _newest_complete(accelerator, directory)
    if path is None:
        return None
    state = read_json(path / STATE)
    if state["digest"] != digest:
        accelerator.print(
            f"{directory}: checkpoints of a run with other settings; starting over", flush=True
        )
        on_all_ranks(accelerator, lambda: shutil.rmtree(directory), main_only=True)
        return None
    engine = accelerator.deepspeed_engine_wrapped.engine
    if state["processes"] == accelerator.num_processes:
        load_engine(engine, path)
        share = path / f"random-{accelerator.process_index:05d}.safetensors"
        set_random_state(read_state(share))
    # At step 0 the weights are the base speculator's, and there are no moments.
    elif state["step"] > 0:
        accelerator.print(
            f"{path.name} was written by {state['processes']} processes;"
            f" resuming with {accelerator.num_processes}",
            flush=True,
        )
        stage = accelerator.deepspeed_plugin.zero_stage
        load_at_other_world_size(accelerator, engine, path, stage)
    return state


def published(directory: Path) -> list[Path]:
    """Published checkpoints, oldest first. A checkpoint being written has a leading dot."""
    return sorted(directory.glob("step-*"))


def states(directory: Path) -> list[dict[str, Any]]:
    """The trainer's state in each readable checkpoint, oldest first."""
    found = []
    for path in published(directory):
        try:
            found.append(read_json(path / STATE))
        except OutriderError:  # torn: `load_checkpoint` skips it
            continue
    return found


def random_state() -> dict[str, Any]:
    """The generators of Python, numpy, torch and this rank's GPU.

    Nothing in training draws random numbers today; code that will resumes exactly.
    """
    numpy_state = np.random.get_state(legacy=False)
    numpy_state["state"]["key"] = numpy_state["state"]["key"].tolist()
    return {
        "python": random.getstate(),
        "numpy": numpy_state,
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Sets the generators to what `random_state` returned."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])


def _newest_complete(accelerator: Accelerator, directory: Path) -> Path | None:
    """The newest checkpoint that matches its manifest; removes newer ones with a warning."""
    rank, world = accelerator.process_index, accelerator.num_processes
    on_all_ranks(accelerator, lambda: _remove_drafts(directory), main_only=True)
    names = on_all_ranks(accelerator, lambda: [path.name for path in published(directory)])[0]
    for name in reversed(names):
        path = directory / name
        problems = on_all_ranks(accelerator, partial(torn, path, rank, world))
        problem = next((each for each in problems if each), None)
        if problem is None:
            return path
        accelerator.print(
            f"warning: {path}: {problem}; skipped and removed, an older checkpoint is used",
            flush=True,
        )
        on_all_ranks(accelerator, partial(shutil.rmtree, path), main_only=True)
    return None


def _remove_drafts(directory: Path) -> None:
    """Removes what a killed run was writing."""
    for path in directory.glob(".step-*"):
        shutil.rmtree(path)
