"""Compression, archives and encodings, recognized by a file's first bytes.

    with open_decompressed(stored, "log.jsonl") as content:      # any of `CODECS`; UTF-16, -32
        head = content.peek(HEAD)
    members = unpack_archive(content, "tar", "log.tar.gz")

A gzip file whose end is missing is still being written, or was copied too early. What is before the
cut is read, and ends with `CUT_MARK`, which the row around the cut is rejected for. Damage of
another kind, and in other compressions, is an error.

Archives are unpacked into one temporary file without a name, in TMPDIR. The names of their members
are shown, and never used as paths.
"""

import bz2
import codecs
import functools
import gzip
import io
import json
import lzma
import os
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, BinaryIO

from outrider.common.errors import OutriderError

# Unlike fsspec's fallback `zstandard`, `zstd` reads all frames of a file and reports truncation.
if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

HEAD = 2**20
"""Bytes of a file's beginning that are looked at; also the size of a read."""

LAYERS = 3
"""Maximum number of compressions around each other: an upload may compress a file again."""

MOST_MEMBERS = 100_000
"""Maximum number of members of an archive."""

LARGEST_MEMBER = 4 * 10**9
"""Maximum unpacked size of a member in bytes."""

CODECS: tuple[tuple[re.Pattern[bytes], str, Callable[[Any], Any]], ...] = (
    (re.compile(rb"\x1f\x8b\x08"), "gzip", lambda stream: gzip.GzipFile(fileobj=stream)),
    # A skippable frame, which pzstd writes first, or a frame (RFC 8878, 3.1).
    (re.compile(rb"[\x50-\x5f]\x2a\x4d\x18|\x28\xb5\x2f\xfd"), "zstd", zstd.ZstdFile),
    (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), "bzip2", bz2.BZ2File),
    (re.compile(rb"\xfd7zXZ\x00"), "xz", lzma.LZMAFile),
    (re.compile(rb"\x78[\x01\x9c\xda]"), "zlib", lambda stream: _Zlib(stream)),  # pigz -z, deflate
)
"""First bytes, name and reader of each compression."""

DENSEST = {
    **dict.fromkeys(("gzip", "zlib", "zip", "bzip2"), 250),
    **dict.fromkeys(("zstd", "xz", "table"), 5000),
}
"""Most unpacked bytes per stored byte. Logs of text have 4 to 12 in gzip. Where every request
repeats its conversation, they have 7 to 27 in gzip and bzip2, whose windows are short, and 360 to
1,240 in zstd and xz (measured). A file made for it has 1,030 in gzip, and more in the others. A
table has a system prompt once, in all rows."""

ANY_RATIO = 64 * 2**20
"""Unpacked bytes up to which a file may have any ratio."""

CUT_MARK = b"\x1aoutrider: this gzip file has no end"
"""Last bytes of the content of a gzip file that was cut. No JSON has the control character."""

DAMAGE = (gzip.BadGzipFile, zlib.error, zstd.ZstdError, lzma.LZMAError, EOFError)


class _Zlib:
    """A reader of a zlib stream (RFC 1950), for which Python has none."""

    def __init__(self, stored: IO[bytes]):
        self._stored = stored
        self._decompressor = zlib.decompressobj()

    def read(self, size: int) -> bytes:
        while not self._decompressor.eof:
            compressed = self._decompressor.unconsumed_tail or self._stored.read(2**16)
            if not compressed:
                raise EOFError("the stream has no end")
            content = self._decompressor.decompress(compressed, size)
            if content:
                return content
        return b""


class _Counted:
    """A stream that counts the bytes that a decompressor has read."""

    def __init__(self, stream: io.BufferedReader):
        self._stream = stream
        self.bytes = 0

    def read(self, size: int = -1) -> bytes:
        block = self._stream.read(size)
        self.bytes += len(block)
        return block


class _Stored(io.RawIOBase):
    """A stream over an open file that leaves it open, so that it can be read again."""

    def __init__(self, file: IO[bytes]):
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        block = self._file.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)


class _Blocks(io.RawIOBase):
    """A stream of whole blocks over `read`, so that `peek` returns as much as there is.

    If `read` finds no end, the stream ends with `mark`; without a mark, this is an error.
    """

    def __init__(
        self,
        read: Callable[[int], bytes],
        damaged: Callable[[Exception], Exception],
        mark: bytes = b"",
    ):
        self._read = read
        self._damaged = damaged
        self._mark = mark

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        filled = 0
        try:
            while filled < len(buffer):
                block = self._next(len(buffer) - filled)
                if not block:
                    break
                buffer[filled : filled + len(block)] = block
                filled += len(block)
        except DAMAGE as error:
            raise self._damaged(error) from error
        except OSError as error:
            # bz2 raises a plain OSError without a number; those of systems and stores have one.
            if type(error) is not OSError or error.errno is not None:
                raise
            raise self._damaged(error) from error
        return filled

    def _next(self, size: int) -> bytes:
        try:
            return self._read(size)
        except EOFError:
            if not self._mark:
                raise
            self._read = io.BytesIO(self._mark).read
            return self._read(size)


def open_decompressed(stored: IO[bytes], name: str, whole: bool = False) -> io.BufferedReader:
    """Returns the decompressed content, as UTF-8 if it is text in UTF-16 or UTF-32.

    With `whole`, a gzip file without its end is an error. Raises an `OutriderError` while it is
    read if it unpacks to more than `DENSEST`.
    """
    content = _buffered(_Stored(stored))
    packed = _Counted(content)
    for layer in range(LAYERS):
        codec = codec_of(content.peek(HEAD))
        if codec is None:
            break
        kind, decompress = codec
        stream = decompress(content if layer else packed)
        is_gzip = isinstance(stream, gzip.GzipFile)
        # `read` would lose what it has read before a cut.
        read = stream.read1 if is_gzip else stream.read
        content = _stream(
            _bounded(read, packed=packed, most=DENSEST[kind], name=name),
            f"{name}: damaged or truncated {kind}",
            CUT_MARK if is_gzip and not whole else b"",
        )
    encoding = encoding_of(content.peek(HEAD))
    if encoding == "utf-8":
        return content
    return _stream(_transcoder(content, encoding), f"{name}: damaged {encoding}")


def _bounded(
    read: Callable[[int], bytes], *, packed: _Counted, most: int, name: str
) -> Callable[[int], bytes]:
    """Returns a `read` that ends in an `OutriderError` above `most` times the stored bytes."""
    size = 0

    def read_bounded(wanted: int) -> bytes:
        nonlocal size
        block = read(wanted)
        size += len(block)
        check_ratio(name, stored=packed.bytes, size=size, most=most)
        return block

    return read_bounded


def check_ratio(name: str, *, stored: int, size: int, most: int) -> None:
    """Raises an `OutriderError` above `most` unpacked bytes per stored byte."""
    if size > ANY_RATIO and size > most * stored:
        raise OutriderError(
            f"{name}: {stored:,} bytes of it unpack to {size:,} or more, above {most} times as"
            " many, which no log of text does; leave out the file, or give it unpacked (a table: as"
            " JSON lines)"
        )


def _stream(read: Callable[[int], bytes], problem: str, mark: bytes = b"") -> io.BufferedReader:
    def damaged(error: Exception) -> OutriderError:
        return OutriderError(
            f"{problem} ({error}); copy it again, or unpack what is readable and name that file in"
            " traffic.path"
        )

    return _buffered(_Blocks(read, damaged, mark))


def _buffered(stream: io.RawIOBase) -> io.BufferedReader:
    return io.BufferedReader(stream, HEAD)


def codec_of(head: bytes) -> tuple[str, Callable[[Any], Any]] | None:
    """Returns name and reader of the compression of a file that begins with `head`."""
    for magic, kind, decompress in CODECS:
        if magic.match(head):
            return kind, decompress
    return None


def encoding_of(head: bytes) -> str:
    """Returns the encoding of text that begins with `head`: UTF-8, -16 or -32.

    Without a byte order mark, only JSON is recognized, by the zeros next to its first bracket.
    """
    has_mark = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE))
    encoding = json.detect_encoding(head[:4]) if head else "utf-8"
    if encoding.startswith("utf-8"):
        return "utf-8"
    is_json = head[:4].replace(b"\0", b"")[:1] in (b"{", b"[")
    return encoding if has_mark or is_json else "utf-8"


def _transcoder(content: BinaryIO, encoding: str) -> Callable[[int], bytes]:
    """Returns a function that reads UTF-8; lone surrogates are kept, and rejected by row."""
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    left = bytearray()

    def read(size: int) -> bytes:
        while len(left) < size:
            block = content.read(HEAD)
            try:
                left.extend(decoder.decode(block, final=not block).encode("utf-8", "surrogatepass"))
            except UnicodeDecodeError:  # half a character at the end of a file that was cut
                break
            if not block:
                break
        piece = bytes(left[:size])
        del left[:size]
        return piece

    return read


@dataclass(frozen=True)
class ArchiveMember:
    """A file of an archive, as a range of a temporary file."""

    name: str
    spool: IO[bytes]
    start: int
    size: int

    def open(self) -> BinaryIO:
        """Opens the member; several may be read at the same time."""
        return io.BufferedReader(_Range(self), HEAD)


DOCUMENTS = {
    "an Excel spreadsheet": {"[Content_Types].xml", "xl/workbook.xml"},  # ECMA-376, part 2
    "a Word document": {"[Content_Types].xml", "word/document.xml"},
    "a PowerPoint presentation": {"[Content_Types].xml", "ppt/presentation.xml"},
    "an archive of Fiddler": {"[Content_Types].xml", "_index.htm"},
    "another document of Office": {"[Content_Types].xml"},
    "an OpenDocument file": {"mimetype", "content.xml"},  # OpenDocument 1.3, part 2
}
"""Members of documents, which are no archives of logs, by what they are."""


PYTORCH = "a PyTorch file, of weights or hidden states"


def document_of(members: Iterable[str]) -> str | None:
    """Returns what a zip with these members is, if it is a document."""
    names = set(members)
    if any(name.endswith("/data.pkl") for name in names):
        return PYTORCH
    return next((what for what, parts in DOCUMENTS.items() if parts <= names), None)


class _Range(io.RawIOBase):
    def __init__(self, member: ArchiveMember):
        self._member = member
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._member.size}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), max(self._member.size - self._at, 0))
        block = os.pread(self._member.spool.fileno(), size, self._member.start + self._at)
        buffer[: len(block)] = block
        self._at += len(block)
        return len(block)


DATABASES = ("sqlite", "pg_dump")
"""Kinds of archives whose members are tables (databases.py)."""

_PG_DUMP = re.compile(rb"(?:--\s+)?-- PostgreSQL database dump\s")
"""How a script of pg_dump begins."""


def archive_of(head: bytes) -> str | None:
    """Returns `tar`, `zip` or one of `DATABASES` if a file that begins with `head` is one."""
    if head.startswith(b"SQLite format 3\0"):
        return "sqlite"
    if _PG_DUMP.match(head):
        return "pg_dump"
    if head[257:262] == b"ustar":
        return "tar"
    return "zip" if head.startswith((b"PK\x03\x04", b"PK\x05\x06")) else None


def unpack_archive(content: BinaryIO, kind: str, name: str) -> list[ArchiveMember]:
    """Unpacks an archive's regular files into a temporary file."""
    spool = tempfile.TemporaryFile()  # noqa: SIM115 (the members are read from it)
    members: list[ArchiveMember] = []
    try:
        entries = _tar(content) if kind == "tar" else _zip(content, name)
        for member_name, size, unpack in entries:
            _check_limits(name, member_name, size, len(members))
            start = spool.tell()
            with unpack() as source:
                shutil.copyfileobj(source, spool, HEAD)
            members.append(ArchiveMember(member_name, spool, start, spool.tell() - start))
    except (tarfile.TarError, zipfile.BadZipFile, NotImplementedError, *DAMAGE) as error:
        raise OutriderError(
            f"{name}: damaged or truncated {kind} ({error}); copy it again"
        ) from None
    spool.flush()
    return members


def spool_file(content: BinaryIO, name: str) -> IO[bytes]:
    """Copies a decompressed file to a temporary one, which can be read at any place.

    Raises an `OutriderError` above `LARGEST_MEMBER` bytes: 4 MB of gzip can hold 4 GB.
    """
    spool = tempfile.TemporaryFile()  # noqa: SIM115 (the caller reads it)
    while block := content.read(HEAD):
        if spool.tell() + len(block) > LARGEST_MEMBER:
            spool.close()
            raise OutriderError(
                f"{name}: a table or archive that is compressed again and has more than"
                f" {LARGEST_MEMBER / 1e9:g} GB; unpack it and give the file as traffic.path"
            )
        spool.write(block)
    spool.seek(0)
    return spool


_Entry = tuple[str, int, Callable[[], Any]]


def _tar(content: BinaryIO) -> Iterator[_Entry]:
    with tarfile.open(fileobj=content, mode="r|") as archive:
        for entry in archive:
            if entry.isreg():
                yield entry.name, entry.size, functools.partial(archive.extractfile, entry)


def _zip(content: BinaryIO, name: str) -> Iterator[_Entry]:
    # Its table of contents is at the end.
    source: IO[bytes] = content if content.seekable() else spool_file(content, name)
    stored = source.seek(0, os.SEEK_END)
    size = 0
    with zipfile.ZipFile(source) as archive:
        for entry in archive.infolist():
            # Of the whole file: entries may share their stored bytes.
            size += entry.file_size
            check_ratio(name, stored=stored, size=size, most=DENSEST["zip"])
            if entry.flag_bits & 1:
                raise zipfile.BadZipFile("it is encrypted: unpack it with its password")
            if not entry.is_dir():
                yield entry.filename, entry.file_size, functools.partial(archive.open, entry)


def _check_limits(name: str, member_name: str, size: int, count: int) -> None:
    """Raises an `OutriderError` before an archive fills the disk."""
    advice = "unpack it and give the folder as traffic.path"
    if count >= MOST_MEMBERS:
        raise OutriderError(f"{name}: an archive of more than {MOST_MEMBERS:,} files; {advice}")
    if size > LARGEST_MEMBER:
        raise OutriderError(
            f"{name}: {member_name!r} has {size / 1e9:.1f} GB, above {LARGEST_MEMBER / 1e9:g} GB"
            f" for a file in an archive; {advice}"
        )
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if size > free:
        raise OutriderError(
            f"{name}: unpacking {member_name!r} takes {size / 1e9:.1f} GB, and {folder} has"
            f" {free / 1e9:.1f} GB; set TMPDIR to a folder on a larger disk"
        )
