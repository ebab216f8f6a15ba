"""`outrider deploy BUNDLE --manifest kserve|argo`: a canary for a cluster, as YAML.

    print(write_manifest("kserve", Path("runs/march/bundle"), load_endpoint("endpoints/r1.yaml")))

Nothing is sent to a cluster. The addresses of the models come from the endpoint's `cluster`
section, and the objects from templates/kserve.yaml.j2 and templates/argo.yaml.j2.
"""

import dataclasses
from pathlib import Path
from typing import Literal

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.live.endpoint_file import Endpoint
from outrider.live.releases import BundleManifest, ManifestTarget
from outrider.live.templates import render_template
from outrider.serving.bundle.bundle_digest import MANIFEST, bundle_digest, serve_digest
from outrider.serving.bundle.bundle_places import local_bundle, pin_location
from outrider.serving.config import hub_id
from outrider.serving.hooked import HOOKED
from outrider.serving.runner import runner_with
from outrider.serving.serve_flags import ServeFlags, read_serve_flags, without_quotes
from outrider.serving.speculator import Drafting, Speculator
from outrider.speculators.kinds import kind_named
from outrider.speculators.lookup_history import HISTORY_FILE

SPECULATOR, MODEL = "/mnt/speculator", "/mnt/models"
"""Container folders of the bundle and the target; KServe mounts targets at /mnt/models."""

ManifestKind = Literal["kserve", "argo"]


def write_manifest(kind: ManifestKind, bundle: str | Path, endpoint: Endpoint) -> str:
    """Returns the manifest's YAML: comments, then one document per object.

    `bundle`: a folder or an address that `outrider export RUN --to` wrote to; its files are
    checked against bundle.json. Raises an `OutriderError` that names the key of a missing setting.
    """
    source = pin_location(bundle)
    with local_bundle(source) as directory:
        digest = bundle_digest(directory)
        manifest: BundleManifest = read_json(directory / MANIFEST)
        flags = read_serve_flags(directory, SPECULATOR)
    cluster = endpoint.cluster
    if HISTORY_FILE in manifest["files"]:
        if cluster.image is None:
            package = kind_named(manifest["method"]).package or "what the kind needs"
            raise OutriderError(
                f"cluster.image: missing; {HISTORY_FILE} of this bundle is loaded by Outrider,"
                f" which vLLM's image lacks; set an image with vLLM, Outrider and {package}"
            )
        flags = dataclasses.replace(flags, environment=flags.environment | HOOKED)
    target = manifest["target"]
    speculator = cluster.speculator or (source if "://" in source else None)
    if speculator is None:
        raise OutriderError(
            f"cluster.speculator: missing; pods cannot read {bundle}. Copy the bundle with"
            " `outrider export RUN --to` and set the address (hf://, s3://, gs://, oci:// or"
            " pvc://CLAIM/PATH)"
        )
    name = hub_id(target["model"])
    model = cluster.model or _hub_source(target, name)
    image = cluster.image or f"vllm/vllm-openai:v{manifest['vllm'].partition('+')[0]}"
    object_name = endpoint.name.replace("_", "-").strip("-")  # a DNS label
    canary_replicas = max(1, len(endpoint.canary))
    values: dict[str, object] = {
        "name": object_name,
        "endpoint": endpoint.name,
        "cluster": cluster,
        "policy": endpoint.policy,
        "release": digest[:12],
        "digest": digest,
        "serve_digest": serve_digest(manifest),
        "image": image,
        "target": "@".join(filter(None, [target["model"], target.get("revision")])),
        "gpus": flags.gpus,
        "model": _mounted("model", model, MODEL),
        "model_name": name or Path(target["model"]).name,
        "speculator": _mounted("speculator", speculator, SPECULATOR),
        "stable_replicas": len(endpoint.stable),
        "canary_replicas": canary_replicas,
    }
    if kind == "argo":
        for share in endpoint.policy.shares:
            if share != int(share):
                raise OutriderError(
                    f"policy.shares: {share:g}: an Argo Rollout takes whole percents; round it"
                )
        return render_template(
            "argo.yaml.j2", words=flags.words, environment_of_flags=flags.environment, **values
        )
    stable, stable_flags = _stable(cluster.stable, flags, manifest)
    return render_template(
        "kserve.yaml.j2",
        stable=_mounted("speculator", stable, SPECULATOR) if stable else None,
        stable_flags=_additional(stable_flags),
        canary_flags=_additional(flags),
        **values,
    )


def _mounted(name: str, source: str, path: str) -> dict[str, str]:
    """A model's volume: `source` read-only at `path` in the container."""
    scheme, _, rest = source.partition("://")
    claim, _, folder = rest.partition("/")
    # An image has its files below /models; what the initializer downloads is at the volume's root.
    folder = {"pvc": folder.strip("/"), "oci": "models"}.get(scheme, "")
    return {"name": name, "source": source, "path": path, "scheme": scheme, "rest": rest,
            "claim": claim, "folder": folder}  # fmt: skip


def _additional(flags: ServeFlags) -> dict[str, str]:
    return flags.environment | {"VLLM_ADDITIONAL_ARGS": without_quotes(flags.groups)}


def _stable(
    stable: str | None, flags: ServeFlags, manifest: BundleManifest
) -> tuple[str | None, ServeFlags]:
    """Address of the stable group's bundle, if any, and its flags.

    `own`, the target's own drafter, gets the k that the evaluation chose for the base. A stable
    bundle gets the flags of the new bundle; if its k or kind differs, the user must replace them
    with those in its serve.sh.
    """
    if stable is None:
        raise OutriderError(
            "cluster.stable: missing; set it to the address of the bundle in use, to `own` (the"
            " target's own drafter) or to `none` (no speculation)"
        )
    if stable == "none":
        return None, flags.replacing(None)
    if stable != "own":
        return stable, flags
    k = (manifest.get("evidence") or {}).get("k", {}).get("base")
    if k is None or not kind_named(manifest["method"]).has_weights:
        raise OutriderError(
            "cluster.stable: own, but the bundle has no k or is not of the kind of the target's own"
            " drafter; set cluster.stable: none, or the address of a bundle"
        )
    drafter = Speculator(manifest["method"], Path(MODEL))
    drafting = Drafting(drafter, k, manifest["draft_sample_method"])
    runner = runner_with(drafter.drafter_kind, flags.arguments, flags.environment)
    return None, flags.replacing(drafting.settings(runner))


def _hub_source(target: ManifestTarget, name: str | None) -> str:
    """The target's address on the hub, at the evaluated revision."""
    if name is None:
        raise OutriderError(
            f"cluster.model: null, but the bundle's target {target['model']!r} is not a hub id; set"
            " it to an address that the pods can read, such as pvc://CLAIM/PATH"
        )
    revision = f"@{target['revision']}" if target.get("revision") else ""
    return f"hf://{name}{revision}"
