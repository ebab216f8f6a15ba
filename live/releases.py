"""Releases of a live endpoint: immutable copies of bundles, the last few kept for rollback.

    releases = Releases(state_dir / "releases")
    release = releases.add(Path("runs/march/bundle"))
    release.name, release.digest, release.directory

    releases/4f1d0c2a9b77/bundle/         what replicas load: the files of bundle.json, read-only
    releases/4f1d0c2a9b77/release.json    digest, source address, time added

A release is named by its digest (bundle_digest.py). The original may be changed or deleted once it
has been added. The copy is hashed, so the checked files are the ones that are kept.
"""

import dataclasses
import math
import shutil
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import NotRequired, TypedDict

from outrider.common.errors import OutriderError
from outrider.common.files import SCRATCH, publish, read_json, write_json
from outrider.common.redaction import without_credentials
from outrider.live.endpoint_file import CanaryPolicy
from outrider.live.known_digests import known_file_digest
from outrider.serving.admin.replica import Watch
from outrider.serving.bundle.bundle_digest import (
    MANIFEST,
    bundle_digest,
    check_files,
    read_manifest,
    serve_digest,
)
from outrider.serving.bundle.erase import erase_keys
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.speculators.checkpoints.model_config import read_config

_FACTS = "release.json"

WATCH_LEVEL = 0.01
"""Largest probability that a replica's watch reverts a speculator that performs as predicted."""


class AcceptanceEvidence(TypedDict, total=False):
    """Acceptance lengths of the evaluation, and their ratio."""

    base: float | None
    custom: float | None
    ratio: float | None
    ratio_ci95: tuple[float, float] | None


class BundleEvidence(TypedDict, total=False):
    """The evidence in bundle.json, as far as a deployment reads it."""

    k: dict[str, int | None]
    acceptance_length: AcceptanceEvidence | None


class ManifestTarget(TypedDict):
    """`target.model` and `target.revision` of the recipe."""

    model: str
    revision: str | None


class BundleManifest(TypedDict):
    """bundle.json, as far as a deployment reads it."""

    method: str
    num_speculative_tokens: int
    num_speculative_tokens_per_batch_size: list[tuple[int, int, int]] | None
    draft_sample_method: str
    files: dict[str, str]
    target: ManifestTarget
    vllm: str
    serve: dict[str, object]
    evidence: BundleEvidence | None


class _Facts(TypedDict):
    """release.json; `serve_digest` is missing in releases of older versions."""

    digest: str
    serve_digest: NotRequired[str]
    source: str
    added_at: float


@dataclasses.dataclass(frozen=True)
class Release:
    """A bundle that an endpoint keeps."""

    name: str
    """The first 12 digits of the digest; the version that replicas report."""
    digest: str
    """`bundle_digest` of the bundle."""
    serve_digest: str
    """`serve_digest` of the bundle when it was added."""
    added_at: float
    """Unix time in seconds."""
    directory: Path
    """The directory that replicas load."""
    manifest: BundleManifest
    """Content of bundle.json."""

    @property
    def kind(self) -> str:
        """Drafter kind."""
        self._require("method")
        return str(self.manifest["method"])

    @property
    def k(self) -> int:
        """Drafts per step that the bundle is served with."""
        self._require("num_speculative_tokens")
        return int(self.manifest["num_speculative_tokens"])

    def _require(self, key: str) -> None:
        """Raises an `OutriderError` for a key that a bundle written by hand may lack."""
        if key not in self.manifest:
            raise OutriderError(
                f"{self.directory / MANIFEST}: no key {key}; export the bundle again"
            )


@dataclasses.dataclass(frozen=True)
class Releases:
    """The folder of releases."""

    folder: Path

    def add(self, bundle: Path, source: str | None = None) -> Release:
        """Copies and checks a bundle; returns its release, new or existing.

        `source` is its address, including the commit if it is in a hub repository. Raises an
        `OutriderError` if a file is missing, differs from bundle.json, or is a link. If the disk is
        full, nothing is left behind.
        """
        digest = digest_of(bundle)
        name = release_name(digest)
        folder = self.folder / name
        if not folder.is_dir():
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with publish(folder) as temporary:
                copy = temporary / "bundle"
                for file in (*check_files(bundle), MANIFEST):
                    (copy / file).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(bundle / file, copy / file, follow_symlinks=False)
                # Read-only before it is hashed: a later change of the mode would be a change.
                for path in copy.rglob("*"):
                    if path.is_file():
                        _make_read_only(path)
                if digest_of(copy) != digest:
                    raise OutriderError(f"{bundle}: changed while it was being copied; try again")
                source = without_credentials(source or str(bundle))
                facts: _Facts = {
                    "digest": digest,
                    "serve_digest": serve_digest(read_manifest(copy)),
                    "source": source,
                    "added_at": time.time(),
                }
                write_json(temporary / _FACTS, facts)
                _make_read_only(temporary / _FACTS)
        return self.get(name)

    def add_without(
        self, bundle: Path, keys: Collection[bytes] | None, source: str | None = None
    ) -> tuple[Release, int]:
        """Adds a copy of a bundle without these sessions; None: without any.

        Returns its release, and the number of responses that it lacks. `keys` are `session_key`s.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Here, not in TMPDIR: what a killed process leaves is customer text, and is cleared.
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=SCRATCH) as scratch:
            copy = Path(scratch) / "bundle"
            shutil.copytree(bundle, copy)
            erased = erase_keys(copy, keys)
            return self.add(copy, source), erased

    def get(self, name: str) -> Release:
        """Returns a release by name; raises an `OutriderError` if it is gone."""
        folder = self.folder / name
        if not folder.is_dir():
            names = ", ".join(release.name for release in self.all()) or "none"
            raise OutriderError(f"{folder}: no such release; kept are: {names}")
        facts: _Facts = read_json(folder / _FACTS)
        manifest: BundleManifest = read_json(folder / "bundle" / MANIFEST)
        try:
            return Release(
                name=name,
                digest=str(facts["digest"]),
                serve_digest=str(facts.get("serve_digest", serve_digest(manifest))),
                added_at=float(facts["added_at"]),
                directory=folder / "bundle",
                manifest=manifest,
            )
        except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise OutriderError(
                f"{folder}: {_FACTS} or {MANIFEST} is damaged ({error!r:.100}); delete the folder"
                " and deploy the bundle again"
            ) from None

    def verified(self, name: str) -> Release:
        """Returns a release after comparing its files and `serve` with its digests."""
        release = self.get(name)
        digests = (digest_of(release.directory), serve_digest(release.manifest))
        if digests != (release.digest, release.serve_digest):
            raise OutriderError(
                f"{release.directory}: changed since it was added; delete the folder and deploy"
                " the bundle again"
            )
        return release

    def all(self) -> list[Release]:
        """All releases, oldest first."""
        # A release whose bundle somebody deleted is left out.
        folders = (path.parent for path in self.folder.glob(f"[!.]*/{_FACTS}"))
        names = [folder.name for folder in folders if (folder / "bundle" / MANIFEST).is_file()]
        return sorted(map(self.get, names), key=lambda release: release.added_at)

    def prune(self, keep: int, in_use: Collection[str]) -> None:
        """Deletes all but the last `keep` releases and those `in_use`.

        No release may be added meanwhile: the caller must hold the endpoint's lock.
        """
        for release in self.all()[:-keep]:
            if release.name not in in_use:
                self._hide(release.name)
        self.clear()

    def delete(self, name: str) -> None:
        """Deletes a release; the caller must hold the endpoint's lock."""
        self._hide(name)
        self.clear()

    def _hide(self, name: str) -> None:
        """Renames a release, so that none is seen half deleted."""
        (self.folder / name).rename(self.folder / f".{name}.old")

    def clear(self) -> None:
        """Removes what killed processes left; the caller must hold the endpoint's lock."""
        for left in self.folder.glob(".*"):
            shutil.rmtree(left, ignore_errors=True)


def first_release(
    releases: Releases,
    directory: Path,
    k: int,
    *,
    target: TargetConfig | None = None,
    engine: EngineConfig | None = None,
    sample_method: str = "greedy",
) -> Release:
    """Adds the speculator in `directory` as a release to roll back to.

    A bundle is added unchanged. A plain directory or the target's own speculator is made into a
    bundle that drafts `k` tokens per step and has no evaluation evidence.
    """
    from outrider.serving.bundle.bundle import export_bundle
    from outrider.serving.speculator import Drafting, Speculator, served_directory
    from outrider.speculators.kinds import trainable_kind_of

    if not directory.is_dir():
        raise OutriderError(
            f"{directory}: the replicas' speculator is not here; run this command where their"
            " files are"
        )
    if (directory / MANIFEST).is_file():
        return releases.add(directory)
    whole = trainable_kind_of(directory).native(read_config(directory / "config.json"))
    target = target or TargetConfig(model=str(directory))
    engine = engine or EngineConfig()
    with tempfile.TemporaryDirectory(prefix="outrider-") as folder:
        # If `directory` is the whole target, only its own speculator is kept.
        speculator = served_directory(directory, directory, Path(folder)) if whole else directory
        out = Path(folder) / "bundle"
        drafting = Drafting(Speculator.from_name(speculator), k, sample_method)
        export_bundle(
            drafting=drafting,
            target=target,
            engine=engine,
            evidence={},
            out_dir=out,
            other_formats=False,
        )
        return releases.add(out)


def _make_read_only(path: Path) -> None:
    path.chmod(path.stat().st_mode & ~0o222)


def digest_of(bundle: Path) -> str:
    """`bundle_digest` of a bundle or release; reads files that are unchanged once per process."""
    return bundle_digest(bundle, known_file_digest)


def release_name(digest: str) -> str:
    """The name of the release with this digest."""
    return digest[:12]


def watch_of(release: Release, policy: CanaryPolicy) -> Watch | None:
    """Returns the watch that reverts a swap with insufficient acceptance.

    The limit is the evaluated acceptance length, scaled down by the uncertainty of its ratio to
    the base's and by `policy.min_acceptance_ratio`, because live traffic differs a little from
    held-out traffic. None without evidence, or with `watch_requests: 0`.
    """
    lengths = (release.manifest.get("evidence") or {}).get("acceptance_length") or {}
    length = lengths.get("custom")
    if not policy.watch_requests or not length or not math.isfinite(length):
        return None
    ratio = lengths.get("ratio")
    low = (lengths.get("ratio_ci95") or [None])[0]
    if ratio and low:
        length *= min(low / ratio, 1.0)
    # Tokens per step are at least 1 whatever the drafter does.
    return Watch(
        requests=max(policy.watch_requests, 2),  # one request has no spread
        min_tokens_per_step=max(length * policy.min_acceptance_ratio, 1.0),
        level=WATCH_LEVEL,
    )
