"""Manifests for clusters: an Argo Rollout, whose queries Prometheus evaluates, and KServe's."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from outrider.common.errors import OutriderError
from outrider.live.manifests import ManifestKind, write_manifest
from outrider.serving.bundle.bundle_digest import bundle_digest
from tests.live.crds import needs_crds, problems
from tests.live.manifest_endpoint import SOURCE, endpoint
from tests.serving.exported import R1, write_exported

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is missing (Debian's package prometheus)"
)


def written(
    kind: ManifestKind, folder: Path, policy: dict[str, Any] | None = None, **cluster: Any
) -> dict[tuple[str, str], dict[str, Any]]:
    """(kind, name) -> object."""
    bundle = write_exported(folder / "bundle")
    text = write_manifest(kind, bundle, endpoint(folder, policy, **cluster))
    documents = list(yaml.safe_load_all(text))
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def argo(folder: Path, policy: dict[str, Any] | None = None, **cluster: Any) -> Any:
    return written("argo", folder, policy, **cluster)


def kserve(folder: Path, **cluster: Any) -> list[dict[str, Any]]:
    """The services: stable, canary."""
    return list(written("kserve", folder, **cluster).values())


def metrics(objects: dict[tuple[str, str], dict[str, Any]], role: str) -> dict[str, dict[str, Any]]:
    template = objects["AnalysisTemplate", f"resume-eu-{role}"]
    return {each["name"]: each for each in template["spec"]["metrics"]}


def container(document: dict[str, Any]) -> dict[str, Any]:
    (found,) = document["spec"]["template"]["containers"]
    return found


def flags(document: dict[str, Any]) -> list[str]:
    (found,) = (e for e in container(document)["env"] if e["name"] == "VLLM_ADDITIONAL_ARGS")
    return found["value"].split(" ")


def test_argo_has_the_policys_shares_and_names_that_exist(tmp_path: Path) -> None:
    objects = argo(tmp_path, policy={"shares": [5, 25, 100]})
    canary = objects["Rollout", "resume-eu"]["spec"]["strategy"]["canary"]
    steps = canary["steps"]
    assert [step["setWeight"] for step in steps if "setWeight" in step] == [5, 25]
    assert ("Service", canary["stableService"]) in objects
    assert ("Service", canary["canaryService"]) in objects
    plugin = canary["trafficRouting"]["plugins"]["argoproj-labs/gatewayAPI"]
    assert ("HTTPRoute", plugin["httpRoute"]) in objects
    for analysis in [*(s["analysis"] for s in steps if "analysis" in s), canary["analysis"]]:
        (template,) = (each["templateName"] for each in analysis["templates"])
        given = {each["name"] for each in analysis["args"]}
        declared = {each["name"] for each in objects["AnalysisTemplate", template]["spec"]["args"]}
        assert given == declared
    with pytest.raises(OutriderError, match=r"policy\.shares: 2\.5"):
        write_manifest("argo", tmp_path / "bundle", endpoint(tmp_path, {"shares": [2.5, 100]}))


def test_argo_routes_no_administration_and_pods_finish_their_requests(tmp_path: Path) -> None:
    objects = argo(tmp_path)
    rules = objects["HTTPRoute", "resume-eu"]["spec"]["rules"]
    paths = {m["path"]["value"]: bool(r.get("backendRefs")) for r in rules for m in r["matches"]}
    assert paths == {"/v1": True, "/health": True, "/v1/admin": False}
    rollout = objects["Rollout", "resume-eu"]
    pod = rollout["spec"]["template"]["spec"]
    (one,) = pod["containers"]
    shutdown = int(one["args"][one["args"].index("--shutdown-timeout") + 1])
    (_, unrouted) = one["lifecycle"]["preStop"]["exec"]["command"]
    assert shutdown >= 280 and int(unrouted) + shutdown < pod["terminationGracePeriodSeconds"]
    assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    (rule,) = objects["NetworkPolicy", "resume-eu"]["spec"]["ingress"]
    assert {each["port"] for each in rule["ports"]} == {port["name"] for port in one["ports"]}


def test_argo_may_wait_for_the_controllers_verdict(tmp_path: Path) -> None:
    objects = argo(tmp_path, verdict="controller")
    promotion, guards = metrics(objects, "promotion"), metrics(objects, "guards")
    query = promotion["verdict"]["provider"]["prometheus"]["query"]
    assert query == 'max(outrider_canary_verdict{endpoint="resume_eu"})'
    assert promotion["verdict"]["successCondition"].endswith("result[0] == 1")
    assert guards["verdict"]["failureCondition"].endswith("result[0] == -1")


@needs_crds
@pytest.mark.parametrize("verdict", ["limits", "controller"])
def test_argo_takes_the_manifest(tmp_path: Path, verdict: str) -> None:
    objects = argo(tmp_path, policy={"on_undecided": "hold"}, verdict=verdict)
    own = [each for (kind, _), each in objects.items() if kind not in ("Service", "NetworkPolicy")]
    assert len(own) == 4 and [problem for each in own for problem in problems(each)] == []


def test_kserve_serves_the_bundle_next_to_the_targets_own(tmp_path: Path) -> None:
    stable, canary = kserve(tmp_path)
    routes = [each["spec"]["router"]["route"] for each in (stable, canary)]
    assert [route["group"] for route in routes] == ["resume-eu", "resume-eu"]
    assert [route["weight"] for route in routes] == [9500, 500]
    # KServe joins members that serve the same model name only.
    assert stable["spec"]["model"] == canary["spec"]["model"] == {"uri": f"hf://{R1}", "name": R1}
    assert [each["spec"]["replicas"] for each in (stable, canary)] == [3, 1]
    assert "--speculative-config.model=/mnt/speculator" in flags(canary)
    assert "--speculative-config.num_speculative_tokens=3" in flags(canary)
    download = canary["spec"]["template"]["initContainers"][0]
    assert download["args"] == [SOURCE, "/mnt/speculator"]
    mount = container(canary)["volumeMounts"][0]
    assert download["volumeMounts"][0]["mountPath"] == mount["mountPath"]
    # At the k of the evaluation's base, from where KServe mounts the target.
    assert "--speculative-config.model=/mnt/models" in flags(stable)
    assert "--speculative-config.num_speculative_tokens=1" in flags(stable)
    assert "volumes" not in stable["spec"]["template"]
    digest = bundle_digest(tmp_path / "bundle")
    assert canary["metadata"]["annotations"]["outrider/bundle-digest"] == digest
    assert container(canary)["resources"]["limits"] == {"nvidia.com/gpu": "8"}


def test_kserve_with_another_bundle_or_none(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    stable, _ = kserve(one, stable="none")
    assert not [flag for flag in flags(stable) if "speculative" in flag]
    stable, canary = kserve(
        other, stable="pvc://releases/february", speculator="oci://registry.example/resume:march"
    )
    claim = stable["spec"]["template"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert claim == "releases" and container(stable)["volumeMounts"][0]["subPath"] == "february"
    image = canary["spec"]["template"]["volumes"][0]["image"]["reference"]
    assert image == "registry.example/resume:march"
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
        write_manifest("kserve", bundle, endpoint(tmp_path, **cluster))
    (bundle / "model.safetensors").write_bytes(b"other")
    with pytest.raises(OutriderError, match=r"model\.safetensors: changed"):
        write_manifest("kserve", bundle, endpoint(tmp_path))


@needs_crds
def test_kserve_takes_the_manifest(tmp_path: Path) -> None:
    services = kserve(
        tmp_path, stable="pvc://releases/february", model="pvc://models/r1", service_account="s3",
        api_key_secret="endpoint-key",
    )  # fmt: skip
    assert [problem for each in services for problem in problems(each)] == []
    services[1]["spec"]["router"]["wieght"] = 5
    assert len(problems(services[1])) == 1


# 8 measurements, 30 s apart. Canary: 2 requests per 30 s, stable: 20.
SERIES = {
    "canary": {
        'vllm:request_success_total{H,finished_reason="stop"}': "0+2x8",
        'vllm:request_success_total{H,finished_reason="error"}': "0+0.1x8",
        "vllm:request_time_per_output_token_seconds_sum{H}": "0+0.02x8",
        "vllm:request_time_per_output_token_seconds_count{H}": "0+2x8",
        "vllm:time_to_first_token_seconds_sum{H}": "0+0.6x8",
        "vllm:time_to_first_token_seconds_count{H}": "0+2x8",
        "vllm:spec_decode_num_drafts_total{H}": "0+10x8",
        "vllm:spec_decode_num_accepted_tokens_total{H}": "0+20x8",
        'vllm:e2e_request_latency_seconds_bucket{H,le="1"}': "0+1x8",
        'vllm:e2e_request_latency_seconds_bucket{H,le="2"}': "0+2x8",
        'vllm:e2e_request_latency_seconds_bucket{H,le="+Inf"}': "0+2x8",
    },
    "stable": {
        'vllm:request_success_total{H,finished_reason="stop"}': "0+20x8",
        "vllm:request_time_per_output_token_seconds_sum{H}": "0+0.24x8",
        "vllm:request_time_per_output_token_seconds_count{H}": "0+20x8",
        "vllm:time_to_first_token_seconds_sum{H}": "0+4x8",
        "vllm:time_to_first_token_seconds_count{H}": "0+20x8",
        "vllm:spec_decode_num_drafts_total{H}": "0+100x8",
        "vllm:spec_decode_num_accepted_tokens_total{H}": "0+150x8",
        'vllm:e2e_request_latency_seconds_bucket{H,le="1"}': "0+10x8",
        'vllm:e2e_request_latency_seconds_bucket{H,le="2"}': "0+20x8",
        'vllm:e2e_request_latency_seconds_bucket{H,le="+Inf"}': "0+20x8",
    },
}

EXPECTED = {
    "speed": 0.012 / 0.010,
    "error-rate": 0.1 / 2.1,
    "latency-p99": 1.0,
    "time-to-first-token": 0.3 / 0.2,
    "acceptance": (1 + 2) / (1 + 1.5),
}


def evaluated(
    folder: Path, queries: dict[str, str], expected: dict[str, list[float]]
) -> subprocess.CompletedProcess[str]:
    """promtool's unit test: each query at 240 s over SERIES has these values."""
    series = [
        {
            "series": name.replace("H", f'rollouts_pod_template_hash="{group}-1"', 1)
            if "{H" in name
            else name,
            "values": values,
        }
        for group, rows in SERIES.items()
        for name, values in rows.items()
    ]
    cases = [
        {
            "expr": query,
            "eval_time": "240s",
            "exp_samples": [{"labels": "{}", "value": value} for value in expected[name]],
        }
        for name, query in queries.items()
    ]
    test = {
        "rule_files": [],
        "evaluation_interval": "30s",
        "tests": [{"interval": "30s", "input_series": series, "promql_expr_test": cases}],
    }
    path = folder / "queries.yaml"
    path.write_text(yaml.safe_dump(test), encoding="utf-8")
    return subprocess.run(
        [str(PROMTOOL), "test", "rules", str(path)], capture_output=True, text=True, check=False
    )


def queries(objects: dict[tuple[str, str], dict[str, Any]]) -> dict[str, str]:
    """Name -> query with the pods' hashes, rounded: promtool compares floats exactly."""
    found = metrics(objects, "guards") | metrics(objects, "promotion")
    hashes = {"{{args.stable-hash}}": "stable-1", "{{args.canary-hash}}": "canary-1"}
    asked = {}
    for name, metric in found.items():
        query = metric["provider"]["prometheus"]["query"]
        for argument, value in hashes.items():
            query = query.replace(argument, value)
        asked[name] = f"round({query}, 0.000001)"
    return asked


@needs_promtool
def test_prometheus_computes_what_the_policy_means(tmp_path: Path) -> None:
    asked = queries(argo(tmp_path, policy={"min_requests": 10}))
    assert asked.keys() == EXPECTED.keys()
    expected = {name: [round(value, 6)] for name, value in EXPECTED.items()}
    done = evaluated(tmp_path, asked, expected)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = expected | {"speed": [expected["speed"][0] + 0.01]}
    assert evaluated(tmp_path, asked, wrong).returncode == 1
