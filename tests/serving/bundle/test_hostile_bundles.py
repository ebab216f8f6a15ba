"""Bundles from an attacker: each is refused in one line, and nothing is written outside of it.

Names, sizes, links, layers and settings that have tests next to what they test are not repeated:
`python -m tests.security_table` counts both.
"""

import contextlib
import hashlib
import json
import os
import socket
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.bundle import oci_layout
from outrider.serving.bundle.bundle_digest import MANIFEST_LIMIT, bundle_digest
from outrider.serving.bundle.bundle_places import local_bundle
from tests.serving.bundle.test_oci_layout import put_image
from tests.serving.exported import write_exported

pytestmark = pytest.mark.attack("bundles")


@contextlib.contextmanager
def refused(folder: Path, *parts: str) -> Iterator[None]:
    """The block ends in one line with these parts, and changes no file below the folder."""
    before = listed(folder)
    with pytest.raises(OutriderError) as caught:
        yield
    message = str(caught.value)
    assert message.isprintable(), message
    assert len(message) < 2000
    for part in parts:
        assert part in message
    assert listed(folder) == before


def listed(folder: Path) -> dict[str, tuple[int, int]]:
    """Mode and size of all below a folder, by path; links are not followed."""
    paths = sorted(folder.rglob("*"))
    states = [(str(path.relative_to(folder)), path.lstat()) for path in paths]
    return {name: (state.st_mode, state.st_size) for name, state in states}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_exported(tmp_path / "bundle")


def hard_link(bundle: Path) -> None:
    """Two names of one listed size: no link that leads outside, but another content."""
    (bundle / "config.json").unlink()
    (bundle / "config.json").hardlink_to(bundle / "serve.sh")


def listening_socket(bundle: Path) -> None:
    (bundle / "config.json").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        home = Path.cwd()
        os.chdir(bundle)  # a socket's path has at most 107 bytes
        server.bind("config.json")
        os.chdir(home)


def folder_for_a_file(bundle: Path) -> None:
    (bundle / "config.json").unlink()
    (bundle / "config.json").mkdir()


def link_to_a_device(bundle: Path) -> None:
    (bundle / "config.json").unlink()
    (bundle / "config.json").symlink_to("/dev/zero")


def hidden_weights(bundle: Path) -> None:
    (bundle / ".more.safetensors").write_bytes(b"weights")


def weights_below_a_folder(bundle: Path) -> None:
    (bundle / "sglang_nextn" / "more").mkdir()
    (bundle / "sglang_nextn" / "more" / "model.safetensors").write_bytes(b"weights")


def name_of_control_characters(bundle: Path) -> None:
    (bundle / "\x1b]0;pwned\x07\n.py").write_text("raise SystemExit")


def sparse_weights(bundle: Path) -> None:
    with (bundle / "model.safetensors").open("r+b") as file:
        file.truncate(2**40)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (hard_link, "config.json"),
        (listening_socket, "config.json"),
        (folder_for_a_file, "config.json"),
        (link_to_a_device, "config.json"),
        (hidden_weights, ".more.safetensors"),
        (weights_below_a_folder, "sglang_nextn/more/model.safetensors"),
        (name_of_control_characters, "pwned"),
        (sparse_weights, "model.safetensors"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_files_of_a_bundle(bundle: Path, damage: Callable[[Path], None], name: str) -> None:
    damage(bundle)
    with refused(bundle.parent, name):
        bundle_digest(bundle)


def changed_manifest(bundle: Path, **changes: object) -> None:
    manifest = json.loads((bundle / "bundle.json").read_text())
    (bundle / "bundle.json").write_text(json.dumps(manifest | changes))


def many_files(bundle: Path) -> None:
    files = {f"f{number}": "0" * 64 for number in range(5_000)}
    changed_manifest(bundle, files=files, sizes=dict.fromkeys(files, 0))


def lists_itself(bundle: Path) -> None:
    changed_manifest(bundle, files={"bundle.json": "0" * 64}, sizes={"bundle.json": 1})


def file_and_folder_of_one_name(bundle: Path) -> None:
    files = {"a": "0" * 64, "a/b": "0" * 64}
    changed_manifest(bundle, files=files, sizes=dict.fromkeys(files, 0))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 100,
        b"\xff\xfe{}",
        b"[" * 100_000,
        b'{"version": ' + b"9" * 5_000 + b"}",
        b"{}",
        b"[]",
        b"null",
        b'{"version": 1}',
        b'{"version": NaN}',
        b'{"version": 2}',
        b'{"version": 2, "files": [], "sizes": {}}',
        b" " * (MANIFEST_LIMIT + 1),
        many_files,
        lists_itself,
        file_and_folder_of_one_name,
    ],
    ids=[
        "empty", "NULs", "UTF-16", "deep", "digits", "no-keys", "list", "null", "version-1", "NaN",
        "no-files", "files-list", "16-MB", "many-files", "itself", "file-and-folder",
    ],
)  # fmt: skip
def test_a_hostile_manifest(bundle: Path, content: bytes | Callable[[Path], None]) -> None:
    if isinstance(content, bytes):
        (bundle / "bundle.json").write_bytes(content)
    else:
        content(bundle)
    with refused(bundle.parent, "bundle.json"):
        bundle_digest(bundle)


@pytest.mark.parametrize(
    "address",
    [
        "hf://../..",
        "hf://acme",
        "hf://acme/x/y",
        "hf://acme/x@../../y z",
        "hf://acme/x\n--upload",
        "oci:",
        "oci:///etc:x",
        "oci:/nowhere:latest",
        "oci:/dev/zero:latest",
        "file:///nowhere",
        "memory://nothing-there",
        "http://127.0.0.1:9/bundle",
        "nosuchstore://bucket/bundle",
        "",
        "\x00",
        "x" * 5_000,
    ],
    ids=range(16),
)
def test_a_hostile_address(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(tmp_path), local_bundle(address):
        pass


def header_of_another_size(layout: Path) -> None:
    """Descriptors that give other sizes and types than their blobs have."""
    index = json.loads((layout / "index.json").read_text())
    index["manifests"][0]["digest"] = "sha512:" + "0" * 128
    (layout / "index.json").write_text(json.dumps(index))


def digest_is_a_path(layout: Path) -> None:
    index = json.loads((layout / "index.json").read_text())
    index["manifests"][0]["digest"] = "sha256:../../../etc/passwd"
    (layout / "index.json").write_text(json.dumps(index))


def index_that_names_itself(layout: Path) -> None:
    """An index of indexes without end."""
    text = json.dumps({"manifests": [{"digest": "sha256:" + "0" * 64}]})
    digest = hashlib.sha256(text.encode()).hexdigest()
    (layout / "blobs" / "sha256" / digest).write_text(text)
    index = json.loads((layout / "index.json").read_text())
    index["manifests"][0]["digest"] = f"sha256:{digest}"
    (layout / "index.json").write_text(json.dumps(index))


def index_is_a_pipe(layout: Path) -> None:
    (layout / "index.json").unlink()
    os.mkfifo(layout / "index.json")


def blobs_are_links(layout: Path) -> None:
    for blob in (layout / "blobs" / "sha256").iterdir():
        blob.unlink()
        blob.symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    "damage",
    [
        header_of_another_size,
        digest_is_a_path,
        index_that_names_itself,
        index_is_a_pipe,
        blobs_are_links,
    ],
)
def test_a_hostile_layout(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    layout = tmp_path / "image"
    address = put_image(layout, [(tarfile.TarInfo("models/config.json"), b"{}")])
    damage(layout)
    with refused(tmp_path, str(layout)), local_bundle(address):
        pass


def test_a_layer_of_many_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci_layout, "FILES_LIMIT", 100)
    members = [(tarfile.TarInfo(f"models/{number}"), b"") for number in range(300)]
    address = put_image(tmp_path / "image", members)
    with refused(tmp_path, "more than 200 files and folders"), local_bundle(address):
        pass
