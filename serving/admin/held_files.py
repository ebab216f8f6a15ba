"""Files of a speculator that are opened once: what was checked is what is loaded.

    with hold_release(Path("releases/4f1d0c2a9b77"), root, digest) as held:
        load(held.directory)

`held.directory` is a private folder with links to this process's open files, so code that reads a
speculator's directory reads them and nothing else: a file that is renamed, replaced or deleted
afterwards does not matter. Files of up to COPY_LIMIT together are copied into memory while they are
hashed, so their bytes cannot change either. Larger ones are mapped; `changed` compares their size
and times with those at the check, and the caller discards what it has loaded. Needs Linux.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Self

from outrider.common.errors import OutriderError
from outrider.serving.bundle.bundle_digest import MANIFEST, digest_of, listed_files
from outrider.speculators.checkpoints.layout import INDEX

COPY_LIMIT = 2**30
"""Bytes of a release up to which its files are copied into memory."""

_PIECE = 2**22
_MANIFEST_LIMIT = 2**24
_NO_LINK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class HeldFiles:
    """A speculator's files, open until `close`."""

    def __init__(self, source: Path) -> None:
        """`source` is the directory that they came from, for messages."""
        self.source = Path(source)
        self.manifest: dict[str, object] = {}
        """bundle.json; empty for a directory without one."""
        self._files: dict[str, int] = {}
        self._mapped: dict[str, tuple[int, ...]] = {}
        self.directory = Path(tempfile.mkdtemp(prefix="outrider-speculator-"))
        """Where they can be read, by this process only."""

    def add(self, name: str, descriptor: int, mapped: bool) -> None:
        """Takes over an open file."""
        self._files[name] = descriptor
        if mapped:
            self._mapped[name] = _state(descriptor)
        (self.directory / name).symlink_to(f"/proc/self/fd/{descriptor}")

    @property
    def names(self) -> set[str]:
        """Names of the files."""
        return set(self._files)

    def changed(self) -> list[str]:
        """Mapped files that were written to since they were opened."""
        return [n for n, state in self._mapped.items() if _state(self._files[n]) != state]

    def in_words(self, text: object) -> str:
        """A message about the private folder as one about the source."""
        return str(text).replace(str(self.directory), str(self.source))

    def close(self) -> None:
        """Closes the files; tensors that were mapped from them stay valid."""
        while self._files:
            os.close(self._files.popitem()[1])
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def hold_directory(directory: Path) -> HeldFiles:
    """The weights and config.json of a directory that is trusted as it is. Nothing is read."""
    directory = Path(directory)
    held = HeldFiles(directory)
    try:
        names = sorted(path.name for path in directory.glob("*.safetensors"))
        names += [name for name in ("config.json", INDEX) if (directory / name).is_file()]
        if "config.json" not in names:
            raise OutriderError(f"{directory / 'config.json'}: no such file")
        for name in names:
            held.add(name, os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC), mapped=True)
    except BaseException:
        held.close()
        raise
    return held


def hold_release(
    directory: Path, root: Path, digest: str, copy_limit: int = COPY_LIMIT
) -> HeldFiles:
    """The weights and config.json of a bundle below `root`, after checking every byte of them.

    An `OutriderError` for a directory that is not below `root` or is reached through a symbolic
    link there, for files that are no regular files or do not match bundle.json, and where
    bundle.json's list does not have this `digest` (bundle_digest.py).
    """
    directory = Path(directory)
    folder = _open_below(directory, Path(root))
    held = HeldFiles(directory)
    try:
        manifest = _manifest(folder, directory)
        files = listed_files(manifest, directory)
        if digest_of(files) != digest:
            raise OutriderError(
                f"{directory / MANIFEST}: its files have digest {digest_of(files)}, not {digest}"
            )
        held.manifest = manifest
        wanted = {n: sha for n, sha in files.items() if "/" not in n and _is_read(n)}
        if "config.json" not in wanted:
            raise OutriderError(f"{directory / MANIFEST}: files: lists no config.json")
        opened: dict[str, int] = {}
        with contextlib.ExitStack() as stack:
            for name in sorted(wanted):
                opened[name] = _open_file(name, folder, directory)
                stack.callback(os.close, opened[name])
            total = sum(os.fstat(descriptor).st_size for descriptor in opened.values())
            for name, descriptor in opened.items():
                kept = _checked(descriptor, directory / name, wanted[name], total <= copy_limit)
                held.add(name, kept, mapped=total > copy_limit)
        if late := held.changed():
            raise OutriderError(f"{directory / late[0]}: written to while it was read")
        _check_index(held, directory)
    except BaseException:
        held.close()
        raise
    finally:
        os.close(folder)
    return held


def _is_read(name: str) -> bool:
    return name in ("config.json", INDEX) or name.endswith(".safetensors")


def _open_below(directory: Path, root: Path) -> int:
    """A descriptor of the directory, reached from `root` without following a link."""
    text = os.fspath(directory)
    if not directory.is_absolute() or ".." in directory.parts or "\0" in text:
        raise OutriderError(f"{directory}: expected an absolute path without `..`")
    try:
        parts = directory.relative_to(root).parts
    except ValueError:
        parts = ()
    if not parts:
        raise OutriderError(f"{directory}: not below the release root {root}")
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise OutriderError(f"release root {root}: {error.strerror}") from error
    place = root
    for part in parts:
        place /= part
        try:
            inner = os.open(part, _NO_LINK | os.O_DIRECTORY, dir_fd=descriptor)
        except OSError as error:
            raise OutriderError(
                f"{place}: {error.strerror}; a release is a plain folder, not a link"
            ) from error
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def _open_file(name: str, folder: int, directory: Path) -> int:
    try:
        descriptor = os.open(name, _NO_LINK, dir_fd=folder)
    except OSError as error:
        raise OutriderError(
            f"{directory / name}: {error.strerror}; a release has plain files, not links"
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OutriderError(f"{directory / name}: not a regular file")
    return descriptor


def _manifest(folder: int, directory: Path) -> dict[str, object]:
    with open(_open_file(MANIFEST, folder, directory), "rb") as file:
        text = file.read(_MANIFEST_LIMIT + 1)
    try:
        manifest = json.loads(text) if len(text) <= _MANIFEST_LIMIT else None
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict):
        raise OutriderError(f"{directory / MANIFEST}: not a JSON object; export again")
    return manifest


def _checked(descriptor: int, path: Path, sha256: str, copied: bool) -> int:
    """A new descriptor of the file, or of a sealed copy in memory, whose SHA-256 is as given."""
    target = os.memfd_create(path.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) if copied else None
    digest = hashlib.sha256()
    try:
        while piece := os.read(descriptor, _PIECE):
            digest.update(piece)
            view = memoryview(piece)
            while target is not None and view:
                view = view[os.write(target, view) :]
        if digest.hexdigest() != sha256:
            raise OutriderError(
                f"{path}: changed since {MANIFEST} was written (SHA-256 {digest.hexdigest()});"
                " export again"
            )
        if target is None:
            return os.dup(descriptor)
        fcntl.fcntl(target, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        if target is not None:
            os.close(target)
        raise
    return target


def _check_index(held: HeldFiles, directory: Path) -> None:
    """The index names files of the release only."""
    if INDEX not in held.names:
        return
    try:
        files = set(json.loads((held.directory / INDEX).read_text())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise OutriderError(f"{directory / INDEX}: no weight_map; export again") from None
    if unknown := sorted(map(str, files - held.names)):
        raise OutriderError(f"{directory / INDEX}: {unknown[0]!r} is no file of the release")


def _state(descriptor: int) -> tuple[int, ...]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
