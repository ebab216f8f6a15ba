"""Bundles at fsspec URLs: only what bundle.json lists is written, up to the listed sizes."""

import json
import uuid
from pathlib import Path

import fsspec
import pytest

from outrider.common.errors import OutriderError
from outrider.serving.bundle.bundle_digest import bundle_digest
from outrider.serving.bundle.bundle_places import local_bundle, pin_location, put_bundle
from tests.serving.exported import write_exported

MEMORY = fsspec.filesystem("memory")
"""A store that is not a folder on this machine."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A bundle in the store."""
    url = f"memory://{uuid.uuid4().hex}"
    put_bundle(write_exported(tmp_path / "bundle"), url)
    return url


def test_a_bundle_comes_back_without_what_is_not_listed(url: str, tmp_path: Path) -> None:
    MEMORY.pipe(f"{url}/extra.safetensors", b"weights")
    with local_bundle(url) as directory:
        assert bundle_digest(directory) == bundle_digest(tmp_path / "bundle")
        assert not (directory / "extra.safetensors").exists()
    assert pin_location(url) == url


@pytest.mark.attack("bundles")
@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside", "..\\\\outside"])
def test_a_name_outside_is_refused_before_anything_is_written(
    url: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    MEMORY.pipe(f"{url}/outside", b"evil")
    manifest = json.loads(MEMORY.cat(f"{url}/bundle.json"))
    manifest["files"][name] = "0" * 64
    manifest["sizes"][name] = 4
    MEMORY.pipe(f"{url}/bundle.json", json.dumps(manifest).encode())
    with pytest.raises(OutriderError, match="is not inside the bundle"), local_bundle(url):
        pass
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not list(tmp_path.rglob("outside"))


@pytest.mark.attack("bundles")
def test_a_download_stops_at_the_listed_size(url: str) -> None:
    MEMORY.pipe(f"{url}/model.safetensors", b"w" * 10_000_000)
    with (
        pytest.raises(OutriderError, match=r"model\.safetensors has more than 7 bytes"),
        local_bundle(url),
    ):
        pass


def test_an_error_has_no_credentials() -> None:
    with (
        pytest.raises(OutriderError) as caught,
        local_bundle("http://user:s3cret@127.0.0.1:9/bundle?X-Amz-Signature=s3cret"),
    ):
        pass
    assert "s3cret" not in str(caught.value) and "127.0.0.1" in str(caught.value)
