"""Log sources: files, folders, globs and fsspec URLs, in any compression (packing.py).

A `LogFile` of lines is read in constant memory. It counts its rows, so that the ingest can check
that none is lost. A file is opened twice: to recognize its format, and to read it; files of remote
stores are opened ahead by threads.

    from outrider.data.files.sources import log_files
    log_files("s3://bucket/logs/2026-07-*.jsonl.gz")
"""

import contextlib
import os
import re
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, TypeVar

from fsspec import AbstractFileSystem
from fsspec.config import conf as fsspec_config
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from outrider.common.errors import OutriderError
from outrider.common.fingerprint import store_identity
from outrider.common.redaction import without_credentials
from outrider.data.files.container_lines import join_container_lines
from outrider.data.files.databases import tables_of
from outrider.data.files.packing import DATABASES, ArchiveMember, open_decompressed, unpack_archive
from outrider.data.files.table_versions import without_former

LONGEST_LINE = 64 * 2**20
"""Maximum size of a row in bytes; longer rows are rejected. The longest R1 exchange, with its token
ids, is 40 times smaller."""

CHUNK = 2**20
"""Bytes read at a time."""

OPENED_AHEAD = 32
"""Remote files that are opened at the same time. At 30 ms a request, 100,000 small files then take
two minutes, instead of an hour."""

BLOCK = 2**20
"""Bytes that a remote file is read at a time; fsspec's default of 5 MiB would be held
`OPENED_AHEAD` times."""

SHOWN = 10
"""Maximum number of files that are listed by name as not read."""

CLIENTS = frozenset(
    {"httpx", "httpx2", "requests", "aiohttp", "botocore", "gcsfs", "google", "azure"}
)
"""Packages whose exceptions huggingface_hub, fsspec's http, s3fs, gcsfs and adlfs raise."""


@contextlib.contextmanager
def storage_errors(what: str) -> Iterator[None]:
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
    """One file of a log, possibly a member of an archive."""

    name: str
    """Name in rejects and errors."""
    filesystem: AbstractFileSystem
    path: str
    """Path inside `filesystem`; of a member, that of its archive."""
    rows: int = 0
    """Number of rows read so far."""
    limit: int | None = None
    """Maximum number of rows to read, for a quick look."""
    info: dict[str, Any] | None = None
    """What a remote store's listing reported, so that it is not requested again."""
    member: ArchiveMember | None = None
    unknown: tuple[str, ...] = ()
    """What a file is that no format recognizes, and what to do."""
    is_binary: bool = False
    """Whether such a file has no rows, since it is not text."""
    names: tuple[str, ...] = ()
    """Paths of the first row's short values, any of which may be an id or a time."""
    _opening: Future[IO[bytes]] | None = field(default=None, repr=False)
    _held: IO[bytes] | None = field(default=None, repr=False)

    @property
    def is_remote(self) -> bool:
        """Whether opening the file is a request to a store."""
        return self.member is None and not isinstance(self.filesystem, LocalFileSystem)

    def open_ahead(self, pool: ThreadPoolExecutor) -> None:
        """Begins to open a remote file and to read its first block."""
        if self.is_remote and self._opening is None:
            self._opening = pool.submit(self._opened)

    def _opened(self) -> IO[bytes]:
        if self.member:
            return self.member.open()
        if not self.is_remote:
            return self.filesystem.open(self.path, "rb")
        file = self.filesystem.open(self.path, "rb", block_size=BLOCK)
        file.read(1)  # fills the block
        file.seek(0)
        return file

    @contextlib.contextmanager
    def stored(self) -> Iterator[IO[bytes]]:
        """Opens the file as stored."""
        if self._held:
            self._held.seek(0)
            yield self._held
            return
        opening = self._opening
        self._opening = None
        with storage_errors(f"traffic.path: {self.name}"):
            with self._present():
                file = opening.result() if opening else self._opened()
            with file:
                yield file

    @contextlib.contextmanager
    def keep_open(self) -> Iterator[None]:
        """Keeps the file open, so that it can be read several times."""
        with self.stored() as self._held:
            try:
                yield
            finally:
                self._held = None

    @contextlib.contextmanager
    def open(self, whole: bool = False) -> Iterator[Any]:
        """Opens the file's decompressed content, a buffered stream
        (`packing.open_decompressed`)."""
        with self.stored() as stored:
            yield open_decompressed(stored, self.name, whole)

    def lines(self) -> Iterator[tuple[int, bytes | None]]:
        """Yields non-blank lines, numbered; None replaces lines longer than `LONGEST_LINE`."""
        with self.open() as content:
            yield from self.count_rows_read(lines_of(content, self.name))

    def count_rows_read(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Yields rows up to the limit and counts them as read."""
        for row in rows:
            if self.is_read_enough():
                return
            self.rows += 1
            yield row

    def is_read_enough(self) -> bool:
        """Whether the maximum number of rows has been read."""
        return self.limit is not None and self.rows >= self.limit

    def size(self) -> int:
        """Returns the stored size in bytes; 0 if the filesystem reports none."""
        return self.member.size if self.member else self._info().get("size") or 0

    def identity(self) -> list[str]:
        """Returns values that change with the content, if the store reports any."""
        return [self.name, *store_identity(self._info())]

    def _info(self) -> dict[str, Any]:
        if self.info is not None:
            return self.info
        with storage_errors(f"traffic.path: {self.name}"), self._present():
            return self.filesystem.info(self.path)

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


def members_of(file: LogFile, kind: str) -> list[LogFile]:
    """Unpacks an archive; returns its files, or none if it is inside another archive."""
    if file.member:
        return []
    with file.open(whole=True) as content:
        unpack = tables_of if kind in DATABASES else unpack_archive
        members = unpack(content, kind, file.name)
    names: Counter[str] = Counter()
    files = []
    for member in members:
        names[member.name] += 1  # tar may have several files of the same name
        version = f" ({names[member.name]})" if names[member.name] > 1 else ""
        name = f"{file.name}:{member.name}{version}"
        files.append(replace(file, name=name, member=member, rows=0))
    return files


def read_ahead(files: Iterable[LogFile]) -> Iterator[LogFile]:
    """Yields the files in order; remote ones are opened ahead, several at the same time."""
    waiting: deque[LogFile] = deque()
    with ThreadPoolExecutor(OPENED_AHEAD) as pool:
        for file in files:
            file.open_ahead(pool)
            waiting.append(file)
            if len(waiting) > OPENED_AHEAD:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()


T = TypeVar("T")


def lines_of(content: BinaryIO, name: str) -> Iterator[tuple[int, bytes | None]]:
    """Yields the non-blank lines of a stream, numbered, without a log driver's wrapping."""
    numbered = enumerate(_lines(content), start=1)
    filled = without_blanks(numbered, lambda line: line is None or bool(line.strip(BLANK)), name)
    return join_container_lines(filled, LONGEST_LINE)


def without_blanks(
    numbered: Iterable[tuple[int, T]], is_filled: Callable[[T], bool], name: str
) -> Iterator[tuple[int, T]]:
    """Yields the rows that are not blank; raises an `OutriderError` if most are."""
    rows = 0
    for number, row in numbered:
        if is_filled(row):
            rows += 1
            yield number, row
        elif number - rows > MOST_BLANK + BLANK_PER_ROW * rows:
            raise OutriderError(
                f"{name}: {number - rows:,} of the first {number:,} lines are blank; remove blank"
                " lines, for example with `sed '/^$/d'`, or leave out the file"
            )


MOST_BLANK, BLANK_PER_ROW = 2**20, 10
"""Blank lines of a file, and for each row. 100 kB of gzip can hold 100 million, which take three
minutes to skip."""

BEFORE_LINES = b"\0\x1e"
"""Zeros of `copytruncate`, and the separator of records in JSON text sequences (RFC 7464), which
journald writes with `-o json-seq`."""

BLANK = b" \t\r\n\v\f\0"
"""White space, and the zeros that logrotate's `copytruncate` leaves before the next line."""


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Yields all lines, including blank ones, without a byte order mark.

    None replaces a line longer than `LONGEST_LINE`; such a line is never held whole in memory.
    """
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE and not line.endswith(b"\n"):
            while (rest := file.readline(CHUNK)) and not rest.endswith(b"\n"):
                pass
            yield None
        else:
            # A mark is also at the joint of files that were concatenated.
            line = line.removesuffix(b"\n").removeprefix(b"\xef\xbb\xbf")
            yield line.lstrip(BEFORE_LINES) if line[:1] in BEFORE_LINES else line


def log_files(path: str | list[str], not_read: list[str] | None = None) -> list[LogFile]:
    """Returns the distinct files of `traffic.path`, sorted by name within each entry.

    A file and links to it are one. What cannot be read is added to `not_read`, with the reason.
    """
    entries = [path] if isinstance(path, str) else path
    not_read = [] if not_read is None else not_read
    distinct: dict[tuple[AbstractFileSystem, str], LogFile] = {}
    for entry in entries:
        for file in _files_of(entry, not_read):
            target = file.path if file.is_remote else os.path.realpath(file.path)
            distinct.setdefault((file.filesystem, target), file)
    return list(distinct.values())


def _files_of(entry: str, not_read: list[str]) -> list[LogFile]:
    what = f"traffic.path = {entry!r}"
    of_entry: list[str] = []
    try:
        with storage_errors(what):
            filesystem, root = url_to_fs(entry, **_client_options(entry))
            infos = _listed(filesystem, root, of_entry)
            current = without_former(filesystem, list(infos), of_entry)
    except (ImportError, OSError, ValueError) as error:
        # No client is installed, the store refuses access, or the protocol or name is invalid.
        raise OutriderError(f"{what}: {error}") from error
    not_read += of_entry
    if not current and of_entry:
        raise OutriderError(f"{what}: nothing can be read: {', '.join(of_entry)}")
    if not current:
        raise OutriderError(
            f"{what}: no such file or folder, or an empty folder; a Hugging Face data set is"
            " hf://datasets/OWNER/NAME (a private one needs HF_TOKEN)"
        )
    return [
        LogFile(
            without_credentials(filesystem.unstrip_protocol(path).removeprefix("file://")),
            filesystem,
            path,
            info=infos[path],
        )
        for path in sorted(current, key=rotation_order)
    ]


def _client_options(url: str) -> dict[str, Any]:
    """Options of the store's client that `OPENED_AHEAD` needs, besides those that a user has set.

    s3fs sends requests through botocore, which keeps 10 connections unless told otherwise.
    """
    if not url.startswith(("s3://", "s3a://")):
        return {}
    configured = fsspec_config.get("s3", {}).get("config_kwargs", {})
    return {"config_kwargs": {"max_pool_connections": OPENED_AHEAD, **configured}}


_ROTATED = re.compile(
    r"(.+?)(?:\.(\d{1,4})|[.-](\d{8}(?:[-.T]?\d{2,10})?))(?:\.(?:gz|zst|bz2|xz|zip))?"
)
"""A rotated file: Python's and logrotate's numbers, `dateext` and the kubelet's times."""


def rotation_order(path: str) -> tuple[str, bool, int, str]:
    """Returns a sort key that puts the files of a log rotation in order of time.

    The current file is the last. Numbers count backwards, dates forwards: `log.2`, `log.1`, `log`;
    `log-20260630`, `log-20260701`, `log`.
    """
    match = _ROTATED.fullmatch(path)
    if match is None:
        return (path, True, 0, "")
    base, number, date = match.groups()
    return (base, False, -int(number or 0), date or "")


def _listed(
    filesystem: AbstractFileSystem, root: str, not_read: list[str]
) -> dict[str, dict[str, Any] | None]:
    """Returns the files of a folder, glob or path, with what a remote store reports of them."""
    if isinstance(filesystem, LocalFileSystem):
        paths = _below(root, not_read) if filesystem.isdir(root) else _local(filesystem, root)
        return dict.fromkeys(_regular(paths, not_read))
    if filesystem.isdir(root):
        below = filesystem.find(root, detail=True)
    else:
        exists = filesystem.exists(root)
        matches = {root: filesystem.info(root)} if exists else filesystem.glob(root, detail=True)
        return {path: info for path, info in matches.items() if info["type"] != "directory"}
    hidden = [path for path in below if _is_hidden(path.removeprefix(root))]
    not_read += [f"{path} (hidden)" for path in hidden]
    return {path: below[path] for path in below.keys() - set(hidden)}


UNCOMMITTED = "_temporary"
"""Folder in which Spark and Hadoop write files that are moved once they are complete."""


def _is_hidden(path: str) -> bool:
    return any(map(_is_hidden_name, PurePosixPath(path).parts))


def _is_hidden_name(name: str) -> bool:
    return name.startswith(".") or name == UNCOMMITTED


def _local(filesystem: AbstractFileSystem, root: str) -> list[str]:
    """Returns a file, or the matches of a glob."""
    # `lexists` is true for a link without a target.
    paths = [root] if os.path.lexists(root) else filesystem.glob(root)
    return [path for path in paths if not filesystem.isdir(path)]


def _below(root: str, not_read: list[str]) -> list[str]:
    """Returns what is in a local folder at any depth; links to folders are not followed."""

    def refused(error: OSError) -> None:
        not_read.append(f"{error.filename} ({error.strerror})")

    paths: list[str] = []
    for folder, folders, names in os.walk(root, onerror=refused):
        hidden = set(filter(_is_hidden_name, (*names, *folders)))
        not_read += [f"{Path(folder, name)} (hidden)" for name in sorted(hidden)]
        folders[:] = [name for name in folders if name not in hidden]
        inner = [Path(folder, name) for name in folders]
        not_read += [f"{path} (a link to a folder)" for path in inner if path.is_symlink()]
        paths += [str(Path(folder, name)) for name in names if name not in hidden]
    return paths


def _regular(paths: list[str], not_read: list[str]) -> list[str]:
    """Returns the regular files; reading another, such as a named pipe, might never end."""
    irregular = [path for path in map(Path, paths) if not path.is_file()]
    for path in irregular:
        is_dangling = path.is_symlink() and not path.exists()
        what = "a link to nothing" if is_dangling else "not a regular file"
        not_read.append(f"{path} ({what})")
    excluded = set(map(str, irregular))
    return [path for path in paths if path not in excluded]


def summary_of(not_read: list[str]) -> str:
    """Returns in one line how many files were not read, of which kinds, and the first with why."""
    names = [entry.partition(" (")[0] for entry in not_read]
    suffixes = Counter(PurePosixPath(name).suffix or "without suffix" for name in names)
    kinds = ", ".join(f"{suffix} {count}" for suffix, count in suffixes.most_common(SHOWN))
    listed = ", ".join(not_read[:SHOWN])
    more = f", and {len(not_read) - SHOWN} more" if len(not_read) > SHOWN else ""
    plural = "file" if len(not_read) == 1 else "files"
    return f"{len(not_read)} {plural} not read: {kinds}: {listed}{more}"
