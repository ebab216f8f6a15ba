"""The manifests have only fields that the definitions of their kinds have."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from outrider.live.manifests import ManifestKind
from tests.live.test_manifests import written

TABLE = yaml.safe_load(Path(__file__).with_name("manifest_fields.yaml").read_text("utf-8"))
"""Kind -> version, source, and the fields at each level."""

SCALARS = {"string": str, "integer": int, "boolean": bool}

CLUSTERS: list[dict[str, Any]] = [
    {},
    {"stable": "none", "service_account": "models"},
    {"stable": "pvc://releases/february", "speculator": "oci://registry.example/resume:march"},
    {"model": "pvc://models/r1", "api_key_secret": "keys", "verdict": "controller"},
]
"""Sections `cluster` that between them use every branch of the templates."""

Fields = dict[str, Any]


def has_type(value: object, kind: str) -> bool:
    if " | " in kind:
        return value in kind.split(" | ")
    return any(type(value) is SCALARS[name] for name in kind.split(" or "))


def faults(value: Any, path: str, kind: str, fields: Fields) -> Iterator[str]:
    """Fields below `path` that the definition lacks, and values of another type."""
    if kind == "any":
        return
    if kind == "map":
        if not all(isinstance(inner, str) for inner in value.values()):
            yield f"{path}: values are not all text"
    elif kind == "object":
        known = fields.get(path, {})
        for name, inner in value.items():
            if name not in known:
                yield f"{path}.{name}"
            else:
                yield from faults(inner, f"{path}.{name}", known[name], fields)
    elif kind == "array":
        of_items = fields.get(f"{path}[]", {})
        for item in value:
            inner_kind = of_items if isinstance(of_items, str) else "object"
            yield from faults(item, f"{path}[]", inner_kind, fields)
    elif not has_type(value, kind):
        yield f"{path}: {value!r} is not {kind}"


def faults_of(document: dict[str, Any]) -> list[str]:
    definition = TABLE[document["kind"]]
    assert document["apiVersion"] == definition["apiVersion"]
    assert document.keys() == {"apiVersion", "kind", "metadata", "spec"}
    of_metadata = TABLE["metadata"]["fields"]
    return [
        *faults(document["metadata"], "metadata", "object", of_metadata),
        *faults(document["spec"], "spec", "object", definition["fields"]),
    ]


def checked_objects(value: Any, path: str, kind: str, fields: Fields) -> Iterator[dict[str, Any]]:
    """The objects whose fields the definition lists."""
    if kind == "object" and isinstance(value, dict):
        yield value
        for name, inner in list(value.items()):
            yield from checked_objects(inner, f"{path}.{name}", fields[path][name], fields)
    elif kind == "array":
        for item in value:
            inner_kind = "object" if isinstance(item, dict) else "any"
            yield from checked_objects(item, f"{path}[]", inner_kind, fields)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=range(len(CLUSTERS)))
@pytest.mark.parametrize("kind", ["kserve", "argo"])
def test_every_field_is_in_the_definition(
    kind: ManifestKind, cluster: dict[str, Any], tmp_path: Path
) -> None:
    for document in written(kind, tmp_path, **cluster).values():
        assert faults_of(document) == [], document["kind"]


@pytest.mark.parametrize("kind", ["kserve", "argo"])
def test_a_misspelled_field_is_reported_at_every_level(kind: ManifestKind, tmp_path: Path) -> None:
    for document in written(kind, tmp_path, **CLUSTERS[3]).values():
        fields = TABLE[document["kind"]]["fields"]
        count = len(list(checked_objects(document["spec"], "spec", "object", fields)))
        for index in range(count):
            changed = copy.deepcopy(document)
            objects = list(checked_objects(changed["spec"], "spec", "object", fields))
            objects[index]["replica"] = 3
            (fault,) = faults_of(changed)
            assert fault.endswith(".replica")


def test_a_value_of_another_type_is_reported(tmp_path: Path) -> None:
    stable, _ = written("kserve", tmp_path).values()
    stable["spec"]["replicas"] = "3"
    stable["spec"]["router"]["route"]["weight"] = True
    assert faults_of(stable) == [
        "spec.replicas: '3' is not integer",
        "spec.router.route.weight: True is not integer",
    ]


def test_the_table_has_no_kind_that_no_manifest_uses(tmp_path: Path) -> None:
    kinds = set[str]()
    for kind in ("kserve", "argo"):
        kinds |= {name for name, _ in written(kind, tmp_path / kind)}
    assert kinds == TABLE.keys() - {"metadata"}
