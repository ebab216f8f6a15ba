"""Checks a new speculator and has a running engine's workers load it.

    current = read_served(Path(directory_at_start))
    new = read_candidate(directory, current, target_dir, root=root, digest=digest, k=k)
    await swap(rpc, new, swap_id)       # a live server (vllm_hooks/live_speculator.py)
    swap_directory(rpc, directory, directory_at_start, target_dir)   # a server on this machine

`rpc(method, arguments)` returns each worker's answer (vllm_hooks/swap_extension.py).

Releases are read-only copies in folders named by digest (live/releases.py) and are read in place.
Workers detect later changes by inode, size and timestamps, and then keep or reload the previous
speculator.
"""

import asyncio
import dataclasses
import functools
import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from outrider.common.errors import OutriderError
from outrider.serving.bundle.bundle_digest import MANIFEST, bundle_digest, read_manifest
from outrider.speculators.checkpoints.checks import check_finite, first_names
from outrider.speculators.checkpoints.layout import INDEX, read_layout
from outrider.speculators.checkpoints.safetensors_headers import tensor_headers
from outrider.speculators.checkpoints.target_fingerprint import check_bundle_target
from outrider.speculators.kinds import drafter_kind_of
from outrider.speculators.kinds.protocol import Settings, TrainableKind, WeightlessKind
from outrider.speculators.lookup_history import HISTORY_FILE

if TYPE_CHECKING:
    import torch

Form = tuple[str, tuple[int, ...]]
"""Dtype class (`_number`) and shape of a tensor."""

FileStates = dict[str, list[int]]
"""Inode, size and timestamps of each file, by name."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A speculator's directory and the tensors that an engine loads from it, if any."""

    directory: Path
    kind: TrainableKind | WeightlessKind
    states: FileStates
    """State of each file at the time of the check."""
    forms: dict[str, Form]
    """Form of each tensor that an engine loads."""
    digest: str = ""
    """`bundle_digest` of the release; empty for a directory that was not checked against one."""


class SwapReport(TypedDict):
    """One worker's speculator and the result of the last call to that worker."""

    directory: str
    digest: str
    error: str | None
    """Why the load or the revert failed; None if it succeeded."""
    broken: str | None
    """Why the weights are only partly loaded or could not be reverted; otherwise None."""


class SpeculatorBroken(OutriderError):
    """Workers may draft with wrong weights until all swap successfully."""


def read_served(directory: Path) -> Candidate:
    """Reads the speculator that an engine was started with."""
    return _read(directory, file_states(directory), "")


def read_candidate(
    directory: Path,
    current: Candidate,
    target_dir: Path | None,
    *,
    root: Path | None = None,
    digest: str = "",
    k: int | None = None,
    settings: Settings | None = None,
) -> Candidate:
    """Reads the speculator in `directory` and checks that it can replace `current`.

    With a `root`, it must be a release whose digest is `digest` (`release_files`); without one, it
    is trusted. Raises an `OutriderError` if its kind, tensors, shapes or dtype classes differ, if a
    value is not finite, or if it was made for another target, a number of drafts other than `k` or
    a lookup's settings other than `settings`.
    """
    try:
        states = file_states(directory)
        manifest = dict[str, Any]()
        if root is not None:
            states, manifest = release_files(directory, root, digest)
        new = _read(directory, states, digest)
        _check_form(new, current)
        _check_manifest(manifest, new, k, settings)
        weights = new.kind if isinstance(new.kind, TrainableKind) else None
        if weights and not weights.swappable(current.directory, directory):
            raise OutriderError(
                f"{directory}: its shape differs from that of the speculator in use; start a server"
                " with it"
            )
        if weights:
            _check_finite(directory, json.dumps(states, sort_keys=True), frozenset(new.forms))
        if target_dir is not None:
            check_bundle_target(manifest, directory, target_dir)
            new.kind.check(directory, read_layout(target_dir))
    except OutriderError:
        raise
    except Exception as error:  # such as a safetensors error about a corrupt header
        raise OutriderError(f"{directory}: {error}") from error
    return new


async def swap(
    rpc: Callable[[str, dict[str, Any]], Awaitable[Sequence[SwapReport]]],
    new: Candidate,
    swap_id: str,
) -> Sequence[SwapReport]:
    """Loads a checked speculator on all workers; returns their reports.

    `swap_id` identifies the swap for `speculator_take_back`. Raises an `OutriderError` with the
    first reported reason if all workers keep the old speculator, and `SpeculatorBroken` if a worker
    could not restore it.
    """
    load = {
        "directory": str(new.directory),
        "states": new.states,
        "digest": new.digest,
        "swap_id": swap_id,
    }
    reports = await rpc("speculator_load", load)
    errors = [report["error"] for report in reports if report["error"] is not None]
    if errors and len(errors) < len(reports):  # the other workers loaded it
        reports = await rpc("speculator_take_back", {"swap_id": swap_id})
    if broken := [report["broken"] for report in reports if report["broken"] is not None]:
        raise SpeculatorBroken(f"{new.directory}: not loaded: {broken[0]}")
    if errors:
        raise OutriderError(
            f"{new.directory}: could not be loaded, so the previous speculator stays in use:"
            f" {errors[0]}"
        )
    return reports


def swap_directory(
    rpc: Callable[[str, dict[str, Any]], Sequence[SwapReport]],
    directory: Path,
    started_with: Path,
    target_dir: Path,
) -> None:
    """Swaps to the speculator in a trusted directory; `rpc` is synchronous.

    `started_with`: the directory that the engine was started with. Raises an `OutriderError` if the
    swap is refused; the previous speculator then stays in use.
    """
    new = read_candidate(Path(directory).resolve(), read_served(started_with), target_dir)

    async def call(method: str, arguments: dict[str, Any]) -> Sequence[SwapReport]:
        return rpc(method, arguments)

    asyncio.run(swap(call, new, uuid.uuid4().hex))


def unswappable(parallel_config: Any) -> str | None:
    """Why an engine with `parallel_config` cannot swap speculators; None if it can."""
    if parallel_config.data_parallel_size > 1 or parallel_config.enable_eplb:
        return (
            "speculators cannot be swapped with data parallelism, because vLLM reports only one"
            " rank, or with EPLB, because it moves experts; start the server with the new"
            " speculator"
        )
    return None


def _read(directory: Path, states: FileStates, digest: str) -> Candidate:
    kind = drafter_kind_of(directory)
    forms = dict[str, Form]()
    if isinstance(kind, TrainableKind):
        forms = {
            name: (_number(tensor), tuple(tensor.shape))
            for name, tensor in kind.swap_tensors(directory)
        }
    elif not isinstance(kind, WeightlessKind) or HISTORY_FILE not in states:
        raise OutriderError(f"{directory}: {kind.in_words} cannot be swapped in a live engine")
    return Candidate(directory=directory, kind=kind, states=states, forms=forms, digest=digest)


def _number(tensor: "torch.Tensor") -> str:
    """The dtype, or one name for dtypes that the engine's loader interconverts."""
    if tensor.dtype.itemsize > 1 and not tensor.is_complex():
        return "float" if tensor.is_floating_point() else "integer"
    return str(tensor.dtype).removeprefix("torch.")


def _check_form(new: Candidate, current: Candidate) -> None:
    source = new.directory
    if new.kind.name != current.kind.name:
        raise OutriderError(
            f"{source}: {new.kind.in_words}, but the engine was started with"
            f" {current.kind.in_words}; start another server for it"
        )
    # A kind with several published layouts may name one tensor differently in each. If only the
    # names differ, the kind's own check decides.
    names_differ = new.forms.keys() != current.forms.keys()
    if names_differ and sorted(new.forms.values()) == sorted(current.forms.values()):
        return
    if missing := sorted(current.forms.keys() - new.forms.keys()):
        raise OutriderError(f"{source}: no weights for {first_names(missing)}")
    if more := sorted(new.forms.keys() - current.forms.keys()):
        raise OutriderError(f"{source}: weights of another speculator: {first_names(more)}")
    wrong = [name for name, form in new.forms.items() if form != current.forms[name]]
    if wrong:
        name = min(wrong)
        number, shape = new.forms[name]
        engine_number, engine_shape = current.forms[name]
        raise OutriderError(
            f"{source}: {name} is {number} {list(shape)}, in the engine {engine_number}"
            f" {list(engine_shape)} ({len(wrong)} such tensors); export again for this target"
        )


@functools.lru_cache(maxsize=32)
def _check_finite(directory: Path, states: str, names: frozenset[str]) -> None:
    """Checks the named tensors, again only if the files have changed (`file_states` as JSON).

    An evaluation swaps back and forth between the same files: 11.6 GB for R1, which take 10 to 20 s
    to read while the server is idle. A failed check is not cached.
    """
    headers = tensor_headers(directory)  # keyed by the names in the files, like `forms`
    check_finite({name: headers[name] for name in names})


def _check_manifest(
    manifest: dict[str, Any], new: Candidate, k: int | None, settings: Settings | None
) -> None:
    """Checks that the bundle's kind, number of drafts and settings match the engine's."""
    in_engine = {"method": new.kind.name, "num_speculative_tokens": k, "settings": settings}
    of_bundle = dict(manifest)
    if settings is not None and manifest:
        of_bundle["settings"] = {**new.kind.default_settings, **manifest.get("settings", {})}
    for key, value in in_engine.items():
        listed = of_bundle.get(key)
        # A trusted directory has no manifest, and callers of a trusted one do not give k.
        if listed is not None and value is not None and listed != value:
            raise OutriderError(
                f"{new.directory / MANIFEST}: {key} = {listed}, but the engine drafts with {value}:"
                " start a server with the bundle's serve.sh, or export again"
            )


def release_files(directory: Path, root: Path, digest: str) -> tuple[FileStates, dict[str, Any]]:
    """Checks every byte of a release; returns its file states and manifest.

    Raises an `OutriderError` if `directory` is not below `root`, if its path below `root` contains
    a symbolic link, if a file is a link, unlisted or changed, or if the files' digest is not
    `digest`.
    """
    if not directory.is_absolute() or ".." in directory.parts:
        raise OutriderError(f"{directory}: expected an absolute path without `..`")
    if root not in directory.parents:
        raise OutriderError(f"{directory}: not below the release root {root}")
    # The root itself may be a link: that is the operator's choice.
    if directory.resolve() != root.resolve() / directory.relative_to(root):
        raise OutriderError(f"{directory}: a release is a plain folder, not a link")
    states = file_states(directory)
    manifest = read_manifest(directory)
    if manifest["files"].keys().isdisjoint(("config.json", HISTORY_FILE)):
        raise OutriderError(
            f"{directory / MANIFEST}: files: lists no config.json and no {HISTORY_FILE}:"
            f" {manifest.get('method')} has nothing to load; start a server with the bundle's"
            " serve.sh"
        )
    actual_digest = bundle_digest(directory)
    if actual_digest != digest:
        raise OutriderError(
            f"{directory / MANIFEST}: its files have digest {actual_digest}, not {digest}"
        )
    if INDEX in states:
        _check_index(directory / INDEX, states)
    return states, manifest


def _check_index(path: Path, states: FileStates) -> None:
    """Checks that the index names only files of the release."""
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        shards = set(weight_map.values())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise OutriderError(f"{path}: no weight_map; export again") from None
    if unknown := sorted(map(str, shards - states.keys())):
        raise OutriderError(f"{path}: {unknown[0]!r} is not a file of the release")


def check_unchanged(directory: Path, states: FileStates) -> None:
    """Raises an `OutriderError` if a file has changed since `states` was recorded."""
    current_states = file_states(directory)
    for name, state in sorted(states.items()):
        if current_states.get(name) != state:
            raise OutriderError(f"{directory / name}: changed since it was checked")


def file_states(directory: Path) -> FileStates:
    """Returns the inode, size and timestamps of each file that engines read."""
    names = ("config.json", INDEX, HISTORY_FILE)
    paths = [*directory.glob("*.safetensors"), *(directory / name for name in names)]
    status = {path.name: path.stat() for path in paths if path.is_file()}
    # st_ctime_ns too: a writer can set the modification time back, but not the change time.
    return {
        name: [stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        for name, stat in status.items()
    }
