"""A manifest of a directory's files: sizes and SHA-256, to detect torn and damaged files.

    digests = file_digests(directory, share=rank, shares=world)      # all ranks cover every file
    write_manifest(directory, digests_of_all)
    problem = torn(directory, share=rank, shares=world)              # None: this share is complete

Ours because a rename is atomic but the data behind it is not: after a power cut or on a network
disk a renamed directory can hold torn files, which neither DeepSpeed nor safetensors detects
(safetensors checks the size, not the content)."""

from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.common.fingerprint import file_digest

MANIFEST = "manifest.json"

SizeAndDigest = tuple[int, str]


def file_digests(directory: Path, share: int = 0, shares: int = 1) -> dict[str, SizeAndDigest]:
    """(bytes, SHA-256) by relative path, of every `shares`-th file."""
    files = sorted(
        path for path in directory.rglob("*") if path.is_file() and path.name != MANIFEST
    )
    digests = {}
    for path in files[share::shares]:
        name = path.relative_to(directory).as_posix()
        digests[name] = (path.stat().st_size, file_digest(path))
    return digests


def write_manifest(directory: Path, digests: dict[str, SizeAndDigest]) -> None:
    """Publishes the digests of all files as `manifest.json`."""
    write_json(directory / MANIFEST, {"files": dict(sorted(digests.items()))})


def torn(directory: Path, share: int = 0, shares: int = 1) -> str | None:
    """The first file of this share that is missing or differs from the manifest, or None."""
    try:
        files = read_json(directory / MANIFEST)["files"]
    except (OutriderError, KeyError, TypeError):
        return f"{MANIFEST} is missing or damaged"
    for name, (size, digest) in sorted(files.items())[share::shares]:
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
        if file_digest(path) != digest:
            return f"{name} has changed since it was written"
    return None
