"""KServe: two LLMInferenceServices of one routing group, which share its requests by weight."""

from typing import Any

from outrider.live.manifests.parts import Parts
from outrider.live.manifests.pod import SPECULATOR, environment, limits, mounted
from outrider.serving.serve_flags import without_quotes

API = "serving.kserve.io/v1alpha2"


def kserve_objects(parts: Parts) -> list[dict[str, Any]]:
    """The stable service and the canary, with the first share of the policy."""
    share = parts.policy.shares[0]
    # Weights are whole numbers and proportional: hundredths of a percent.
    canary = round(100 * share)
    return [
        _service(parts, "stable", parts.stable_source(), 10_000 - canary, parts.stable_replicas),
        _service(parts, "canary", parts.speculator, canary, parts.canary_replicas),
    ]


def kserve_notes(parts: Parts) -> list[str]:
    """How the canary goes on: the head of the manifest."""
    group, namespace = parts.name, parts.settings.namespace
    lines = [
        f"Routing group {group!r}: all members serve the model name {parts.model_name!r}.",
        "Next share: change both weights, which sum to 10000:",
    ]
    for share in parts.policy.shares[1:]:
        weight = round(100 * share)
        for role, value in (("canary", weight), ("stable", 10_000 - weight)):
            patch = f'{{"spec":{{"router":{{"route":{{"weight":{value}}}}}}}}}'
            lines.append(
                f"  kubectl -n {namespace} patch llmisvc {group}-{role} --type merge -p '{patch}'"
            )
    return [*lines, "Roll back: canary's weight 0, stable's 10000."]


def _service(
    parts: Parts, role: str, speculator: str | None, weight: int, replicas: int
) -> dict[str, Any]:
    settings = parts.settings
    flags = parts.flags if speculator == parts.speculator else parts.flags_of_stable()
    container: dict[str, Any] = {
        "name": "main",
        "image": parts.image,
        "env": environment(
            settings,
            flags.environment | {"VLLM_ADDITIONAL_ARGS": without_quotes(flags.groups)},
        ),
        "resources": limits(settings, parts.flags.gpus),
    }
    template: dict[str, Any] = {"containers": [container]}
    if speculator is not None:
        model = mounted("speculator", speculator, SPECULATOR, settings)
        container["volumeMounts"] = [model.mount]
        template["volumes"] = [model.volume]
        if model.downloads:
            template["initContainers"] = model.downloads
    if settings.service_account is not None:
        template["serviceAccountName"] = settings.service_account
    return {
        "apiVersion": API,
        "kind": "LLMInferenceService",
        "metadata": {
            "name": f"{parts.name}-{role}",
            "namespace": settings.namespace,
            **parts.marks(with_digest=role == "canary"),
        },
        "spec": {
            "model": {"uri": parts.model, "name": parts.model_name},
            "replicas": replicas,
            "router": {"gateway": {}, "route": {"group": parts.name, "weight": weight}},
            "template": template,
        },
    }
