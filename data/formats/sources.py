"""Log sources: files, folders, globs and fsspec URLs, plain or compressed.

A `LogFile` of lines is read in constant memory. It counts its rows, so that the ingest can check
that none is lost.

    from outrider.data.formats.sources import log_files
    log_files("s3://bucket/logs/2026-07-*.jsonl.gz")
"""

import contextlib
import gzip
import os
import re
import socket
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from outrider.common.errors import OutriderError
from outrider.common.fingerprint import store_identity
from outrider.common.redaction import without_credentials

# Unlike fsspec's fallback `zstandard`, `zstd` reads all frames of a file and reports truncation.
if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SUFFIXES = (".jsonl", ".ndjson", ".json", ".log", ".parquet", ".arrow")
"""Suffixes of the files that are read from a folder, compressed or not. A file that is named
directly or matched by a glob is read regardless of its suffix."""

DATA_SET_FILES = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""Files that `datasets` writes next to its tables; they have no rows."""

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}

LONGEST_LINE = 64 * 2**20
"""Maximum size of a row in bytes; longer rows are rejected. The longest R1 exchange, with its token
ids, is 40 times smaller."""

CHUNK = 2**20
"""Bytes read at a time."""

CLIENTS = frozenset(
    {"httpx", "httpx2", "requests", "aiohttp", "botocore", "gcsfs", "google", "azure"}
)
"""Packages whose exceptions huggingface_hub, fsspec's http, s3fs, gcsfs and adlfs raise."""


@contextlib.contextmanager
def answering(what: str) -> Iterator[None]:
    """Raises an `OutriderError` if a store does not answer or denies access.

    The error message begins with `what`.
    """
    try:
        yield
    except Exception as error:
        refused = (ConnectionError, TimeoutError, socket.gaierror, PermissionError)
        if not (isinstance(error, refused) or type(error).__module__.partition(".")[0] in CLIENTS):
            raise
        detail = f"{type(error).__name__}: {error}".rstrip(": ")
        raise OutriderError(
            f"{what}: access denied or no answer ({detail}); check the address, network,"
            " credentials and permissions and rerun the command, or use a local copy of the log"
        ) from None


@dataclass
class LogFile:
    """One file of a log."""

    name: str
    """Name in rejects and errors."""
    filesystem: AbstractFileSystem
    path: str
    """Path inside `filesystem`."""
    rows: int = 0
    """Number of rows read so far."""
    limit: int | None = None
    """Maximum number of rows to read, for a quick look."""

    @contextlib.contextmanager
    def stored(self) -> Iterator[IO[bytes]]:
        """Opens the file as stored, for formats that seek in it (Parquet)."""
        with answering(f"traffic.path: {self.name}"):
            with self._present():
                file = self.filesystem.open(self.path, "rb")
            with file:
                yield file

    @contextlib.contextmanager
    def open(self) -> Iterator[Any]:
        """Opens the file's decompressed content."""
        suffix = PurePosixPath(self.path).suffix
        with self.stored() as stored:
            if suffix not in COMPRESSIONS:
                yield stored
                return
            try:
                yield gzip.GzipFile(fileobj=stored) if suffix == ".gz" else zstd.ZstdFile(stored)
            except (gzip.BadGzipFile, zlib.error, zstd.ZstdError, EOFError) as error:
                kind = COMPRESSIONS[suffix]
                raise OutriderError(
                    f"{self.name}: damaged or truncated {kind} ({error}); copy it again, or unpack "
                    "what is readable and name that file in traffic.path"
                ) from error

    def lines(self) -> Iterator[tuple[int, bytes | None]]:
        """Yields non-blank lines, numbered; None replaces lines longer than `LONGEST_LINE`."""
        with self.open() as file:
            for number, line in enumerate(_lines(file), start=1):
                if line is None or line.strip():
                    if self.is_read_enough():
                        return
                    self.rows += 1
                    yield number, line

    def is_read_enough(self) -> bool:
        """Whether the maximum number of rows has been read."""
        return self.limit is not None and self.rows >= self.limit

    def head(self) -> bytes:
        """Returns the first 64 KiB, decompressed, without counting rows as read."""
        with self.open() as file:
            return file.read(2**16)

    def size(self) -> int:
        """Returns the stored size in bytes; 0 if the filesystem reports none."""
        with answering(f"traffic.path: {self.name}"), self._present():
            return self.filesystem.size(self.path) or 0

    def identity(self) -> list[str]:
        """Returns values that change with the content, if the store reports any."""
        with answering(f"traffic.path: {self.name}"), self._present():
            info = self.filesystem.info(self.path)
        return [self.name, *store_identity(info)]

    @contextlib.contextmanager
    def _present(self) -> Iterator[None]:
        """Raises an `OutriderError` if the file is gone, as after a log rotation."""
        try:
            yield
        except FileNotFoundError:
            raise OutriderError(
                f"traffic.path: {self.name}: removed or renamed while the log was read; rerun the"
                " command, on a copy if files are rotated often"
            ) from None


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Yields all lines, including blank ones, without a byte order mark.

    None replaces a line longer than `LONGEST_LINE`; such a line is never held whole in memory.
    """
    is_first = True
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE and not line.endswith(b"\n"):
            while (rest := file.readline(CHUNK)) and not rest.endswith(b"\n"):
                pass
            yield None
        else:
            line = line.removesuffix(b"\n")
            yield line.removeprefix(b"\xef\xbb\xbf") if is_first else line
        is_first = False


def log_files(path: str | list[str], not_read: list[str] | None = None) -> list[LogFile]:
    """Returns the distinct files of `traffic.path`, sorted by name within each entry.

    A file and links to it are one. Entries of folders that cannot be read are added to `not_read`,
    each with the reason.
    """
    entries = [path] if isinstance(path, str) else path
    not_read = [] if not_read is None else not_read
    distinct: dict[tuple[AbstractFileSystem, str], LogFile] = {}
    for entry in entries:
        for file in _files_of(entry, not_read):
            is_local = isinstance(file.filesystem, LocalFileSystem)
            target = os.path.realpath(file.path) if is_local else file.path
            distinct.setdefault((file.filesystem, target), file)
    return list(distinct.values())


def _files_of(entry: str, not_read: list[str]) -> list[LogFile]:
    what = f"traffic.path = {entry!r}"
    of_entry: list[str] = []
    try:
        with answering(what):
            filesystem, root = url_to_fs(entry)
            paths = _paths(filesystem, root, of_entry)
    except (ImportError, OSError, ValueError) as error:
        # No client is installed, the store refuses access, or the protocol or name is invalid.
        raise OutriderError(f"{what}: {error}") from error
    not_read += of_entry
    if not paths and of_entry:
        raise OutriderError(f"{what}: nothing can be read: {', '.join(of_entry)}")
    if not paths:
        endings = f"{', '.join(SUFFIXES)} or one of these with {' or '.join(COMPRESSIONS)}"
        raise OutriderError(
            f"{what}: no such file or folder, or a folder without files that end in {endings}; a"
            " Hugging Face data set is hf://datasets/OWNER/NAME (a private one needs HF_TOKEN)"
        )
    return [
        LogFile(
            without_credentials(filesystem.unstrip_protocol(path).removeprefix("file://")),
            filesystem,
            path,
        )
        for path in sorted(paths)
    ]


def _paths(filesystem: AbstractFileSystem, root: str, not_read: list[str]) -> list[str]:
    """Returns the paths of log files, given a folder, glob or file."""
    is_local = isinstance(filesystem, LocalFileSystem)
    if not filesystem.isdir(root):
        # `lexists` is true for a link without a target.
        exists = os.path.lexists(root) if is_local else filesystem.exists(root)
        paths = [root] if exists else filesystem.glob(root)
        paths = [path for path in paths if not filesystem.isdir(path)]
        return _regular(paths, not_read) if is_local else paths
    names = _below(root, not_read) if is_local else filesystem.find(root)
    unpacked = {path: unpacked_name(path) for path in names}
    paths = [path for path, name in unpacked.items() if name.endswith(SUFFIXES) and name[0] != "."]
    if any(path.endswith((".arrow", ".parquet")) for path in paths):
        paths = [path for path in paths if PurePosixPath(path).name not in DATA_SET_FILES]
    return _regular(paths, not_read) if is_local else paths


def _below(root: str, not_read: list[str]) -> list[str]:
    """Returns what is in a local folder at any depth; links to folders are not followed."""

    def refused(error: OSError) -> None:
        not_read.append(f"{error.filename} ({error.strerror})")

    paths: list[str] = []
    for folder, folders, names in os.walk(root, onerror=refused):
        paths += [str(Path(folder, name)) for name in names]
        inner = (Path(folder, name) for name in folders)
        not_read += [f"{path} (a link to a folder)" for path in inner if path.is_symlink()]
    return paths


def _regular(paths: list[str], not_read: list[str]) -> list[str]:
    """Returns the regular files; reading another, such as a named pipe, might never end."""
    irregular = [path for path in map(Path, paths) if not path.is_file()]
    for path in irregular:
        is_dangling = path.is_symlink() and not path.exists()
        what = "a link to nothing" if is_dangling else "not a regular file"
        not_read.append(f"{path} ({what})")
    return [path for path in paths if Path(path) not in irregular]


def unpacked_name(path: str) -> str:
    """Returns a file's name without its folder and compression suffix."""
    return re.sub(r"\.(gz|zst)$", "", PurePosixPath(path).name)
