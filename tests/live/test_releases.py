"""Releases are checked copies: what happens to the bundle afterwards does not matter."""

import json
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.common.errors import OutriderError
from outrider.common.fingerprint import file_digest
from outrider.live import known_digests
from outrider.live.releases import Releases
from outrider.serving.bundle.bundle_digest import bundle_digest
from tests.fuzzing import changed, examples
from tests.serving.exported import write_exported


@pytest.fixture
def releases(tmp_path):
    return Releases(tmp_path / "state" / "releases")


def test_a_release_is_a_read_only_copy(releases, tmp_path):
    bundle = write_exported(tmp_path / "bundle", k=4)
    address = f"hf://acme/x@{'c' * 40}"
    release = releases.add(bundle, address)
    assert address in (release.directory.parent / "release.json").read_text()
    digest = bundle_digest(bundle)
    assert (release.name, release.digest) == (digest[:12], digest)
    for path in release.directory.rglob("*"):
        assert path.is_dir() or path.stat().st_mode & 0o222 == 0, path
    assert os.access(release.directory / "serve.sh", os.X_OK)
    assert releases.add(write_exported(tmp_path / "same", k=4)) == release
    shutil.rmtree(bundle)
    assert releases.verified(release.name) == release
    assert releases.all() == [release]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: (b / "model.safetensors").write_bytes(b"other"), "model.safetensors: changed"),
        (lambda b: (b / "model.safetensors").unlink(), "model.safetensors: No such file"),
        (lambda b: (b / "bundle.json").unlink(), "bundle.json: no such file"),
        (lambda b: shutil.rmtree(b), "no such folder"),
    ],
)
def test_a_bad_bundle_leaves_nothing(releases, tmp_path, damage, message):
    bundle = write_exported(tmp_path / "bundle")
    damage(bundle)
    with pytest.raises(OutriderError, match=message):
        releases.add(bundle)
    assert not releases.folder.exists() or not list(releases.folder.iterdir())


def test_a_release_that_was_changed_is_not_used(releases, tmp_path):
    release = releases.add(write_exported(tmp_path / "bundle"))
    weights = release.directory / "model.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(b"changed")
    with pytest.raises(OutriderError, match=r"model\.safetensors: changed"):
        releases.verified(release.name)
    # Only the digest of `serve` covers the arguments of the release's servers.
    weights.write_bytes(b"weights")
    assert releases.verified(release.name) == release
    manifest = json.loads((release.directory / "bundle.json").read_text())
    manifest["serve"]["arguments"]["max_num_seqs"] = 1
    (release.directory / "bundle.json").chmod(0o644)
    (release.directory / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(OutriderError, match=r"bundle: changed since it was added"):
        releases.verified(release.name)
    with pytest.raises(OutriderError, match="no such release; kept are: " + release.name):
        releases.get("000000000000")


def test_only_old_releases_that_nobody_needs_are_deleted(releases, tmp_path):
    bundles = [write_exported(tmp_path / word, weights=word.encode()) for word in "abcde"]
    added = [releases.add(bundle).name for bundle in bundles]
    shutil.copytree(releases.folder / added[0], releases.folder / f".{added[0]}.77.tmp")  # killed
    releases.prune(2, in_use={added[1]})
    assert [release.name for release in releases.all()] == [added[1], *added[3:]]
    assert not list(releases.folder.glob(".*")), "nothing half-deleted"


@pytest.fixture
def reads(monkeypatch):
    """Inodes of the weights that this process reads; times are precise enough to trust."""
    inodes = []

    def read(path):
        if path.name == "model.safetensors":
            inodes.append(path.stat().st_ino)
        return file_digest(path)

    monkeypatch.setattr(known_digests, "file_digest", read)
    monkeypatch.setattr(known_digests, "TICK_NS", -1)
    return inodes


def test_a_deployment_reads_each_file_once(world, reads):
    assert world.deploy("better").outcome == "promoted"
    assert world.deploy("worse").outcome == "rolled_back"
    # Those of three bundles and of their copies; each bundle has two files of weights.
    assert len(reads) == len(set(reads)) == 2 * 6


def test_a_file_rewritten_with_its_old_time_is_read_again(releases, tmp_path, reads):
    release = releases.add(write_exported(tmp_path / "bundle", weights=b"2.0"))
    weights = release.directory / "model.safetensors"
    before = weights.stat()
    weights.chmod(0o644)
    weights.write_bytes(b"2.1")
    weights.chmod(before.st_mode)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(OutriderError, match=r"model\.safetensors: changed"):
        releases.verified(release.name)


def test_a_file_that_may_change_within_the_clocks_tick_is_read_again(
    releases, tmp_path, reads, monkeypatch
):
    monkeypatch.setattr(known_digests, "TICK_NS", 10**15)
    release = releases.add(write_exported(tmp_path / "bundle"))
    releases.verified(release.name)
    releases.verified(release.name)
    assert len(reads) == 2 * 4 and len(set(reads)) == 2 * 2


@examples(100)
@given(data=st.data())
def test_damaged_facts_of_a_release_name_its_folder(tmp_path_factory, data) -> None:
    folder = tmp_path_factory.mktemp("state") / "releases" / "4f1d0c2a9b77"
    write_exported(folder / "bundle")
    facts = {"digest": "4f" * 32, "serve_digest": "0" * 64, "source": "x", "added_at": 1.0}
    (folder / "release.json").write_text(json.dumps(data.draw(changed(facts))))
    releases = Releases(folder.parent)
    try:
        assert [release.name for release in releases.all()] == [folder.name]
    except OutriderError as error:
        assert str(folder) in str(error)
