"""The section `cluster` of an endpoint: what a Kubernetes manifest needs besides the bundle."""

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

SOURCE = re.compile(r"(hf|s3|gs|oci|pvc)://[A-Za-z0-9][A-Za-z0-9._:@/+-]*")
"""Addresses that a pod can read a model from."""

NOT_FROM_A_BUNDLE = ("own", "none")
"""Values of `stable` that name no bundle."""


class ClusterSettings(BaseModel):
    """Where a cluster reads the models from and what runs there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    namespace: str = Field(default="default", pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    """Namespace of all objects."""

    model: str | None = None
    """Where the pods read the target from: `hf://`, `s3://`, `gs://`, `oci://` or
    `pvc://CLAIM/PATH`. null: `hf://` and the bundle's `target.model`, at its revision."""

    speculator: str | None = None
    """Where the pods read the new bundle from, in the same forms. null: the address that
    `deploy-speculator` is given, where it is one."""

    stable: str | None = None
    """What the stable group of KServe serves: the address of the bundle in use, `own` (the target's
    own drafter) or `none` (no speculation). An Argo Rollout keeps what it serves."""

    image: str | None = None
    """Container image with vLLM. null: `vllm/vllm-openai` in the version of the evaluation."""

    initializer_image: str = "kserve/storage-initializer:v0.21.0"
    """Image of the init container that downloads `hf://`, `s3://` and `gs://`."""

    service_account: str | None = None
    """Service account of the pods, with the credentials of the store. null: the namespace's."""

    api_key_secret: str | None = None
    """Secret whose entry `api-key` becomes the server's key. null: no key."""

    gpu_resource: str = "nvidia.com/gpu"
    """Name of the GPUs in the pod's limits."""

    gateway: str = "outrider"
    """Gateway (Gateway API) that an Argo Rollout's HTTPRoute belongs to."""

    prometheus: str = "http://prometheus.monitoring.svc:9090"
    """Prometheus that an Argo Rollout's analysis reads."""

    window_seconds: int = Field(default=600, ge=60)
    """Length of the analysis' window, and least length of a step, in seconds."""

    verdict: Literal["limits", "controller"] = "limits"
    """What promotes an Argo Rollout. `limits`: ratios of vLLM's metrics against the policy's fixed
    limits, once per step. `controller`: the sequential test of an Outrider controller whose metrics
    Prometheus scrapes (`outrider_canary_verdict`); the limits still abort."""

    @field_validator("model", "speculator", "stable")
    @classmethod
    def _is_a_source(cls, value: str | None) -> str | None:
        if value is None or value in NOT_FROM_A_BUNDLE or SOURCE.fullmatch(value):
            return value
        raise ValueError(
            f"{value}: not an address that a pod can read; write hf://OWNER/NAME, s3://BUCKET/PATH,"
            " gs://BUCKET/PATH, oci://REGISTRY/NAME:TAG or pvc://CLAIM/PATH"
        )
