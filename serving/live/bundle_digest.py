"""The digest of an export bundle: one SHA-256 for all files that bundle.json lists."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.common.fingerprint import file_digest, value_digest

MANIFEST = "bundle.json"
_SHA256 = re.compile(r"[0-9a-f]{64}")


def bundle_digest(directory: Path) -> str:
    """SHA-256 over the sorted (name, SHA-256) pairs of bundle.json, after checking the files.

    bundle.json itself has no part in it: the same speculator with other evidence has the same
    digest. An `OutriderError` names a file that is missing or differs.
    """
    directory = Path(directory)
    files = listed_files(read_json(directory / MANIFEST), directory)
    for name, digest in files.items():
        path = directory / name
        if not path.is_file() or file_digest(path) != digest:
            raise OutriderError(
                f"{path}: missing, or changed since {MANIFEST} was written; export again"
            )
    return digest_of(files)


def digest_of(files: Mapping[str, str]) -> str:
    """The digest of {file name: SHA-256}."""
    return value_digest(sorted([name, digest] for name, digest in files.items()))


def listed_files(manifest: Any, directory: Path) -> dict[str, str]:
    """{file name: SHA-256} of bundle.json; an `OutriderError` for names outside of the bundle."""
    files = manifest.get("files") if isinstance(manifest, dict) else None
    path = directory / MANIFEST
    if not isinstance(files, dict) or not files:
        raise OutriderError(f"{path}: files: expected the SHA-256 of each file; export again")
    for name, digest in files.items():
        parts = name.split("/")
        if name.startswith("/") or "\\" in name or not {"", ".", ".."}.isdisjoint(parts):
            raise OutriderError(f"{path}: files: {name!r} is not inside of the bundle")
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise OutriderError(f"{path}: files: {name}: {digest!r} is not a SHA-256")
    return dict(files)
