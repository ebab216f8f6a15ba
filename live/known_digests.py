"""SHA-256 of files, read once by this process while they do not change.

    known_file_digest(Path("releases/4f1d0c2a9b77/bundle/model.safetensors"))

A deployment checks the same release several times, and R1's speculator is 11.6 GB. A file counts as
unchanged while its inode, size, modification time and change time are the same, wherever its folder
is moved. The change time cannot be set by a program, so a file that was rewritten with its old
modification time is read again. Replicas read the files of a release themselves before they load
them.
"""

import time
from pathlib import Path

from outrider.common.fingerprint import file_digest

TICK_NS = 50_000_000
"""Resolution of file times, with a margin: Linux sets them at timer ticks of 1 to 10 ms."""

_known: dict[tuple[int, ...], str] = {}


def known_file_digest(path: Path) -> str:
    """Returns a file's SHA-256; reads the file unless it is unchanged since the last call."""
    identity = _identity(path)
    if identity in _known:
        return _known[identity]
    digest = file_digest(path)
    changed_at = identity[-1]
    # A change in the tick of the last one is not visible in the times: small files are read again.
    if _identity(path) == identity and time.time_ns() - changed_at > TICK_NS:
        _known[identity] = digest
    return digest


def _identity(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
