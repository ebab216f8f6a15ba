"""Atomic publication and digests: what a stage leaves behind is whole, or is not there.

with publish(path) as temporary: temporary.write_bytes(...)
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError


@contextlib.contextmanager
def publish(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path` for a file or a directory; on success syncs it and renames it into place.

    On failure the temporary is removed and whatever stood at `path` stays. A directory that already stands at `path` is
    replaced. A full disk is an `OutriderError` that names the path.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    _remove(temporary)
    try:
        yield temporary
        _sync(temporary)
        if path.is_dir():
            retired = path.with_name(f".{path.name}.{os.getpid()}.old")
            _remove(retired)
            path.rename(retired)
            temporary.rename(path)
            _remove(retired)
        else:
            temporary.rename(path)
        _sync_one(path.parent)
    except Exception as error:
        if says_disk_is_full(error):
            raise OutriderError(
                f"{path}: no space left on the disk; free some and run the same command again"
            ) from error
        raise
    finally:
        _remove(temporary)


def says_disk_is_full(error: Exception) -> bool:
    """Whether this is the system's word that no space is left. safetensors reports it in its text alone."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "errno", None) in full or any(
        f"os error {code})" in str(error) for code in full
    )


def write_json(path: Path, value: Any, private: bool = False) -> None:
    """Publishes `value` as indented JSON; `private` for what only the owner may read, from its first byte on."""
    with publish(path) as temporary:
        temporary.touch(mode=0o600 if private else 0o666)
        temporary.write_text(
            json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
            encoding="utf-8",
        )


def read_json(path: Path) -> Any:
    """Reads a JSON file; a missing or broken one is an `OutriderError` that names it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OutriderError(f"{path}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise OutriderError(f"{path}: not valid JSON ({error})") from None


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def value_digest(value: Any) -> str:
    """SHA-256 of a value's canonical JSON, in hexadecimal."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, ensure_ascii=False).encode()
    ).hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    if path.is_dir():
        for child in path.iterdir():
            _sync(child)
    _sync_one(path)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
