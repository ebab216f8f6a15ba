"""Manifests for clusters: an Argo Rollout and KServe's services."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.live.endpoint_file import Endpoint, load_endpoint
from outrider.live.manifests import ManifestKind, write_manifest
from outrider.serving.bundle.bundle_digest import bundle_digest, list_files
from outrider.speculators.lookup_history import HISTORY_FILE, History
from tests.serving.exported import R1, write_exported

SOURCE = "s3://models/resume/march"


def cluster_endpoint(
    folder: Path, policy: dict[str, Any] | None = None, size: int = 3, **cluster: Any
) -> Endpoint:
    """An endpoint with `size` stable replicas and one canary, and this section `cluster`."""
    values = {
        "state_dir": "state",
        "replicas": [
            *({"name": f"s{i}", "data": f"unix:s{i}.sock"} for i in range(size)),
            {"name": "c", "data": "unix:c.sock", "role": "canary"},
        ],
        "policy": policy or {},
        "cluster": {"stable": "own", "speculator": SOURCE} | cluster,
    }
    path = folder / "resume_eu.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return load_endpoint(path)


def written(
    kind: ManifestKind, folder: Path, policy: dict[str, Any] | None = None, **cluster: Any
) -> dict[tuple[str, str], dict[str, Any]]:
    """(kind, name) -> object."""
    bundle = write_exported(folder / "bundle")
    text = write_manifest(kind, bundle, cluster_endpoint(folder, policy, **cluster))
    documents = list(yaml.safe_load_all(text))
    return {(d["kind"], d["metadata"]["name"]): d for d in documents}


@pytest.mark.parametrize("kind", ["argo", "kserve"])
def test_the_head_shows_what_a_bundle_makes_pods_load(kind: ManifestKind, tmp_path: Path) -> None:
    bundle = write_exported(tmp_path / "bundle")
    manifest = read_json(bundle / "bundle.json")
    manifest["target"] = {"model": "org/r1", "revision": "abc"}
    write_json(bundle / "bundle.json", manifest)
    text = write_manifest(kind, bundle, cluster_endpoint(tmp_path, model="s3://models/r1"))
    version = manifest["vllm"].partition("+")[0]
    assert text.splitlines()[1] == (
        '# Its bundle names the target, "org/r1@abc"; pods run the image'
        f' "vllm/vllm-openai:v{version}".'
    )


def container(document: dict[str, Any]) -> dict[str, Any]:
    (server,) = document["spec"]["template"]["containers"]
    return server


def flags(document: dict[str, Any]) -> set[str]:
    (variable,) = (v for v in container(document)["env"] if v["name"] == "VLLM_ADDITIONAL_ARGS")
    return set(variable["value"].split(" "))


def test_argo_has_the_policys_shares_and_names_that_exist(tmp_path: Path) -> None:
    objects = written("argo", tmp_path, policy={"shares": [5, 25, 100]})
    canary = objects["Rollout", "resume-eu"]["spec"]["strategy"]["canary"]
    steps = canary["steps"]
    assert [step["setWeight"] for step in steps if "setWeight" in step] == [5, 25]
    plugin = canary["trafficRouting"]["plugins"]["argoproj-labs/gatewayAPI"]
    assert objects.keys() >= {
        ("Service", canary["stableService"]),
        ("Service", canary["canaryService"]),
        ("HTTPRoute", plugin["httpRoute"]),
    }
    for analysis in [*(s["analysis"] for s in steps if "analysis" in s), canary["analysis"]]:
        (name,) = (template["templateName"] for template in analysis["templates"])
        passed = {argument["name"] for argument in analysis["args"]}
        template = objects["AnalysisTemplate", name]
        assert passed == {argument["name"] for argument in template["spec"]["args"]}
    with pytest.raises(OutriderError, match=r"policy\.shares: 2\.5"):
        written("argo", tmp_path / "again", policy={"shares": [2.5, 100]})


def test_argo_routes_no_administration_and_pods_finish_their_requests(tmp_path: Path) -> None:
    objects = written("argo", tmp_path)
    rules = objects["HTTPRoute", "resume-eu"]["spec"]["rules"]
    paths = {m["path"]["value"]: bool(r.get("backendRefs")) for r in rules for m in r["matches"]}
    assert paths == {"/v1": True, "/health": True, "/v1/admin": False}
    pod = objects["Rollout", "resume-eu"]["spec"]["template"]["spec"]
    (one,) = pod["containers"]
    shutdown = int(one["args"][one["args"].index("--shutdown-timeout") + 1])
    (_, unrouted) = one["lifecycle"]["preStop"]["exec"]["command"]
    assert shutdown >= 280 and int(unrouted) + shutdown < pod["terminationGracePeriodSeconds"]
    assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    (rule,) = objects["NetworkPolicy", "resume-eu"]["spec"]["ingress"]
    assert {allowed["port"] for allowed in rule["ports"]} == {port["name"] for port in one["ports"]}


def test_argo_may_wait_for_the_controllers_verdict(tmp_path: Path) -> None:
    objects = written("argo", tmp_path, verdict="controller")
    for role, condition in (("promotion", "result[0] == 1"), ("guards", "result[0] == -1")):
        template = objects["AnalysisTemplate", f"resume-eu-{role}"]
        (one,) = (m for m in template["spec"]["metrics"] if m["name"] == "verdict")
        query = one["provider"]["prometheus"]["query"]
        assert query == 'max(outrider_canary_verdict{endpoint="resume_eu"})'
        assert (one.get("successCondition") or one["failureCondition"]).endswith(condition)


def test_kserve_serves_the_bundle_next_to_the_targets_own(tmp_path: Path) -> None:
    stable, canary = written("kserve", tmp_path).values()
    for service, weight, replicas in ((stable, 9500, 3), (canary, 500, 1)):
        assert service["spec"]["router"]["route"] == {"group": "resume-eu", "weight": weight}
        assert service["spec"]["replicas"] == replicas
    # KServe joins members that serve the same model name only.
    assert stable["spec"]["model"] == canary["spec"]["model"] == {"uri": f"hf://{R1}", "name": R1}
    assert flags(canary) >= {
        "--speculative-config.model=/mnt/speculator",
        "--speculative-config.num_speculative_tokens=3",
    }
    download = canary["spec"]["template"]["initContainers"][0]
    assert download["args"] == [SOURCE, "/mnt/speculator"]
    mount = container(canary)["volumeMounts"][0]
    assert download["volumeMounts"][0]["mountPath"] == mount["mountPath"]
    # At the k of the evaluation's base, from where KServe mounts the target.
    assert flags(stable) >= {
        "--speculative-config.model=/mnt/models",
        "--speculative-config.num_speculative_tokens=1",
    }
    assert "volumes" not in stable["spec"]["template"]
    digest = bundle_digest(tmp_path / "bundle")
    assert canary["metadata"]["annotations"]["outrider/bundle-digest"] == digest
    assert container(canary)["resources"]["limits"] == {"nvidia.com/gpu": "8"}


def test_kserve_with_another_bundle_or_none(tmp_path: Path) -> None:
    stable, _ = written("kserve", tmp_path, stable="none").values()
    assert not [flag for flag in flags(stable) if "speculative" in flag]
    shutil.rmtree(tmp_path / "bundle")
    image = "registry.example/resume:march"
    stable, canary = written(
        "kserve", tmp_path, stable="pvc://releases/february", speculator=f"oci://{image}"
    ).values()
    claim = stable["spec"]["template"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert claim == "releases" and container(stable)["volumeMounts"][0]["subPath"] == "february"
    assert canary["spec"]["template"]["volumes"][0]["image"]["reference"] == image
    assert flags(stable) == flags(canary)


@pytest.mark.parametrize(
    ("cluster", "model", "message"),
    [
        ({"stable": None}, R1, r"cluster\.stable"),
        ({"speculator": None}, R1, r"cluster\.speculator"),
        ({}, "nano_r1", r"cluster\.model.*nano_r1"),
    ],
)
def test_a_missing_setting_is_named(tmp_path: Path, cluster, model: str, message: str) -> None:
    bundle = write_exported(tmp_path / "bundle", model=model)
    with pytest.raises(OutriderError, match=message):
        write_manifest("kserve", bundle, cluster_endpoint(tmp_path, **cluster))
    (bundle / "model.safetensors").write_bytes(b"other")
    with pytest.raises(OutriderError, match=r"model\.safetensors: changed"):
        write_manifest("kserve", bundle, cluster_endpoint(tmp_path))


def test_pods_that_load_a_history_have_outrider_and_its_hooks(tmp_path: Path) -> None:
    """vLLM's own image would ignore the history, and share live responses between tenants."""
    bundle = write_exported(tmp_path / "bundle", method="suffix")
    History.of([], 1.0, shared=False).write(bundle / HISTORY_FILE)
    manifest = read_json(bundle / "bundle.json")
    write_json(bundle / "bundle.json", {**manifest, **list_files(bundle)})
    with pytest.raises(OutriderError, match=r"cluster\.image: missing"):
        write_manifest("argo", bundle, cluster_endpoint(tmp_path))
    for kind in ("argo", "kserve"):
        endpoint = cluster_endpoint(tmp_path, image="acme/outrider:1", stable="none")
        text = write_manifest(kind, bundle, endpoint)
        assert "OUTRIDER_HOOKS" in text and "acme/outrider:1" in text
