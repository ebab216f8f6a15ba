"""`deploy-speculator BUNDLE --manifest kserve|argo`: a canary for a cluster, as YAML.

    print(write_manifest("kserve", Path("runs/march/bundle"), load_endpoint("endpoints/r1.yaml")))

Nothing is sent to a cluster. The endpoint's section `cluster` says where the pods read the models.
"""

import contextlib
from pathlib import Path
from typing import Any, Literal

import yaml

from outrider.live.endpoint_file import Endpoint
from outrider.live.manifests.argo import argo_notes, argo_objects
from outrider.live.manifests.kserve import kserve_notes, kserve_objects
from outrider.live.manifests.parts import parts_of
from outrider.serving.bundle.bundle_places import local_bundle, pinned

ManifestKind = Literal["kserve", "argo"]


def write_manifest(kind: ManifestKind, bundle: str | Path, endpoint: Endpoint) -> str:
    """The manifest's YAML: comments, then one document per object.

    `bundle`: a folder or an address that `export-speculator --to` wrote; its files are checked
    against bundle.json. A missing setting is an `OutriderError` that names its key.
    """
    place = pinned(bundle)
    source = place if "://" in place else None
    with contextlib.ExitStack() as stack:
        parts = parts_of(stack.enter_context(local_bundle(place)), endpoint, source)
    objects: list[dict[str, Any]]
    if kind == "kserve":
        objects, notes = kserve_objects(parts), kserve_notes(parts)
    else:
        objects, notes = argo_objects(parts), argo_notes(parts)
    head = [f"Release {parts.release} on endpoint {parts.endpoint}.", *notes]
    documents = [yaml.safe_dump(each, sort_keys=False, width=100) for each in objects]
    return "".join(f"# {line}\n" for line in head) + "---\n" + "---\n".join(documents)
