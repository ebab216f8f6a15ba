"""The files of an export bundle: allowed names, sizes, and digests.

    manifest = read_manifest(directory)          # checks the file list, before any download
    check_files(directory)                       # checks the names, types and sizes of the files
    bundle_digest(directory)                     # also checks the contents of the files
    serve_digest(manifest)                       # the arguments and variables of its server

Bundles are untrusted: every reader and every download checks the list.
"""

import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.common.fingerprint import file_digest, value_digest

MANIFEST = "bundle.json"
VERSION = 2
"""Format version of bundle.json."""

MANIFEST_LIMIT = 2**24
FILES_LIMIT = 4096
TOTAL_LIMIT = 2**38
"""Limits for a bundle: bytes in the manifest, number of files, total bytes in all files."""

OF_THE_HUB = ("README.md", ".gitattributes", ".cache")
"""Files and folders that the Hugging Face Hub adds to a bundle; never read."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(r"[A-Za-z0-9_.+-]{1,200}")


def files_of(directory: Path) -> list[Path]:
    """Returns every file below a directory, sorted."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def list_files(directory: Path) -> dict[str, Any]:
    """Returns bundle.json's entries for the files now in the directory."""
    names = {path.relative_to(directory).as_posix(): path for path in files_of(directory)}
    names.pop(MANIFEST, None)
    return {
        "version": VERSION,
        "files": {name: file_digest(path) for name, path in names.items()},
        "sizes": {name: path.stat().st_size for name, path in names.items()},
    }


def bundle_digest(directory: Path, digest_of: Callable[[Path], str] = file_digest) -> str:
    """Checks the files; returns the SHA-256 over bundle.json's sorted (name, SHA-256) pairs.

    bundle.json is not included, so the digest does not depend on the evidence. Raises an
    `OutriderError` if a file is missing or differs. `digest_of` returns a file's SHA-256.
    """
    files = check_files(directory)
    for name, digest in files.items():
        if digest_of(directory / name) != digest:
            raise _changed(directory / name, "another SHA-256")
    return value_digest(sorted([name, digest] for name, digest in files.items()))


def serve_digest(manifest: Mapping[str, object]) -> str:
    """Returns the SHA-256 of bundle.json's `serve` entry, which `bundle_digest` does not cover."""
    return value_digest(manifest.get("serve"))


def read_manifest(directory: Path) -> dict[str, Any]:
    """Reads bundle.json; raises an `OutriderError` if its version or file list is invalid."""
    if not directory.is_dir():
        raise OutriderError(
            f"{directory}: no such folder; give the bundle that `outrider export` wrote"
        )
    path = directory / MANIFEST
    if os.path.lexists(path) and _size(directory, MANIFEST) > MANIFEST_LIMIT:
        raise OutriderError(f"{path}: larger than {MANIFEST_LIMIT} bytes; export again")
    manifest: dict[str, Any] = read_json(path)  # not an object if the file is hostile
    version = manifest.get("version") if isinstance(manifest, dict) else None
    if version != VERSION:
        raise OutriderError(
            f"{path}: version {version}, but this Outrider reads version {VERSION}; export again"
        )
    _check_list(manifest, path)
    return manifest


def check_files(directory: Path) -> dict[str, str]:
    """Checks a bundle's file names and sizes; returns {file name: SHA-256}.

    Contents are not read. Raises an `OutriderError` for a file that is missing, a link, not
    regular, of the wrong size, or unlisted, because vLLM would load an unlisted file too.
    """
    manifest = read_manifest(directory)
    for name, size in manifest["sizes"].items():
        actual_size = _size(directory, name)
        if actual_size != size:
            raise _changed(directory / name, f"{actual_size} bytes, not {size}")
    for folder, folders, names in os.walk(directory):
        inside = Path(folder).relative_to(directory)
        # os.walk lists a link to a folder among the folders and does not enter it.
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in names + links:
            path = (inside / name).as_posix()
            known = path in manifest["files"] or path == MANIFEST
            if not known and path.split("/")[0] not in OF_THE_HUB:
                # A line break in a name would begin a line of the terminal.
                shown = path if path.isprintable() else repr(path)
                raise OutriderError(
                    f"{directory / shown}: {MANIFEST} does not list it; delete it, or export again"
                )
    return dict(manifest["files"])


def _check_list(manifest: dict[str, Any], path: Path) -> None:
    """Raises an `OutriderError` if names, digests or sizes are invalid.

    Names must be relative and normalized, and their parts may contain only letters, digits and
    `_.+-`. Every file must have a size, and the sizes must not add up to more than `TOTAL_LIMIT`.
    """
    files = manifest.get("files")
    sizes = manifest.get("sizes")
    if not isinstance(files, dict) or not 0 < len(files) <= FILES_LIMIT:
        raise OutriderError(f"{path}: files: expected the SHA-256 of each file; export again")
    for name, digest in files.items():
        parts = name.split("/")
        if not all(map(_PART.fullmatch, parts)) or not {".", ".."}.isdisjoint(parts):
            raise OutriderError(f"{path}: files: {name!r} is not inside the bundle")
        if name == MANIFEST or any("/".join(parts[:n]) in files for n in range(1, len(parts))):
            raise OutriderError(f"{path}: files: {name!r} is not an allowed file name in a bundle")
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise OutriderError(f"{path}: files: {name}: {digest!r} is not a SHA-256")
    if not isinstance(sizes, dict) or sizes.keys() != files.keys():
        raise OutriderError(f"{path}: sizes: expected the bytes of each file; export again")
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise OutriderError(f"{path}: sizes: {name}: {size!r} is not a number of bytes")
    if sum(sizes.values()) > TOTAL_LIMIT:
        raise OutriderError(f"{path}: sizes: {sum(sizes.values())} bytes, above {TOTAL_LIMIT}")


def _size(directory: Path, name: str) -> int:
    """Returns a regular file's size; raises an `OutriderError` for anything else."""
    path = directory
    try:
        for part in name.split("/"):
            path = path / part
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                raise OutriderError(f"{path}: a link, but a bundle has only files; export again")
    except OSError as error:
        raise OutriderError(f"{path}: {error.strerror}; export the bundle again") from None
    if not stat.S_ISREG(status.st_mode):
        raise OutriderError(f"{path}: not a regular file; export the bundle again")
    return status.st_size


def _changed(path: Path, how: str) -> OutriderError:
    return OutriderError(f"{path}: changed since {MANIFEST} was written ({how}); export again")
