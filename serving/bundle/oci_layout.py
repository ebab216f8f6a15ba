"""Bundles in OCI image layouts, folders in which container tools keep images.

    read_oci_layout("oci:images/resume:march", directory)

The image has the bundle's files below /models, as in KServe's modelcars and Kubernetes' image
volumes; docs/how-to/export.md has the two lines that build it. Sources: OCI Image Format
Specification 1.1 (image-layout, manifest, layer) and, for Docker's names of the same types, the
image manifest version 2, schema 2.
"""

import contextlib
import gzip
import hashlib
import io
import json
import re
import shutil
import sys
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.serving.bundle.bundle_digest import FILES_LIMIT, MANIFEST_LIMIT

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ROOT = "models"
"""Folder in the image that holds the files."""

REF_NAME = "org.opencontainers.image.ref.name"

Compression = Literal["none", "gzip", "zstd"]

LAYER_TYPES: dict[str, Compression] = {
    "application/vnd.oci.image.layer.v1.tar": "none",
    "application/vnd.oci.image.layer.v1.tar+gzip": "gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd": "zstd",
    "application/vnd.docker.image.rootfs.diff.tar": "none",
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "gzip",
}
"""Media types of layers. BuildKit and buildah compress by default, also weights."""

GROWTH = 20
SPARE_BYTES = 2**26
"""A layer may expand to GROWTH times its size plus SPARE_BYTES, so that a small file cannot fill
memory or disk. gzip saves about a quarter of bf16 weights and nine tenths of JSON, but shrinks
zeros a thousandfold."""

DAMAGED = (EOFError, tarfile.TarError, zlib.error, zstd.ZstdError)
"""Errors of a damaged or truncated layer."""

_ADDRESS = re.compile(r"oci:(?!//)([^:]+)(?::([\w.-]+))?")


def _folder_and_tag(address: str) -> tuple[Path, str]:
    """Splits skopeo's `oci:FOLDER[:TAG]` into folder and tag (default: `latest`)."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise OutriderError(
            f"{address}: write oci:FOLDER:TAG, a layout on this machine; copy an image there with"
            " `skopeo copy docker://REGISTRY/NAME:TAG oci:FOLDER:TAG`"
        )
    return Path(match[1]), match[2] or "latest"


def read_oci_layout(address: str, directory: Path) -> None:
    """Extracts an image's /models to `directory` and checks every digest.

    Raises an `OutriderError` for members other than folders and regular files below /models, for
    too many members, and for a layer that expands too much. `check_files` later checks the
    extracted files against bundle.json.
    """
    folder, tag = _folder_and_tag(address)
    if not (folder / "index.json").is_file():
        raise OutriderError(f"{address}: {folder} is not an OCI image layout (no index.json)")
    try:
        entries = read_json(folder / "index.json").get("manifests", [])
        tagged = [entry for entry in entries if _tag(entry) == tag]
        if not tagged:
            tags = ", ".join(sorted(map(str, map(_tag, entries))))
            raise OutriderError(f"{address}: no image {tag!r}; the layout has {tags}")
        manifest = _read_json(folder, tagged[0], address)
        if "manifests" in manifest:  # an index of one image per platform, all with the same files
            manifest = _read_json(folder, manifest["manifests"][0], address)
        _extract_layers(folder, manifest["layers"], directory, address)
    except (
        LookupError,
        TypeError,
        AttributeError,
        ValueError,
        RecursionError,
        OSError,
        *DAMAGED,
    ) as error:
        raise OutriderError(f"{address}: {error!r:.500}; copy the layout again") from None


def _extract_layers(
    folder: Path, layers: Sequence[dict[str, Any]], directory: Path, address: str
) -> None:
    count = 0
    for layer in layers:
        with _open_layer(folder, layer, address) as tar:
            for member in tar:
                count += 1
                if count > 2 * FILES_LIMIT:
                    raise OutriderError(f"{address}: more than {count - 1} files and folders")
                if not member.isdir():
                    _extract(tar, member, directory, address)


@contextlib.contextmanager
def _open_layer(folder: Path, layer: dict[str, Any], address: str) -> Iterator[tarfile.TarFile]:
    """Opens a layer for one pass, after checking its digest."""
    media_type = str(layer["mediaType"])
    compression = LAYER_TYPES.get(media_type)
    if compression is None:
        raise OutriderError(
            f"{address}: layers of type {media_type!r:.100} are not read; build the image with"
            " `FROM scratch` and `COPY bundle /models`"
        )
    with _checked_blob(folder, layer, address) as blob:
        size = blob.seek(0, io.SEEK_END)
        blob.seek(0)
        bounded = _Bounded(_decompressed(blob, compression), GROWTH * size + SPARE_BYTES, address)
        with tarfile.open(fileobj=bounded, mode="r|") as tar:
            yield tar


def _decompressed(blob: IO[bytes], compression: Compression) -> IO[bytes]:
    if compression == "gzip":
        return gzip.GzipFile(fileobj=blob)  # type: ignore[return-value]
    if compression == "zstd":
        return zstd.ZstdFile(blob)  # type: ignore[return-value]
    return blob


class _Bounded(io.RawIOBase):
    """A stream that raises an `OutriderError` after `limit` bytes."""

    def __init__(self, stream: IO[bytes], limit: int, address: str) -> None:
        self._stream = stream
        self._left = limit
        self._address = address

    def read(self, size: int = -1, /) -> bytes:
        content = self._stream.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise OutriderError(
                f"{self._address}: a layer expands to more than {GROWTH} times its size; build the"
                " image again"
            )
        return content


def _tag(entry: Mapping[str, Any]) -> str | None:
    tag: str | None = (entry.get("annotations") or {}).get(REF_NAME)
    return tag


@contextlib.contextmanager
def _checked_blob(folder: Path, entry: dict[str, Any], address: str) -> Iterator[IO[bytes]]:
    """Opens a blob, checks its digest, and yields it rewound."""
    kind, _, digest = str(entry.get("digest")).partition(":")
    path = folder / "blobs" / "sha256" / digest
    if kind != "sha256" or not re.fullmatch(r"[0-9a-f]{64}", digest) or not path.is_file():
        raise OutriderError(f"{address}: blob {kind}:{digest} is missing; copy the layout again")
    with path.open("rb") as stream:
        # The file is opened only once, so the checked content is what the caller reads.
        if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
            raise OutriderError(f"{path}: differs from its digest; copy the layout again")
        stream.seek(0)
        yield stream


def _read_json(folder: Path, entry: dict[str, Any], address: str) -> dict[str, Any]:
    with _checked_blob(folder, entry, address) as stream:
        text = stream.read(MANIFEST_LIMIT + 1)
    value = json.loads(text) if len(text) <= MANIFEST_LIMIT else None
    if not isinstance(value, dict):
        raise OutriderError(f"{address}: blob {entry['digest']} is not a manifest; copy it again")
    return value


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, directory: Path, address: str) -> None:
    """Extracts a regular file below /models; refuses any other member."""
    parts = PurePosixPath(member.name).parts
    plain = member.isreg() and not member.issparse()
    if not plain or len(parts) < 2 or parts[0] != ROOT or ".." in parts:
        raise OutriderError(f"{address}: {member.name!r} is not a plain file below /{ROOT}")
    path = directory.joinpath(*parts[1:])
    content = tar.extractfile(member)
    assert content is not None  # a regular file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as out:
            shutil.copyfileobj(content, out)
    except (OSError, ValueError, *DAMAGED) as error:
        raise OutriderError(f"{address}: {member.name!r}: {error}; export again") from None
