"""Bundles as OCI image layouts, which container tools can copy to a registry.

    write_oci_layout(stage, "oci:images/resume:march")
    read_oci_layout("oci:images/resume:march", directory)
    # skopeo copy --all --preserve-digests oci:images/resume:march docker://registry.example/resume:march

The image has the bundle's files below /models, as in KServe's modelcars and Kubernetes' image
volumes. Each weight file is a separate uncompressed layer (weights do not compress); the other
files share one layer. Times and owner IDs are zero, so the same bundle has the same digests
everywhere. Source: OCI Image Format Specification 1.1 (image-layout, manifest, config, layer).
"""

import contextlib
import hashlib
import json
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.common.fingerprint import file_digest
from outrider.serving.bundle.bundle_digest import FILES_LIMIT, MANIFEST_LIMIT, files_of

ROOT = "models"
"""Folder in the image that holds the files."""

ARTIFACT_TYPE = "application/vnd.outrider.speculator.v1"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
REF_NAME = "org.opencontainers.image.ref.name"

ARCHITECTURES = ("amd64", "arm64")
"""Each gets an image with the same layers, because the files are the same on both."""

_ADDRESS = re.compile(r"oci:(?!//)([^:]+)(?::([\w.-]+))?")


def _folder_and_tag(address: str) -> tuple[Path, str]:
    """Splits skopeo's `oci:FOLDER[:TAG]` into folder and tag (default: `latest`)."""
    found = _ADDRESS.fullmatch(address)
    if not found:
        raise OutriderError(
            f"{address}: write oci:FOLDER:TAG, a layout on this machine; copy it to a registry"
            " with `skopeo copy --all --preserve-digests oci:FOLDER:TAG docker://REGISTRY/NAME:TAG`"
        )
    return Path(found[1]), found[2] or "latest"


def write_oci_layout(stage: Path, address: str) -> str:
    """Adds the bundle's image, replacing any image with the same tag.

    Returns the image's digest. Blobs are written first and index.json last, atomically, so readers
    see either the old image or the new one. Blobs of a replaced image are kept.
    """
    folder, tag = _folder_and_tag(address)
    mark = folder / "oci-layout"
    index = folder / "index.json"
    if folder.exists() and not mark.is_file() and any(folder.iterdir()):
        raise OutriderError(f"{address}: {folder} is neither empty nor an OCI image layout")
    (folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    mark.write_text('{"imageLayoutVersion":"1.0.0"}', encoding="utf-8")
    files = files_of(stage)
    weights = [[path] for path in files if path.suffix == ".safetensors"]
    others = [path for path in files if path.suffix != ".safetensors"]
    layers = [_write_layer(folder, stage, group) for group in (others, *weights)]
    images = [_write_image(folder, architecture, layers) for architecture in ARCHITECTURES]
    image = _write_json(
        folder, {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": images}, INDEX_TYPE
    )
    entries = read_json(index)["manifests"] if index.is_file() else []
    kept = [entry for entry in entries if _tag(entry) != tag]
    named = image | {"annotations": {REF_NAME: tag}}
    write_json(index, {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [*kept, named]})
    return str(image["digest"])


def read_oci_layout(address: str, directory: Path) -> None:
    """Extracts an image's /models to `directory` and checks every digest.

    Raises an `OutriderError` for members other than folders and regular files below /models, and
    for too many members. The extracted files cannot be larger than the image; `check_files` later
    checks them against bundle.json.
    """
    folder, tag = _folder_and_tag(address)
    if not (folder / "index.json").is_file():
        raise OutriderError(f"{address}: {folder} is not an OCI image layout (no index.json)")
    try:
        entries = read_json(folder / "index.json").get("manifests", [])
        named = [entry for entry in entries if _tag(entry) == tag]
        if not named:
            tags = ", ".join(sorted(map(str, map(_tag, entries))))
            raise OutriderError(f"{address}: no image {tag!r}; the layout has {tags}")
        manifest = _read_json(folder, named[0], address)
        if manifest.get("mediaType") == INDEX_TYPE:
            manifest = _read_json(folder, manifest["manifests"][0], address)
        _extract_layers(folder, manifest["layers"], directory, address)
    except (
        LookupError,
        TypeError,
        AttributeError,
        ValueError,
        RecursionError,
        OSError,
        tarfile.TarError,
    ) as error:
        raise OutriderError(f"{address}: {error!r:.500}; copy the layout again") from None


def _extract_layers(
    folder: Path, layers: Sequence[dict[str, Any]], directory: Path, address: str
) -> None:
    count = 0
    for layer in layers:
        with (
            _checked_blob(folder, layer, address) as blob,
            tarfile.open(fileobj=blob, mode="r:") as tar,
        ):
            for member in tar:
                if (count := count + 1) > 2 * FILES_LIMIT:
                    raise OutriderError(f"{address}: more than {count - 1} files and folders")
                if not member.isdir():
                    _extract(tar, member, directory, address)


def _tag(entry: Mapping[str, Any]) -> str | None:
    tag: str | None = (entry.get("annotations") or {}).get(REF_NAME)
    return tag


def _write_layer(folder: Path, stage: Path, files: Sequence[Path]) -> dict[str, Any]:
    """Writes files and their folders as a tar layer; returns its descriptor."""
    names = [PurePosixPath(ROOT, file.relative_to(stage).as_posix()) for file in files]
    folders = sorted({str(parent) for name in names for parent in name.parents} - {"."})
    incoming = folder / "blobs" / "sha256" / "incoming"
    # PAX supports files larger than 8 GiB.
    with tarfile.open(incoming, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in folders:
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o755
            tar.addfile(entry)
        for path, place in zip(files, names, strict=True):
            entry = tarfile.TarInfo(str(place))
            entry.size = path.stat().st_size
            entry.mode = 0o755 if path.suffix == ".sh" else 0o644
            with path.open("rb") as content:
                tar.addfile(entry, content)
    return _blob(incoming, LAYER_TYPE)


def _write_image(
    folder: Path, architecture: str, layers: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Writes the config and manifest of one architecture; returns the manifest's descriptor."""
    platform = {"architecture": architecture, "os": "linux"}
    # Layers are not compressed, so a layer's digest is its diff_id.
    rootfs = {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]}
    config = _write_json(folder, {**platform, "config": {}, "rootfs": rootfs}, CONFIG_TYPE)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": ARTIFACT_TYPE,
        "config": config,
        "layers": list(layers),
    }
    return _write_json(folder, manifest, MANIFEST_TYPE) | {"platform": platform}


def _write_json(folder: Path, value: Any, media_type: str) -> dict[str, Any]:
    incoming = folder / "blobs" / "sha256" / "incoming"
    incoming.write_bytes(json.dumps(value, separators=(",", ":"), sort_keys=True).encode())
    return _blob(incoming, media_type)


def _blob(incoming: Path, media_type: str) -> dict[str, Any]:
    """Renames a complete file to its digest; returns its descriptor for manifests."""
    digest = file_digest(incoming)
    size = incoming.stat().st_size
    incoming.replace(incoming.with_name(digest))
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}


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
    place = directory.joinpath(*parts[1:])
    content = tar.extractfile(member)
    assert content is not None  # a regular file
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("xb") as out:
            shutil.copyfileobj(content, out)
    except (OSError, ValueError, tarfile.TarError) as error:
        raise OutriderError(f"{address}: {member.name!r}: {error}; export again") from None
