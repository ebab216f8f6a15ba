"""The digest of a bundle covers every listed file and no name outside of it."""

import contextlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.common.errors import OutriderError
from outrider.serving.bundle.bundle_digest import bundle_digest, check_files, list_files
from outrider.serving.bundle.bundle_places import local_bundle
from tests.fuzzing import changed, examples


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    (folder / "twin").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "twin" / "model.safetensors").write_bytes(b"weights")
    return folder


def listed(folder: Path, **changed: str) -> None:
    found = list_files(folder)
    found["files"] |= changed
    found["sizes"] |= dict.fromkeys(changed, 0)
    (folder / "bundle.json").write_text(json.dumps(found))


def test_the_digest_is_of_the_files_and_not_of_the_evidence(bundle: Path) -> None:
    listed(bundle)
    digest = bundle_digest(bundle)
    manifest = json.loads((bundle / "bundle.json").read_text())
    manifest["files"] = dict(reversed(manifest["files"].items()))
    (bundle / "bundle.json").write_text(json.dumps(manifest | {"evidence": {"speed": 1.2}}))
    assert bundle_digest(bundle) == digest
    for weights in (b"other weights", b"WEIGHTS"):
        (bundle / "twin" / "model.safetensors").write_bytes(weights)
        with pytest.raises(OutriderError, match=r"twin/model\.safetensors: changed"):
            bundle_digest(bundle)
    listed(bundle)
    assert bundle_digest(bundle) != digest


@pytest.mark.attack("bundles")
@pytest.mark.parametrize(
    "name",
    [
        "../config.json", "/etc/passwd", "twin/../../config.json", "", "a//b", "..\\a", "./a",
        "a/", "a\nb", "a\0b", "C:\\a", "a*", "x" * 300,
    ],
)  # fmt: skip
def test_a_name_outside_of_the_bundle_is_refused(bundle: Path, name: str) -> None:
    listed(bundle, **{name: "0" * 64})
    with pytest.raises(OutriderError, match="not inside the bundle"):
        bundle_digest(bundle)


@pytest.mark.attack("bundles")
@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("files", None, r"bundle\.json: files"),
        ("files", {}, r"bundle\.json: files"),
        ("files", {"config.json": "abc"}, r"bundle\.json: files"),
        ("sizes", 3, "changed since"),
        ("sizes", -1, "not a number of bytes"),
        ("sizes", "7", "not a number of bytes"),
        ("sizes", True, "not a number of bytes"),
        ("sizes", 2**60, "bytes, above"),
        ("sizes", None, "not a number of bytes"),
    ],
)
def test_a_manifest_has_digests_and_the_sizes_of_the_files_up_to_a_limit(
    bundle: Path, key: str, value: object, message: str
) -> None:
    manifest = list_files(bundle)
    if key == "sizes":
        value = manifest["sizes"] | {"twin/model.safetensors": value}
    (bundle / "bundle.json").write_text(json.dumps(manifest | {key: value}))
    with pytest.raises(OutriderError, match=message):
        check_files(bundle)


def _link(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)
    if target.is_file():
        target.rename(path.parent.parent / "elsewhere")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.attack("bundles")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: (b / "extra.safetensors").touch(), "extra.safetensors: bundle.json does not"),
        (lambda b: (b / "twin" / "x").touch(), "twin/x: bundle.json does not"),
        (lambda b: (b / "more").symlink_to("/etc"), "more: bundle.json does not"),
        (lambda b: _link(b / "config.json"), "config.json: a link"),
        (lambda b: _link(b / "twin"), "twin: a link"),
        (lambda b: _link(b / "bundle.json"), "bundle.json: a link"),
        (lambda b: _pipe(b / "config.json"), "config.json: not a regular file"),
        (lambda b: (b / "config.json").unlink(), "config.json: No such file"),
    ],
)
def test_a_bundle_has_its_listed_plain_files_and_no_others(bundle, damage, message) -> None:
    listed(bundle)
    (bundle / "README.md").write_text("of the hub")
    check_files(bundle)
    damage(bundle)
    with pytest.raises(OutriderError, match=message), local_bundle(bundle):
        pass


@pytest.mark.attack("bundles")
@examples(300)
@given(st.data())
def test_any_manifest_is_read_or_refused(bundle: Path, data: st.DataObject) -> None:
    listed(bundle)
    manifest = json.loads((bundle / "bundle.json").read_text())
    drawn = data.draw(changed(manifest))
    (bundle / "bundle.json").write_text(json.dumps(drawn))
    with contextlib.suppress(OutriderError):
        check_files(bundle)
    (bundle / "bundle.json").write_text(json.dumps(manifest))
    check_files(bundle)
