"""What both manifests are made from: the bundle, the endpoint, and the cluster's settings."""

import dataclasses
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.live.endpoint_file import CanaryPolicy, Endpoint
from outrider.live.manifests.cluster import ClusterSettings
from outrider.live.manifests.pod import MODEL, SPECULATOR, image_of, model_source
from outrider.serving.bundle.bundle_digest import MANIFEST, bundle_digest
from outrider.serving.bundle.model_card import hub_id
from outrider.serving.serve_flags import ServeFlags, read_serve_flags
from outrider.serving.speculator import Speculator


@dataclasses.dataclass(frozen=True)
class Parts:
    """The values of a manifest."""

    name: str
    """Of the endpoint, as Kubernetes writes names."""
    endpoint: str
    """Of the endpoint, as its metrics have it."""
    settings: ClusterSettings
    policy: CanaryPolicy
    image: str
    model: str
    model_name: str
    """Name that requests ask for."""
    speculator: str
    """Address of the new bundle."""
    digest: str
    flags: ServeFlags
    """With the bundle at /mnt/speculator."""
    bundle: dict[str, Any]
    stable_replicas: int
    canary_replicas: int

    @property
    def release(self) -> str:
        """Name of the release: the first 12 digits of the bundle's digest."""
        return self.digest[:12]

    def stable_source(self) -> str | None:
        """Address of the stable group's bundle; None: it has none."""
        stable = self.settings.stable
        if stable is None:
            raise OutriderError(
                "cluster.stable: missing; set it to the address of the bundle in use, to `own` (the"
                " target's own drafter) or to `none` (no speculation)"
            )
        return None if stable in ("own", "none") else stable

    def flags_of_stable(self) -> ServeFlags:
        """The bundle's flags with the stable group's speculation.

        `own`: at the k that the evaluation chose for the base. Another bundle: with the new one's
        k and kind; a release of another k or kind needs the flags of its own serve.sh.
        """
        if self.settings.stable == "none":
            return self.flags.replacing(None)
        if self.settings.stable != "own":
            return self.flags
        k = (self.bundle.get("evidence") or {}).get("k", {}).get("base")
        if k is None:
            raise OutriderError(
                "cluster.stable: own, but the bundle's evidence has no k of the target's own"
                " drafter; set cluster.stable: none, or the address of a bundle"
            )
        own = Speculator(self.bundle["method"], Path(MODEL))
        return self.flags.replacing(own.settings(k, self.bundle["draft_sample_method"]))

    def marks(self, with_digest: bool = True) -> dict[str, Any]:
        """Labels and annotations of an object's metadata."""
        labels = {"app.kubernetes.io/name": self.name, "app.kubernetes.io/part-of": "outrider"}
        if not with_digest:
            return {"labels": labels}
        return {
            "labels": labels | {"outrider/release": self.release},
            "annotations": {"outrider/bundle-digest": self.digest},
        }


def parts_of(bundle: Path, endpoint: Endpoint, source: str | None) -> Parts:
    """Reads the bundle and the endpoint. `source`: the bundle's address, where it has one."""
    settings = endpoint.cluster
    digest = bundle_digest(bundle)
    manifest = read_json(bundle / MANIFEST)
    speculator = settings.speculator or source
    if speculator is None:
        raise OutriderError(
            f"cluster.speculator: missing; pods cannot read {bundle}. Copy the bundle with"
            " `export-speculator --to` and set the address (hf://, s3://, gs://, oci:// or"
            " pvc://CLAIM/PATH)"
        )
    target = manifest["target"]
    name = hub_id(target["model"])
    return Parts(
        name=endpoint.name.replace("_", "-").strip("-"),
        endpoint=endpoint.name,
        settings=settings,
        policy=endpoint.policy,
        image=image_of(settings, manifest["vllm"]),
        model=model_source(settings, target, name is not None),
        model_name=name or Path(target["model"]).name,
        speculator=speculator,
        digest=digest,
        flags=read_serve_flags(bundle, SPECULATOR),
        bundle=manifest,
        stable_replicas=len(endpoint.stable),
        canary_replicas=max(1, len(endpoint.canary)),
    )
