"""A bundle as an OCI image layout: a folder that container tools copy into a registry.

    write_oci_layout(stage, "oci:images/resume:march")
    read_oci_layout("oci:images/resume:march", directory)
    # skopeo copy --all --preserve-digests oci:images/resume:march docker://registry.example/resume:march

The image has the bundle's files below /models, as KServe's modelcars and image volumes of
Kubernetes have models. Each weight file is an uncompressed layer of its own (weights do not
compress), the other files are one more. Times and owners are zero: the same bundle has the same
digests everywhere. Sources: OCI Image Format Specification 1.1, image-layout.md, manifest.md,
config.md, layer.md.
"""

import contextlib
import hashlib
import io
import json
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from outrider.common.errors import OutriderError
from outrider.common.files import publish, read_json
from outrider.serving.bundle.bundle_digest import (
    FILES_LIMIT,
    MANIFEST,
    MANIFEST_LIMIT,
    read_manifest,
)

ROOT = "models"
"""Folder of the files in the image."""

ARTIFACT_TYPE = "application/vnd.outrider.speculator.v1"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
REF_NAME = "org.opencontainers.image.ref.name"

ARCHITECTURES = ("amd64", "arm64")
"""The files are the same on both: an image for each, with the same layers."""

_ADDRESS = re.compile(r"oci:(?!//)([^:]+)(?::([\w.-]+))?")


class OciAddress(NamedTuple):
    """A layout's folder and the tag of one image in it."""

    folder: Path
    tag: str

    @classmethod
    def parse(cls, address: str) -> "OciAddress":
        """From `oci:FOLDER[:TAG]`, as skopeo writes it; the tag is `latest` unless given."""
        found = _ADDRESS.fullmatch(address)
        if not found:
            raise OutriderError(
                f"{address}: write oci:FOLDER:TAG, a layout on this machine; copy it to a registry"
                " with `skopeo copy --all --preserve-digests oci:FOLDER:TAG docker://REGISTRY/NAME:TAG`"
            )
        return cls(Path(found[1]), found[2] or "latest")


def is_oci_address(place: str) -> bool:
    """Whether a place is an OCI layout."""
    return place.startswith("oci:")


def write_oci_layout(stage: Path, address: str) -> str:
    """Adds the bundle to the layout as an image, replacing one of the same tag.

    Returns the image's digest. Blobs are written first and index.json last, atomically: a reader
    sees the old image or the new one. Blobs of a replaced image are removed.
    """
    folder, tag = OciAddress.parse(address)
    _open_layout(folder, address)
    files = sorted(path for path in stage.rglob("*") if path.is_file())
    weights = [path for path in files if path.suffix == ".safetensors"]
    others = [path for path in files if path.suffix != ".safetensors"]
    layers = [
        _layer(folder, stage, group) for group in [others, *([each] for each in weights)] if group
    ]
    images = [_image(folder, architecture, layers) for architecture in ARCHITECTURES]
    image = _json_blob(
        folder,
        {
            "schemaVersion": 2,
            "mediaType": INDEX_TYPE,
            "manifests": images,
        },
        INDEX_TYPE,
    )
    index = read_json(folder / "index.json") if (folder / "index.json").is_file() else {}
    kept = [
        entry
        for entry in index.get("manifests", [])
        if (entry.get("annotations") or {}).get(REF_NAME) != tag
    ]
    manifests = [*kept, image | {"annotations": {REF_NAME: tag}}]
    with publish(folder / "index.json") as temporary:
        temporary.write_bytes(
            _json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests})
        )
    _remove_unused(folder, manifests)
    return str(image["digest"])


def read_oci_layout(address: str, directory: Path) -> None:
    """Writes the files below /models of an image to `directory`; every digest is checked."""
    folder, tag = OciAddress.parse(address)
    if not (folder / "index.json").is_file():
        raise OutriderError(f"{address}: {folder} is no OCI image layout (no index.json)")
    entries = read_json(folder / "index.json").get("manifests", [])
    named = [e for e in entries if (e.get("annotations") or {}).get(REF_NAME) == tag]
    if not named:
        tags = sorted(str((e.get("annotations") or {}).get(REF_NAME)) for e in entries)
        raise OutriderError(f"{address}: no image {tag!r}; the layout has {', '.join(tags)}")
    manifest = _read_json_blob(folder, named[0], address)
    if manifest.get("mediaType") == INDEX_TYPE:
        manifest = _read_json_blob(folder, manifest["manifests"][0], address)
    with contextlib.ExitStack() as stack:
        members: dict[str, tuple[tarfile.TarFile, tarfile.TarInfo]] = {}
        for layer in manifest["layers"]:
            if layer["mediaType"] != LAYER_TYPE:
                raise OutriderError(
                    f"{address}: a layer is {layer['mediaType']}; Outrider reads layouts that it"
                    " wrote"
                )
            stream = stack.enter_context(_checked_blob(folder, layer, address))
            tar = stack.enter_context(tarfile.open(fileobj=stream, mode="r:"))
            for name, member in _files_below(tar, address):
                if members.setdefault(name, (tar, member)) != (tar, member):
                    raise OutriderError(f"{address}: {name!r} is there twice; export again")
        _write_listed(members, directory, address)


def _layer(folder: Path, stage: Path, files: Sequence[Path]) -> dict[str, Any]:
    """A tar file of some files, with their folders."""
    names = [PurePosixPath(ROOT, file.relative_to(stage).as_posix()) for file in files]
    folders = sorted({str(parent) for name in names for parent in name.parents} - {"."})
    # PAX, for files of more than 8 GiB.
    with (
        _new_blob(folder) as blob,
        tarfile.open(fileobj=blob, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in folders:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for path, place in zip(files, names, strict=True):
            entry = tarfile.TarInfo(str(place))
            entry.size = path.stat().st_size
            entry.mode = 0o755 if path.suffix == ".sh" else 0o644
            with path.open("rb") as content:
                tar.addfile(entry, content)
    return blob.descriptor(LAYER_TYPE)


def _image(folder: Path, architecture: str, layers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The manifest of one architecture and its configuration."""
    platform = {"architecture": architecture, "os": "linux"}
    # Layers are not compressed, so a layer's digest is its diff_id.
    rootfs = {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]}
    config = _json_blob(folder, {**platform, "config": {}, "rootfs": rootfs}, CONFIG_TYPE)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": ARTIFACT_TYPE,
        "config": config,
        "layers": list(layers),
    }
    return _json_blob(folder, manifest, MANIFEST_TYPE) | {"platform": platform}


class _Blob(io.RawIOBase):
    """A file that is hashed as it is written."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._hash, self.size = stream, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._hash.update(data)
        self.size += len(data)
        return self._stream.write(data)

    def tell(self) -> int:
        return self.size

    @property
    def hexdigest(self) -> str:
        """SHA-256 of what was written."""
        return self._hash.hexdigest()

    def descriptor(self, media_type: str) -> dict[str, Any]:
        """The blob as manifests refer to it."""
        return {"mediaType": media_type, "digest": f"sha256:{self.hexdigest}", "size": self.size}


@contextlib.contextmanager
def _new_blob(folder: Path) -> Iterator[_Blob]:
    """A blob that gets its digest as its name when it is complete."""
    blobs = folder / "blobs" / "sha256"
    with publish(blobs / "incoming") as temporary, temporary.open("wb") as stream:
        blob = _Blob(stream)
        yield blob
    (blobs / "incoming").replace(blobs / blob.hexdigest)


def _json_blob(folder: Path, value: Any, media_type: str) -> dict[str, Any]:
    with _new_blob(folder) as blob:
        blob.write(_json(value))
    return blob.descriptor(media_type)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _open_layout(folder: Path, address: str) -> None:
    """Creates the layout; an `OutriderError` where the folder holds something else."""
    mark = folder / "oci-layout"
    if folder.exists() and not mark.is_file() and any(folder.iterdir()):
        raise OutriderError(f"{address}: {folder} is not empty and no OCI image layout")
    (folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    if not mark.is_file():
        mark.write_text('{"imageLayoutVersion":"1.0.0"}', encoding="utf-8")


def _remove_unused(folder: Path, manifests: Sequence[dict[str, Any]]) -> None:
    """Removes blobs that no image of the index refers to."""
    used: set[str] = set()
    pending = list(manifests)
    while pending:
        entry = pending.pop()
        digest = str(entry["digest"]).removeprefix("sha256:")
        if digest in used:
            continue
        used.add(digest)
        if entry.get("mediaType") in (INDEX_TYPE, MANIFEST_TYPE):
            value = read_json(folder / "blobs" / "sha256" / digest)
            pending += value.get("manifests", []) + value.get("layers", [])
            pending += [value["config"]] if "config" in value else []
    for blob in (folder / "blobs" / "sha256").iterdir():
        if blob.name not in used:
            blob.unlink()


@contextlib.contextmanager
def _checked_blob(folder: Path, entry: dict[str, Any], address: str) -> Iterator[IO[bytes]]:
    """An open blob whose content has the digest; reading begins at its start."""
    kind, _, digest = str(entry.get("digest")).partition(":")
    path = folder / "blobs" / "sha256" / digest
    if kind != "sha256" or not re.fullmatch(r"[0-9a-f]{64}", digest) or not path.is_file():
        raise OutriderError(f"{address}: blob {kind}:{digest} is missing; copy the layout again")
    with path.open("rb") as stream:
        # Opened once: what is read afterwards is what was checked.
        if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
            raise OutriderError(f"{path}: differs from its digest; copy the layout again")
        stream.seek(0)
        yield stream


def _read_json_blob(folder: Path, entry: dict[str, Any], address: str) -> dict[str, Any]:
    with _checked_blob(folder, entry, address) as stream:
        text = stream.read(MANIFEST_LIMIT + 1)
    value = json.loads(text) if len(text) <= MANIFEST_LIMIT else None
    if not isinstance(value, dict):
        raise OutriderError(f"{address}: blob {entry['digest']} is no manifest; copy it again")
    return value


def _files_below(tar: tarfile.TarFile, address: str) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """The regular files below /models; anything else but a folder is refused."""
    for number, member in enumerate(tar):
        parts = PurePosixPath(member.name).parts
        if number > 2 * FILES_LIMIT:
            raise OutriderError(f"{address}: a layer has more than {number} members")
        if member.isdir():
            continue
        if not member.isreg() or len(parts) < 2 or parts[0] != ROOT or ".." in parts:
            raise OutriderError(f"{address}: {member.name!r} is no file below /{ROOT}")
        yield "/".join(parts[1:]), member


def _write_listed(
    members: Mapping[str, tuple[tarfile.TarFile, tarfile.TarInfo]], directory: Path, address: str
) -> None:
    """Writes bundle.json, then the files that it lists; nothing if there are others."""
    if MANIFEST not in members or members[MANIFEST][1].size > MANIFEST_LIMIT:
        raise OutriderError(f"{address}: no bundle.json below /{ROOT}; it is no bundle of Outrider")
    _extract(*members[MANIFEST], directory / MANIFEST)
    sizes = read_manifest(directory)["sizes"]
    found = {name: member.size for name, (_, member) in members.items() if name != MANIFEST}
    if wrong := sorted(name for name in sizes | found if sizes.get(name) != found.get(name)):
        raise OutriderError(
            f"{address}: {wrong[0]}: {found.get(wrong[0], 'no')} bytes, but bundle.json has"
            f" {sizes.get(wrong[0], 'none')}; export again"
        )
    for name in sizes:
        _extract(*members[name], directory / name)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    assert content is not None  # a regular file
    with place.open("xb") as out:
        shutil.copyfileobj(content, out)
