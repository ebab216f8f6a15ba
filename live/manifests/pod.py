"""The parts of a pod that serves a target with a bundle's speculator."""

import dataclasses
from typing import Any

from outrider.common.errors import OutriderError
from outrider.live.manifests.cluster import ClusterSettings

SPECULATOR = "/mnt/speculator"
"""Where a bundle lies in the container."""

MODEL = "/mnt/models"
"""Where the target lies in the container; KServe mounts it there."""


@dataclasses.dataclass(frozen=True)
class Mounted:
    """A model in a pod: how it gets there, and where it lies."""

    volume: dict[str, Any]
    mount: dict[str, Any]
    downloads: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Init containers, which run before the server."""


def mounted(name: str, source: str, path: str, settings: ClusterSettings) -> Mounted:
    """The model at the address `source`, read-only at `path` in the container.

    `pvc://CLAIM/PATH` is mounted. `oci://` is a volume of the image, whose files are below /models
    as the export writes them (Kubernetes 1.33). Others are downloaded by KServe's initializer.
    """
    scheme, _, rest = source.partition("://")
    mount = {"name": name, "mountPath": path, "readOnly": True}
    if scheme == "pvc":
        claim, _, folder = rest.partition("/")
        volume: dict[str, Any] = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        return Mounted(
            {"name": name, **volume}, mount | ({"subPath": folder.strip("/")} if folder else {})
        )
    if scheme == "oci":
        volume = {"image": {"reference": rest, "pullPolicy": "IfNotPresent"}}
        return Mounted({"name": name, **volume}, mount | {"subPath": "models"})
    download = {
        "name": f"download-{name}",
        "image": settings.initializer_image,
        # The initializer writes a revision of the hub behind a colon.
        "args": [source.replace("@", ":") if scheme == "hf" else source, path],
        "volumeMounts": [{"name": name, "mountPath": path}],
    }
    return Mounted({"name": name, "emptyDir": {}}, mount, [download])


def environment(settings: ClusterSettings, variables: dict[str, str]) -> list[dict[str, Any]]:
    """A container's variables, and the server's key from its secret."""
    found: list[dict[str, Any]] = [
        {"name": name, "value": value} for name, value in sorted(variables.items())
    ]
    if settings.api_key_secret is not None:
        key = {"secretKeyRef": {"name": settings.api_key_secret, "key": "api-key"}}
        found.append({"name": "VLLM_API_KEY", "valueFrom": key})
    return found


def limits(settings: ClusterSettings, gpus: int) -> dict[str, Any]:
    """Resources of one server."""
    count = {settings.gpu_resource: str(gpus)}
    return {"limits": count, "requests": dict(count)}


def image_of(settings: ClusterSettings, vllm: str) -> str:
    """The server's image: the setting, or vLLM's in the version of the evaluation."""
    return settings.image or f"vllm/vllm-openai:v{vllm.partition('+')[0]}"


def model_source(settings: ClusterSettings, target: dict[str, Any], hub_id: bool) -> str:
    """Address of the target: the setting, or the hub's."""
    if settings.model is not None:
        return settings.model
    if not hub_id:
        raise OutriderError(
            f"cluster.model: null, but the bundle's target {target['model']!r} is no hub id; set it"
            " to where the pods read the target from, such as pvc://CLAIM/PATH"
        )
    revision = f"@{target['revision']}" if target.get("revision") else ""
    return f"hf://{target['model']}{revision}"
