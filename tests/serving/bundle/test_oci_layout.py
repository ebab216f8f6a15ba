"""Bundles in OCI image layouts, as container tools build and copy them."""

import gzip
import hashlib
import json
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from backports import zstd

from outrider.common.errors import OutriderError
from outrider.serving.bundle import oci_layout
from outrider.serving.bundle.bundle_digest import bundle_digest
from outrider.serving.bundle.bundle_places import local_bundle, put_bundle
from outrider.serving.bundle.oci_layout import read_oci_layout
from tests.serving.exported import files, write_exported

OCI = "application/vnd.oci.image"
DOCKER = "application/vnd.docker"

Members = list[tuple[tarfile.TarInfo, bytes]]


def read(address: str, folder: Path) -> Path:
    folder.mkdir()
    read_oci_layout(address, folder)
    return folder


def copied(bundle: Path) -> Members:
    """The members that `COPY bundle /models` writes: each folder before its files."""
    root = tarfile.TarInfo("models/")
    root.type = tarfile.DIRTYPE
    members = [(root, b"")]
    for path in sorted(bundle.rglob("*")):
        name = f"models/{path.relative_to(bundle).as_posix()}"
        member = tarfile.TarInfo(name + "/" if path.is_dir() else name)
        member.type = tarfile.DIRTYPE if path.is_dir() else tarfile.REGTYPE
        members.append((member, b"" if path.is_dir() else path.read_bytes()))
    return members


def layer_of(members: Members) -> bytes:
    made = BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, BytesIO(data))
    return made.getvalue()


def put_image(
    layout: Path,
    *layers: Members,
    tag: str = "latest",
    layer_type: str = f"{OCI}.layer.v1.tar",
    compress: Callable[[bytes], bytes] = bytes,
    platforms: int = 0,
) -> str:
    """Adds an image to a layout; returns its address.

    With `platforms`, an index of as many images with the same layers is tagged.
    """
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')

    def put(data: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    descriptors = [put(compress(layer_of(members)), layer_type) for members in layers]
    manifest = {"schemaVersion": 2, "layers": descriptors}
    entry = put(json.dumps(manifest).encode(), f"{OCI}.manifest.v1+json")
    if platforms:
        index = {"schemaVersion": 2, "manifests": [entry] * platforms}
        entry = put(json.dumps(index).encode(), f"{OCI}.index.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": tag}
    path = layout / "index.json"
    entries = json.loads(path.read_text())["manifests"] if path.is_file() else []
    path.write_text(json.dumps({"schemaVersion": 2, "manifests": [*entries, entry]}))
    return f"oci:{layout}:{tag}"


@pytest.mark.parametrize("platforms", [0, 1, 2])
@pytest.mark.parametrize(
    ("layer_type", "compress"),
    [
        (f"{OCI}.layer.v1.tar", bytes),
        (f"{OCI}.layer.v1.tar+gzip", gzip.compress),
        (f"{OCI}.layer.v1.tar+zstd", zstd.compress),
        (f"{DOCKER}.image.rootfs.diff.tar.gzip", gzip.compress),
    ],
    ids=["tar", "gzip", "zstd", "docker"],
)
def test_an_image_of_the_two_lines_is_read(
    tmp_path: Path, layer_type: str, compress: Callable[[bytes], bytes], platforms: int
) -> None:
    bundle = write_exported(tmp_path / "bundle")
    address = put_image(
        tmp_path / "image",
        copied(bundle),
        layer_type=layer_type,
        compress=compress,
        platforms=platforms,
    )
    with local_bundle(address) as directory:
        assert files(directory) == files(bundle)
        assert bundle_digest(directory) == bundle_digest(bundle)


def test_layers_may_share_the_files(tmp_path: Path) -> None:
    bundle = write_exported(tmp_path / "bundle")
    layers = [[member] for member in copied(bundle)]
    assert files(read(put_image(tmp_path / "image", *layers), tmp_path / "out")) == files(bundle)


def test_a_layout_may_have_several_images(tmp_path: Path) -> None:
    layout = tmp_path / "image"
    bundles = {tag: write_exported(tmp_path / tag, k=k) for tag, k in (("march", 2), ("april", 5))}
    for tag, bundle in bundles.items():
        put_image(layout, copied(bundle), tag=tag)
    for tag, bundle in bundles.items():
        with local_bundle(f"oci:{layout}:{tag}") as directory:
            assert files(directory) == files(bundle)
    with pytest.raises(OutriderError, match="no image 'may'; the layout has april, march"):
        read(f"oci:{layout}:may", tmp_path / "out")


@pytest.mark.attack("bundles")
def test_a_blob_that_differs_is_found(tmp_path: Path) -> None:
    address = put_image(tmp_path / "image", copied(write_exported(tmp_path / "bundle")))
    blobs = (tmp_path / "image" / "blobs" / "sha256").iterdir()
    largest = max(blobs, key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[600] ^= 1
    largest.write_bytes(data)
    with pytest.raises(OutriderError, match="differs from its digest"):
        read(address, tmp_path / "out")
    largest.unlink()
    with pytest.raises(OutriderError, match="is missing"):
        read(address, tmp_path / "again")


@pytest.mark.attack("bundles")
@pytest.mark.parametrize(("suffix", "compress"), [("gzip", gzip.compress), ("zstd", zstd.compress)])
def test_a_truncated_layer_is_an_error_with_its_address(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    members = copied(write_exported(tmp_path / "bundle"))
    address = put_image(
        tmp_path / "image",
        members,
        layer_type=f"{OCI}.layer.v1.tar+{suffix}",
        compress=lambda layer: compress(layer)[:-40],
    )
    with pytest.raises(OutriderError, match=str(tmp_path / "image")):
        read(address, tmp_path / "out")


@pytest.mark.attack("bundles")
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE])
def test_a_layer_cannot_fill_the_disk_or_the_memory(
    tmp_path: Path, kind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oci_layout, "SPARE_BYTES", 2**20)
    zeros = tarfile.TarInfo("models/zeros")
    zeros.type = kind
    address = put_image(
        tmp_path / "image",
        [(zeros, bytes(2**23))],
        layer_type=f"{OCI}.layer.v1.tar+gzip",
        compress=gzip.compress,
    )
    with pytest.raises(OutriderError, match="expands to more than 20 times its size"):
        read(address, tmp_path / "out")
    written = (path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert sum(written) < 2**21


@pytest.mark.attack("bundles")
def test_a_layer_of_another_type_is_refused(tmp_path: Path) -> None:
    members = copied(write_exported(tmp_path / "bundle"))
    address = put_image(tmp_path / "image", members, layer_type="application/vnd.acme.squashfs")
    with pytest.raises(OutriderError, match=r"acme\.squashfs.*COPY bundle /models"):
        read(address, tmp_path / "out")


@pytest.mark.attack("bundles")
@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("models/../../outside", tarfile.REGTYPE, "is not a plain file below /models"),
        ("/etc/outside", tarfile.REGTYPE, "is not a plain file below /models"),
        ("outside", tarfile.REGTYPE, "is not a plain file below /models"),
        (".", tarfile.REGTYPE, "is not a plain file below /models"),
        ("models/config.json/below", tarfile.REGTYPE, "config.json/below': .*; export again"),
        ("models/link", tarfile.SYMTYPE, "is not a plain file below /models"),
        ("models/link", tarfile.LNKTYPE, "is not a plain file below /models"),
        ("models/pipe", tarfile.FIFOTYPE, "is not a plain file below /models"),
        ("models/extra.safetensors", tarfile.REGTYPE, r"extra\.safetensors: bundle\.json does not"),
        ("models/config.json", tarfile.REGTYPE, "File exists"),
        ("models/./config.json", tarfile.REGTYPE, "File exists"),
    ],
)
def test_a_layer_has_listed_files_only(
    tmp_path: Path, name: str, kind: bytes, message: str
) -> None:
    bundle = files(write_exported(tmp_path / "bundle"))
    members = [(tarfile.TarInfo(f"models/{path}"), data) for path, data in bundle.items()]
    bad = tarfile.TarInfo(name)
    bad.type, bad.linkname = kind, "/etc/passwd"
    address = put_image(tmp_path / "image", [*members, (bad, b"more" if kind == b"0" else b"")])
    with pytest.raises(OutriderError, match=message), local_bundle(address):
        pass
    assert not (tmp_path / "outside").exists()
    assert files(read(put_image(tmp_path / "good", members), tmp_path / "again")) == bundle


@pytest.mark.attack("bundles")
@pytest.mark.parametrize(
    "index",
    [
        "[]",
        "3",
        '{"manifests": 3}',
        '{"manifests": ["latest"]}',
        '{"manifests": [{"annotations": ["x"]}]}',
        "[" * 100_000,
        '{"manifests": ' + "1" * 5_000 + "}",
        "{}",
        "{",
    ],
    ids=range(9),
)
def test_a_damaged_index_is_an_error_with_its_address(tmp_path: Path, index: str) -> None:
    address = put_image(tmp_path / "image", [])
    (tmp_path / "image" / "index.json").write_text(index)
    with pytest.raises(OutriderError, match=str(tmp_path / "image")):
        read(address, tmp_path / "out")


@pytest.mark.attack("bundles")
def test_a_damaged_manifest_and_a_deep_folder_are_errors(tmp_path: Path) -> None:
    deep = tarfile.TarInfo("models/" + "x/" * 2_000 + "file")
    with pytest.raises(OutriderError, match="image"):
        read(put_image(tmp_path / "image", [(deep, b"")]), tmp_path / "out")
    address = put_image(tmp_path / "second", [])
    blobs = tmp_path / "second" / "blobs" / "sha256"
    for text in ("{", "[" * 100_000, "[]", "{}"):
        digest = hashlib.sha256(text.encode()).hexdigest()
        (blobs / digest).write_text(text)
        index = json.loads((tmp_path / "second" / "index.json").read_text())
        index["manifests"][0]["digest"] = f"sha256:{digest}"
        (tmp_path / "second" / "index.json").write_text(json.dumps(index))
        with pytest.raises(OutriderError, match="second"):
            read(address, tmp_path / digest)


@pytest.mark.parametrize("to", ["oci:images/resume:march", "oci://registry.example/resume:march"])
def test_images_are_not_written(tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = write_exported(tmp_path / "bundle")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutriderError, match="FROM scratch and COPY bundle /models"):
        put_bundle(bundle, to)
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.attack("bundles")
def test_what_is_no_image_layout_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(OutriderError, match="skopeo copy"):
        read("oci://registry.example/resume:march", tmp_path / "registry")
    with pytest.raises(OutriderError, match=r"not an OCI image layout \(no index\.json\)"):
        read(f"oci:{tmp_path}/nothing:x", tmp_path / "out")
