"""Argo Rollouts: a canary whose analysis reads the metrics that the controller's judge reads.

The Rollout's pods serve the bundle; the ReplicaSet before them is the stable group. Weights go
through Argo's plugin for the Gateway API. The queries are in `analysis_queries.py`.
"""

import math
from typing import Any

from outrider.common.errors import OutriderError
from outrider.live.manifests.analysis_queries import (
    CANARY,
    INTERVAL_S,
    STABLE,
    Measure,
    guards,
    promotion,
)
from outrider.live.manifests.parts import Parts
from outrider.live.manifests.pod import MODEL, SPECULATOR, environment, limits, mounted

PORT = 8000
SHUTDOWN_S = 280
"""Requests in progress when a pod is taken away are finished for so long; vLLM's default is 0."""
UNROUTED_S = 10
"""Before that, until the gateway sends the pod no more requests."""
PLUGIN = "argoproj-labs/gatewayAPI"
ARGS = [
    {"name": STABLE, "valueFrom": {"podTemplateHashValue": "Stable"}},
    {"name": CANARY, "valueFrom": {"podTemplateHashValue": "Latest"}},
]


def argo_objects(parts: Parts) -> list[dict[str, Any]]:
    """Two Services, the HTTPRoute, the NetworkPolicy, two AnalysisTemplates and the Rollout."""
    return [
        _service(parts, "stable"),
        _service(parts, "canary"),
        _route(parts),
        _network_policy(parts),
        _template(parts, "guards", [_guard(parts, measure) for measure in guards(parts)]),
        _template(parts, "promotion", [_promotion(parts, promotion(parts))]),
        _rollout(parts),
    ]


def argo_notes(parts: Parts) -> list[str]:
    """What the cluster must have: the head of the manifest."""
    return [
        f"Needs Argo Rollouts 1.8 with the plugin {PLUGIN},",
        f"the Gateway {parts.settings.gateway!r}, and a Prometheus that scrapes the pods and keeps",
        "their label rollouts-pod-template-hash as rollouts_pod_template_hash.",
        "The first apply becomes stable at once; each later bundle goes through the canary.",
    ]


def _service(parts: Parts, role: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(parts, f"{parts.name}-{role}"),
        "spec": {
            "selector": _selector(parts),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        },
    }


def _route(parts: Parts) -> dict[str, Any]:
    backends = [
        {"name": f"{parts.name}-{role}", "port": PORT, "weight": weight}
        for role, weight in (("stable", 100), ("canary", 0))
    ]
    # As with the router of `deploy-speculator`: nothing but the API, and never the admin route.
    # A longer prefix wins, and a rule without backends answers with an error.
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": _metadata(parts, parts.name),
        "spec": {
            "parentRefs": [{"name": parts.settings.gateway}],
            "rules": [
                {
                    "name": "api",
                    "matches": [
                        {"path": {"type": "PathPrefix", "value": "/v1"}},
                        {"path": {"type": "Exact", "value": "/health"}},
                    ],
                    "backendRefs": backends,
                    "timeouts": {"request": "0s", "backendRequest": "0s"},
                },
                {
                    "name": "no-admin",
                    "matches": [{"path": {"type": "PathPrefix", "value": "/v1/admin"}}],
                },
            ],
        },
    }


def _network_policy(parts: Parts) -> dict[str, Any]:
    """Pods of the cluster reach the API's port: the gateway and Prometheus. Nothing else does."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(parts, parts.name),
        "spec": {
            "podSelector": {"matchLabels": _selector(parts)},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"namespaceSelector": {}}], "ports": [{"port": "http"}]}],
        },
    }


def _template(parts: Parts, role: str, metrics: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "AnalysisTemplate",
        "metadata": _metadata(parts, f"{parts.name}-{role}"),
        "spec": {"args": [{"name": STABLE}, {"name": CANARY}], "metrics": metrics},
    }


def _guard(parts: Parts, measure: Measure) -> dict[str, Any]:
    """Fails once the measure is beyond its limit; no data yet is no failure."""
    return {
        "name": measure.name,
        "interval": f"{INTERVAL_S}s",
        "failureCondition": f"len(result) > 0 && {measure.condition}",
        "failureLimit": 0,
        "provider": _prometheus(parts, measure.query),
    }


def _promotion(parts: Parts, measure: Measure) -> dict[str, Any]:
    """Succeeds where the measurement allows the next step; otherwise the step is undecided.

    Fixed limits are measured once, when a whole window has passed: of many looks at noise one
    passes. The controller's test holds at every look, so its verdict is waited for.
    """
    policy, settings = parts.policy, parts.settings
    if settings.verdict == "controller":
        most = max(1, math.ceil(policy.max_seconds / INTERVAL_S))
        delay = policy.min_seconds
        looks: dict[str, Any] = {"interval": f"{INTERVAL_S}s", "consecutiveSuccessLimit": 1}
    else:
        most, delay, looks = 1, max(policy.min_seconds, settings.window_seconds), {"count": 1}
    # A measurement that misses counts as failed for roll_back, and as inconclusive for hold: Argo
    # aborts after too many of the first and pauses the rollout after too many of the second.
    undecided: dict[str, Any] = (
        {"failureLimit": most - 1}
        if policy.on_undecided == "roll_back"
        else {"failureCondition": "false", "inconclusiveLimit": most - 1}
    )
    return {
        "name": measure.name,
        "initialDelay": f"{math.ceil(delay)}s",
        **looks,
        "successCondition": f"len(result) > 0 && {measure.condition}",
        **undecided,
        "provider": _prometheus(parts, measure.query),
    }


def _prometheus(parts: Parts, query: str) -> dict[str, Any]:
    return {"prometheus": {"address": parts.settings.prometheus, "query": query}}


def _rollout(parts: Parts) -> dict[str, Any]:
    settings = parts.settings
    analysis = {"templates": [{"templateName": f"{parts.name}-promotion"}], "args": ARGS}
    steps: list[dict[str, Any]] = [{"setCanaryScale": {"replicas": parts.canary_replicas}}]
    for share in parts.policy.shares[:-1]:
        if share != int(share):
            raise OutriderError(
                f"policy.shares: {share:g}: an Argo Rollout takes whole percents; round it"
            )
        steps += [{"setWeight": int(share)}, {"analysis": analysis}]
    # With every request on the canary's Service all of its pods are needed.
    steps.append({"setCanaryScale": {"matchTrafficWeight": True}})
    strategy = {
        "stableService": f"{parts.name}-stable",
        "canaryService": f"{parts.name}-canary",
        "trafficRouting": {
            "plugins": {PLUGIN: {"httpRoute": parts.name, "namespace": settings.namespace}}
        },
        "analysis": {
            "templates": [{"templateName": f"{parts.name}-guards"}],
            "args": ARGS,
            "startingStep": 2,
        },
        "steps": steps,
    }
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Rollout",
        "metadata": _metadata(parts, parts.name) | {"annotations": _digest(parts)},
        "spec": {
            "replicas": parts.stable_replicas,
            "revisionHistoryLimit": 5,
            "selector": {"matchLabels": _selector(parts)},
            "strategy": {"canary": strategy},
            "template": {
                "metadata": {
                    "labels": _selector(parts) | {"outrider/release": parts.release},
                    "annotations": _digest(parts),
                },
                "spec": _pod(parts),
            },
        },
    }


def _pod(parts: Parts) -> dict[str, Any]:
    settings = parts.settings
    models = [
        mounted("model", parts.model, MODEL, settings),
        mounted("speculator", parts.speculator, SPECULATOR, settings),
    ]
    probe = {"httpGet": {"path": "/health", "port": "http"}}
    pod: dict[str, Any] = {
        "containers": [
            {
                "name": "main",
                "image": parts.image,
                "command": ["vllm", "serve", MODEL],
                "args": [
                    *parts.flags.words,
                    *("--served-model-name", parts.model_name),
                    *("--host", "0.0.0.0", "--port", str(PORT)),
                    *("--shutdown-timeout", str(SHUTDOWN_S)),
                ],
                "env": environment(settings, parts.flags.environment),
                "ports": [{"name": "http", "containerPort": PORT}],
                "resources": limits(settings, parts.flags.gpus),
                # A large target takes most of an hour from a cold disk.
                "startupProbe": probe | {"periodSeconds": 10, "failureThreshold": 360},
                "readinessProbe": probe | {"periodSeconds": 5},
                "livenessProbe": probe | {"periodSeconds": 10, "failureThreshold": 6},
                "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(UNROUTED_S)]}}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [
                    *(model.mount for model in models),
                    {"name": "shared-memory", "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            *(model.volume for model in models),
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
        "terminationGracePeriodSeconds": UNROUTED_S + SHUTDOWN_S + 10,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "automountServiceAccountToken": False,
    }
    if downloads := [each for model in models for each in model.downloads]:
        pod["initContainers"] = downloads
    if settings.service_account is not None:
        pod["serviceAccountName"] = settings.service_account
    return pod


def _metadata(parts: Parts, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": parts.settings.namespace,
        "labels": parts.marks(with_digest=False)["labels"],
    }


def _selector(parts: Parts) -> dict[str, str]:
    return {"app.kubernetes.io/name": parts.name}


def _digest(parts: Parts) -> dict[str, str]:
    return {"outrider/bundle-digest": parts.digest}
