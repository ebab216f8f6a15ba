"""Bundles as OCI image layouts, read back by us and by other tools."""

import hashlib
import json
import shutil
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.bundle.bundle_digest import bundle_digest
from outrider.serving.bundle.bundle_places import local_bundle, put_bundle
from outrider.serving.bundle.oci_layout import LAYER_TYPE, read_oci_layout, write_oci_layout
from tests.serving.exported import files, write_exported

SKOPEO = shutil.which("skopeo")


def read(address: str, folder: Path) -> Path:
    folder.mkdir()
    read_oci_layout(address, folder)
    return folder


def blob(layout: Path, digest: str) -> bytes:
    return (layout / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()


def test_every_descriptor_is_of_its_blob_and_the_same_anywhere(tmp_path: Path) -> None:
    """Image-layout, manifest and config of the specification, read without our code."""
    layout = tmp_path / "image"
    two = write_exported(tmp_path / "later" / "two")
    digest = write_oci_layout(write_exported(tmp_path / "bundle"), f"oci:{layout}:march")
    (two / "config.json").chmod(0o600)
    assert write_oci_layout(two, f"oci:{tmp_path}/two-image") == digest
    assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    pending = json.loads((layout / "index.json").read_text())["manifests"]
    assert pending[0]["annotations"] == {"org.opencontainers.image.ref.name": "march"}
    seen = set()
    architectures = []
    while pending:
        entry = pending.pop()
        data = blob(layout, entry["digest"])
        digest = hashlib.sha256(data).hexdigest()
        assert (entry["digest"], entry["size"]) == (f"sha256:{digest}", len(data))
        seen.add(digest)
        value = json.loads(data) if entry["mediaType"].endswith("+json") else {}
        pending += value.get("manifests", []) + value.get("layers", [])
        if "layers" in value:
            config = json.loads(blob(layout, value["config"]["digest"]))
            assert config["rootfs"]["diff_ids"] == [each["digest"] for each in value["layers"]]
            architectures.append(config["architecture"])
            pending.append(value["config"])
    assert seen == {path.name for path in (layout / "blobs" / "sha256").iterdir()}
    assert sorted(architectures) == ["amd64", "arm64"]


def test_a_tag_is_replaced_and_others_stay(tmp_path: Path) -> None:
    layout = tmp_path / "image"
    bundles = [write_exported(tmp_path / name, weights=name.encode() * 50) for name in "abc"]
    for bundle, tag in zip(bundles, ("march", "april", "march"), strict=True):
        write_oci_layout(bundle, f"oci:{layout}:{tag}")
    for bundle, tag in zip(bundles[1:], ("april", "march"), strict=True):
        with local_bundle(f"oci:{layout}:{tag}") as directory:
            assert files(directory) == files(bundle)
            assert bundle_digest(directory) == bundle_digest(bundle)
    with pytest.raises(OutriderError, match="no image 'may'; the layout has april, march"):
        read(f"oci:{layout}:may", tmp_path / "3")


def test_a_blob_that_differs_is_found(tmp_path: Path) -> None:
    layout = tmp_path / "image"
    write_oci_layout(write_exported(tmp_path / "bundle"), f"oci:{layout}")
    largest = max((layout / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[600] ^= 1
    largest.write_bytes(data)
    with pytest.raises(OutriderError, match="differs from its digest"):
        read(f"oci:{layout}", tmp_path / "out")
    largest.unlink()
    with pytest.raises(OutriderError, match="is missing"):
        read(f"oci:{layout}", tmp_path / "again")


def put_image(layout: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> str:
    """A layout with one image of these members; returns its address."""
    (layout / "blobs" / "sha256").mkdir(parents=True)

    def put(data: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (layout / "blobs" / "sha256" / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    made = BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, BytesIO(data))
    manifest = {"schemaVersion": 2, "layers": [put(made.getvalue(), LAYER_TYPE)]}
    entry = put(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": "latest"}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return f"oci:{layout}"


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
    members = [(tarfile.TarInfo(f"models/{each}"), data) for each, data in bundle.items()]
    bad = tarfile.TarInfo(name)
    bad.type, bad.linkname = kind, "/etc/passwd"
    address = put_image(tmp_path / "image", [*members, (bad, b"more" if kind == b"0" else b"")])
    with pytest.raises(OutriderError, match=message), local_bundle(address):
        pass
    assert not (tmp_path / "outside").exists()
    assert files(read(put_image(tmp_path / "good", members), tmp_path / "again")) == bundle


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


def test_what_is_no_image_layout_is_neither_written_nor_read(tmp_path: Path) -> None:
    bundle = write_exported(tmp_path / "bundle")
    for address, message in (
        ("oci://registry.example/resume:march", "skopeo copy"),
        (f"oci:{bundle}:x", "neither empty nor an OCI image layout"),
    ):
        with pytest.raises(OutriderError, match=message):
            put_bundle(bundle, address)
    with pytest.raises(OutriderError, match=r"not an OCI image layout \(no index\.json\)"):
        read(f"oci:{tmp_path}/nothing:x", tmp_path / "out")


@pytest.mark.skipif(SKOPEO is None, reason="skopeo is missing (Debian's package)")
def test_skopeo_copies_every_architecture(tmp_path: Path) -> None:
    bundle = write_exported(tmp_path / "bundle")
    digest = write_oci_layout(bundle, f"oci:{tmp_path}/image:march")
    source = f"oci:{tmp_path}/image:march"
    copy = f"oci:{tmp_path}/copy:march"
    exact = ["--quiet", "--all", "--preserve-digests"]
    subprocess.run([SKOPEO, "copy", *exact, source, copy], check=True)
    done = subprocess.run([SKOPEO, "inspect", copy], check=True, capture_output=True, text=True)
    seen = json.loads(done.stdout)
    assert seen["Digest"] == digest and len(seen["Layers"]) == 3
    assert files(read(copy, tmp_path / "out")) == files(bundle)
