"""Published CustomResourceDefinitions as strict JSON schemas.

OUTRIDER_CRDS is a folder with the YAML files of the projects; without it the checks against them
are skipped. The files are in the repositories of the projects:

    kserve/kserve                   config/crd/full/llmisvc/serving.kserve.io_llminferenceservices.yaml
    argoproj/argo-rollouts          manifests/crds/rollout-crd.yaml, analysis-template-crd.yaml
    kubernetes-sigs/gateway-api     config/crd/standard/gateway.networking.k8s.io_httproutes.yaml
    ray-project/kuberay             helm-chart/kuberay-operator/crds/ray.io_rayjobs.yaml
"""  # noqa: E501

import functools
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

FOLDER = os.environ.get("OUTRIDER_CRDS", "")

needs_crds = pytest.mark.skipif(not FOLDER, reason="OUTRIDER_CRDS names no folder")


@functools.cache
def schemas() -> dict[tuple[str, str], dict[str, Any]]:
    """(apiVersion, kind) -> schema of every version of every definition in the folder."""
    found = {}
    for path in sorted(Path(FOLDER).glob("*.yaml")):
        for document in yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader):
            if not document or document["kind"] != "CustomResourceDefinition":
                continue
            spec = document["spec"]
            for version in spec["versions"]:
                key = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
                found[key] = _strict(version["schema"]["openAPIV3Schema"])
    return found


def problems(document: dict[str, Any]) -> list[str]:
    """What a cluster would refuse or silently drop; empty where it takes the object whole."""
    schema = schemas()[document["apiVersion"], document["kind"]]
    errors = jsonschema.Draft7Validator(schema).iter_errors(document)
    return [f"{'/'.join(str(each) for each in e.absolute_path)}: {e.message}" for e in errors]


def _strict(schema: Any) -> Any:
    """Unknown fields, which a cluster prunes, as errors; the extensions of Kubernetes in JSON."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: {name: _strict(inner) for name, inner in value.items()}
        if key == "properties"
        else _strict(value)
        for key, value in schema.items()
    }
    if schema.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or (
        "additionalProperties" in schema
    )
    if "properties" in schema and not open_ended:
        made["additionalProperties"] = False
    return made
