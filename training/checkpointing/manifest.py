"""A manifest of a directory's files, to tell a whole one from a torn one: sizes and SHA-256, computed in shares.

    digests = file_digests(directory, share=rank, shares=world)      # in every process; together they cover every file
    write_manifest(directory, digests_of_all)
    problem = torn(directory, share=rank, shares=world)              # None: this share is whole

A rename is atomic, the blocks behind it are not: after a power cut or on a network disk a renamed directory can hold torn files.
"""

from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.common.fingerprint import file_digest

MANIFEST = "manifest.json"


def file_digests(directory: Path, share: int = 0, shares: int = 1) -> dict[str, list]:
    """[bytes, SHA-256] by relative path, of every `shares`-th file."""
    files = sorted(
        path for path in directory.rglob("*") if path.is_file() and path.name != MANIFEST
    )
    return {
        path.relative_to(directory).as_posix(): [path.stat().st_size, file_digest(path)]
        for path in files[share::shares]
    }


def write_manifest(directory: Path, digests: dict[str, list]) -> None:
    """Seals the directory."""
    write_json(directory / MANIFEST, {"files": dict(sorted(digests.items()))})


def torn(directory: Path, share: int = 0, shares: int = 1) -> str | None:
    """What differs from the manifest in this share of its files: the first missing or changed one. None: nothing."""
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
