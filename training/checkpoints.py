"""Checkpoints for exact resume: published atomically, the last few kept, damaged ones skipped.

    save_checkpoint(accelerator, directory, step, {"digest": ..., "best": ...})
    state = load_checkpoint(accelerator, directory, digest)      # None: nothing to resume

A checkpoint is a directory `step-0000050`:

    state.json               the trainer's state, and the SHA-256 of every other file
    rank-00000.safetensors   masters and moments, a share of them a rank (engine_state.py)

The order of the data and the learning rate are functions of the step, and training draws no random
numbers, so they need no state. Every rank needs the directory: with several nodes it is on a shared
disk.
"""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from accelerate import Accelerator
from accelerate.utils import gather_object
from safetensors import SafetensorError

from outrider.common.errors import OutriderError
from outrider.common.files import publish, read_json, says_disk_is_full, write_json
from outrider.common.fingerprint import file_digest
from outrider.training.engine_state import load_state, save_state

STATE = "state.json"

KEPT = 2
"""Newest checkpoints that are kept: a power cut may damage one. Each has 12 bytes per trained
parameter and the weights."""

Result = TypeVar("Result")


def save_checkpoint(
    accelerator: Accelerator, directory: Path, step: int, state: dict[str, Any]
) -> None:
    """Writes and publishes a checkpoint, all ranks together; removes the oldest beyond `KEPT`.

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
        draft.mkdir()

    def write_share() -> tuple[str, str]:
        file = save_state(engine, draft, rank, world)
        return file, file_digest(draft / file)

    def finish() -> None:
        with publish(path) as temporary:
            draft.rename(temporary)
            write_json(temporary / STATE, state | {"step": step, "files": dict(files)})
        for old in published(directory)[:-KEPT]:
            shutil.rmtree(old)

    try:
        on_all_ranks(accelerator, begin, main_only=True)
        files = on_all_ranks(accelerator, write_share)
        on_all_ranks(accelerator, finish, main_only=True)
    finally:
        if accelerator.is_main_process:
            shutil.rmtree(draft, ignore_errors=True)


def load_checkpoint(
    accelerator: Accelerator, directory: Path, digest: str
) -> dict[str, Any] | None:
    """Restores the newest complete checkpoint and returns its state; None without one.

    Removes checkpoints of another run (`digest` differs), and damaged ones with a warning.
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
    load_state(accelerator.deepspeed_engine_wrapped.engine, path)
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
        except OutriderError:  # damaged: `load_checkpoint` skips it
            continue
    return found


def damage(path: Path, share: int = 0, shares: int = 1) -> str | None:
    """What is wrong with a checkpoint, of every `shares`-th file; None where nothing is.

    A rename is atomic, but the data behind it is not on every disk, and a power cut can tear it.
    """
    try:
        files = sorted(read_json(path / STATE)["files"].items())
    except OutriderError as error:
        return str(error)
    for file, digest in files[share::shares]:
        if not (path / file).is_file():
            return f"{file} is missing"
        if file_digest(path / file) != digest:
            return f"{file} has changed since it was written"
    return None


def _newest_complete(accelerator: Accelerator, directory: Path) -> Path | None:
    """The newest undamaged checkpoint; removes newer ones with a warning."""
    rank, world = accelerator.process_index, accelerator.num_processes
    on_all_ranks(accelerator, lambda: _remove_drafts(directory), main_only=True)
    names = on_all_ranks(accelerator, lambda: [path.name for path in published(directory)])[0]
    for name in reversed(names):
        path = directory / name
        problems = on_all_ranks(accelerator, partial(damage, path, rank, world))
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


def on_all_ranks(
    accelerator: Accelerator, action: Callable[[], Result], *, main_only: bool = False
) -> list[Result]:
    """Runs `action` in every rank and returns the results by rank.

    Without it a full disk under one rank leaves the others waiting in the next collective.

    `main_only` runs it in the first rank alone; the other results are None then. An
    `OutriderError`, an `OSError` or a safetensors error in any rank is raised in all of them as an
    `OutriderError`.
    """
    result, failure = None, None
    if accelerator.is_main_process or not main_only:
        try:
            result = action()
        except (OutriderError, OSError, SafetensorError) as error:
            failure = _described(error)
    gathered = gather_object([(accelerator.process_index, result, failure)])
    for rank, _, message in gathered:
        if message is not None:
            several = accelerator.num_processes > 1
            raise OutriderError(f"rank {rank}: {message}" if several else message)
    return [result for _, result, _ in gathered]


def _described(error: Exception) -> str:
    if says_disk_is_full(error):
        return f"{error}: no space left on the disk; free some and run the same command again"
    return str(error)
