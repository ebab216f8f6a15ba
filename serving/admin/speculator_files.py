"""Files of a speculator that an engine loads, checked against their digest.

    files = release_files(Path("releases/4f1d0c2a9b77/bundle"), root, digest)
    load(files.directory)
    files.changed()                      # []: what was loaded is what was checked

Releases are read-only copies in folders named by their digest (live/releases.py), so they are read
in place. A file that is replaced or written to after the check is noticed by its inode, size or
times, and the caller discards what it has loaded.
"""

import dataclasses
import json
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.serving.bundle.bundle_digest import MANIFEST, bundle_digest, read_manifest
from outrider.speculators.checkpoints.layout import INDEX

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
        raise OutriderError(f"{directory / MANIFEST}: files: lists no config.json")
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
