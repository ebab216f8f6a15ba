"""The digest of a bundle covers every listed file and no name outside of it."""

import json
from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.common.fingerprint import file_digest
from outrider.serving.live.bundle_digest import bundle_digest


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    (folder / "twin").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "twin" / "model.safetensors").write_bytes(b"weights")
    return folder


def listed(folder: Path, **changed: str) -> None:
    names = ("config.json", "twin/model.safetensors")
    files = {name: file_digest(folder / name) for name in names} | changed
    (folder / "bundle.json").write_text(json.dumps({"version": 1, "files": files}))


def test_the_digest_is_of_the_files_and_not_of_the_evidence(bundle: Path) -> None:
    listed(bundle)
    digest = bundle_digest(bundle)
    manifest = json.loads((bundle / "bundle.json").read_text())
    files = dict(reversed(manifest["files"].items()))
    (bundle / "bundle.json").write_text(json.dumps({"evidence": {"speed": 1.2}, "files": files}))
    assert bundle_digest(bundle) == digest
    (bundle / "twin" / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(OutriderError, match=r"twin/model\.safetensors: missing, or changed"):
        bundle_digest(bundle)
    listed(bundle)
    assert bundle_digest(bundle) != digest


@pytest.mark.parametrize(
    "name", ["../config.json", "/etc/passwd", "twin/../../config.json", "", "a//b", "..\\a"]
)
def test_a_name_outside_of_the_bundle_is_refused(bundle: Path, name: str) -> None:
    listed(bundle, **{name: "0" * 64})
    with pytest.raises(OutriderError, match="not inside of the bundle"):
        bundle_digest(bundle)


@pytest.mark.parametrize("manifest", [[], {}, {"files": {}}, {"files": {"config.json": "abc"}}])
def test_a_manifest_without_digests_is_refused(bundle: Path, manifest: object) -> None:
    (bundle / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(OutriderError, match=r"bundle\.json: files"):
        bundle_digest(bundle)
