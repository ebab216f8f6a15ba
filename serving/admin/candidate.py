"""A speculator that is to replace another in a live engine, checked before a weight is touched.

current = in_service(Path(directory_at_start))
new = checked(release_files(directory, root, digest), current, target_dir, k)
for name, tensor in new.tensors(): ...
new.files.changed()                      # []: what was loaded is what was checked

Releases are read-only copies in folders named by their digest (live/releases.py), so they are read
in place. A file that is replaced or written to after the check is noticed by its inode, size or
times, and the caller discards what it has loaded.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.common.errors import OutriderError
from outrider.serving.bundle.bundle_digest import MANIFEST, bundle_digest, read_manifest
from outrider.speculators.checkpoints.checks import check_finite, first_names
from outrider.speculators.checkpoints.layout import INDEX, read_layout
from outrider.speculators.checkpoints.safetensors_headers import tensor_headers
from outrider.speculators.checkpoints.target_fingerprint import check_target
from outrider.speculators.kinds import kind_of
from outrider.speculators.kinds.protocol import TrainableKind

if TYPE_CHECKING:
    import torch

Form = tuple[str, tuple[int, ...]]
"""Kind of number, and shape."""

State = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class SpeculatorFiles:
    """A speculator's directory, and the state of its files when they were checked."""

    directory: Path
    manifest: dict[str, object]
    """bundle.json; empty for a directory that was not checked against one."""
    states: dict[str, State]

    def changed(self) -> list[str]:
        """Files that were replaced, written to or deleted since the check."""
        found = _states(self.directory)
        return sorted(name for name, state in self.states.items() if found.get(name) != state)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A speculator's files, with what an engine loads of them."""

    files: SpeculatorFiles
    kind: TrainableKind
    forms: dict[str, Form]
    """Of each tensor that an engine loads."""
    digest: str = ""
    """`bundle_digest` of the release; empty for a directory that was not checked against one."""

    @property
    def directory(self) -> Path:
        """Folder of the files."""
        return self.files.directory

    def tensors(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """(name, tensor as stored), mapped from the files; an error for files that have changed."""
        if late := self.files.changed():
            raise OutriderError(f"{self.directory / late[0]}: changed since it was checked")
        return self.kind.swap_tensors(self.directory)


def in_service(directory: Path) -> Candidate:
    """The speculator that an engine was started with."""
    return _read(directory_files(directory), "")


def checked(
    files: SpeculatorFiles,
    current: Candidate,
    target_dir: Path | None,
    k: int | None,
    digest: str = "",
) -> Candidate:
    """The speculator of `files`, which can take the place of `current`.

    An `OutriderError` where it is of another kind, has other tensors, shapes or kinds of numbers, a
    value that is not finite, or was made for another target or another number of drafts than `k`.
    """
    directory = files.directory
    try:
        new = _read(files, digest)
        _check_form(new, current)
        _check_manifest(new, k)
        if not new.kind.swappable(current.directory, directory):
            raise OutriderError(
                f"{directory}: its shape is not that of the speculator in use; it needs a server"
                " that is started with it"
            )
        headers = tensor_headers(directory)  # by the same names: those of the files
        check_finite({name: headers[name] for name in new.forms})
        if target_dir is not None:
            check_target(files.manifest, directory, target_dir)
            new.kind.check(directory, read_layout(target_dir))
    except OutriderError:
        raise
    except Exception as error:  # such as a broken header, from the safetensors library
        raise OutriderError(f"{directory}: {error}") from error
    return new


def _read(files: SpeculatorFiles, digest: str) -> Candidate:
    kind = kind_of(files.directory)
    if not isinstance(kind, TrainableKind) or not kind.abilities.live_swap:
        raise OutriderError(
            f"{files.directory}: {kind.in_words} cannot be swapped in a live engine"
        )
    forms = {
        name: (_number(tensor), tuple(tensor.shape))
        for name, tensor in kind.swap_tensors(files.directory)
    }
    return Candidate(files, kind, forms, digest)


def _number(tensor: "torch.Tensor") -> str:
    """The dtype; one word for those that the engine's loader converts into each other."""
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
    # Kinds with several published layouts have several names for a tensor. With as many tensors of
    # each form, the kind's own check of names decides.
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
        (number, shape), (own_number, own_shape) = new.forms[name], current.forms[name]
        raise OutriderError(
            f"{source}: {name} is {number} {list(shape)}, in the engine {own_number}"
            f" {list(own_shape)} ({len(wrong)} such tensors); export again for this target"
        )


def _check_manifest(new: Candidate, k: int | None) -> None:
    """The bundle was measured with the engine's kind and number of drafts."""
    manifest, source = new.files.manifest, new.directory
    if not manifest:
        return
    if manifest.get("method", new.kind.name) != new.kind.name:
        raise OutriderError(
            f"{source}/bundle.json: method = {manifest['method']}, but config.json is that of"
            f" {new.kind.in_words}; export again"
        )
    if k is not None and manifest.get("num_speculative_tokens", k) != k:
        raise OutriderError(
            f"{source}/bundle.json: num_speculative_tokens ="
            f" {manifest['num_speculative_tokens']}, but the engine drafts {k}: start a server with"
            " the bundle's serve.sh, or export with that k"
        )


def directory_files(directory: Path) -> SpeculatorFiles:
    """A directory that is trusted as it is. Nothing is read."""
    if not (directory / "config.json").is_file():
        raise OutriderError(f"{directory / 'config.json'}: no such file")
    return SpeculatorFiles(Path(directory), {}, _states(directory))


def release_files(directory: Path, root: Path, digest: str) -> SpeculatorFiles:
    """The bundle in a folder below `root`, after checking every byte of it.

    An `OutriderError` for a directory that is not below `root` or is reached through a symbolic
    link there, for files that are links, are not listed in bundle.json or differ from it, and where
    bundle.json's list does not have this `digest` (bundle_digest.py).
    """
    directory, root = Path(directory), Path(root)
    if not directory.is_absolute() or ".." in directory.parts:
        raise OutriderError(f"{directory}: expected an absolute path without `..`")
    if root not in directory.parents:
        raise OutriderError(f"{directory}: not below the release root {root}")
    # The root itself may be a link: that is the operator's choice.
    if directory.resolve() != root.resolve() / directory.relative_to(root):
        raise OutriderError(f"{directory}: a release is a plain folder, not a link")
    states = _states(directory)
    manifest = read_manifest(directory)
    if "config.json" not in manifest["files"]:
        raise OutriderError(
            f"{directory / MANIFEST}: files: lists no config.json: {manifest.get('method')} has no"
            " weights to load; start a server with the bundle's serve.sh"
        )
    if (found := bundle_digest(directory)) != digest:
        raise OutriderError(f"{directory / MANIFEST}: its files have digest {found}, not {digest}")
    files = SpeculatorFiles(directory, manifest, states)
    _check_index(files)
    if late := files.changed():
        raise OutriderError(f"{directory / late[0]}: written to while it was read")
    return files


def _check_index(files: SpeculatorFiles) -> None:
    """The index names files of the release only."""
    path = files.directory / INDEX
    if INDEX not in files.states:
        return
    try:
        named = set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise OutriderError(f"{path}: no weight_map; export again") from None
    if unknown := sorted(map(str, named - files.states.keys())):
        raise OutriderError(f"{path}: {unknown[0]!r} is not a file of the release")


def _states(directory: Path) -> dict[str, State]:
    """Inode, size and times of the files that an engine reads."""
    paths = [*directory.glob("*.safetensors"), directory / "config.json", directory / INDEX]
    found = {path.name: path.stat() for path in paths if path.is_file()}
    return {
        name: (each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns)
        for name, each in found.items()
    }
