"""Argo Rollouts: the objects, and the analysis' queries evaluated by Prometheus itself."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from outrider.common.errors import OutriderError
from outrider.live.manifests import write_manifest
from tests.live.crds import needs_crds, problems
from tests.live.manifest_endpoint import endpoint
from tests.serving.exported import write_exported

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is missing (Debian's package prometheus)"
)


def written(
    folder: Path, policy: dict[str, Any] | None = None, **cluster: Any
) -> dict[tuple[str, str], dict[str, Any]]:
    """(kind, name) -> object."""
    bundle = write_exported(folder / "bundle")
    text = write_manifest("argo", bundle, endpoint(folder, policy, **cluster))
    documents = list(yaml.safe_load_all(text))
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def metrics(objects: dict[tuple[str, str], dict[str, Any]], role: str) -> dict[str, dict[str, Any]]:
    template = objects["AnalysisTemplate", f"resume-eu-{role}"]
    return {each["name"]: each for each in template["spec"]["metrics"]}


def test_names_that_objects_use_of_each_other_exist(tmp_path: Path) -> None:
    objects = written(tmp_path)
    rollout = objects["Rollout", "resume-eu"]
    canary = rollout["spec"]["strategy"]["canary"]
    assert ("Service", canary["stableService"]) in objects
    assert ("Service", canary["canaryService"]) in objects
    plugin = canary["trafficRouting"]["plugins"]["argoproj-labs/gatewayAPI"]
    route = objects["HTTPRoute", plugin["httpRoute"]]
    backends = {each["name"] for each in route["spec"]["rules"][0]["backendRefs"]}
    assert backends == {canary["stableService"], canary["canaryService"]}
    used = [step["analysis"] for step in canary["steps"] if "analysis" in step]
    for analysis in [*used, canary["analysis"]]:
        (template,) = (each["templateName"] for each in analysis["templates"])
        given = {each["name"] for each in analysis["args"]}
        declared = {each["name"] for each in objects["AnalysisTemplate", template]["spec"]["args"]}
        assert given == declared
    labels = rollout["spec"]["template"]["metadata"]["labels"]
    assert rollout["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for role in ("stable", "canary"):
        selector = objects["Service", f"resume-eu-{role}"]["spec"]["selector"]
        assert selector.items() <= labels.items()


def test_steps_are_the_policys_shares(tmp_path: Path) -> None:
    objects = written(tmp_path, policy={"shares": [5, 25, 100]})
    steps = objects["Rollout", "resume-eu"]["spec"]["strategy"]["canary"]["steps"]
    assert [step["setWeight"] for step in steps if "setWeight" in step] == [5, 25]
    assert [next(iter(step)) for step in steps] == [
        "setCanaryScale",
        "setWeight",
        "analysis",
        "setWeight",
        "analysis",
        "setCanaryScale",
    ]


def test_a_share_that_argo_cannot_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutriderError, match=r"policy\.shares: 2\.5"):
        written(tmp_path, policy={"shares": [2.5, 100]})


@pytest.mark.parametrize("on_undecided", ["roll_back", "hold"])
@pytest.mark.parametrize(("verdict", "looks"), [("limits", 1), ("controller", 10)])
def test_an_undecided_step_ends_in_time(
    tmp_path: Path, on_undecided: str, verdict: str, looks: int
) -> None:
    """As argo-rollouts assesses a metric whose every measurement misses (analysis.go)."""
    policy = {"max_seconds": 300, "min_seconds": 60, "on_undecided": on_undecided}
    objects = written(tmp_path, policy=policy, verdict=verdict)
    metric = metrics(objects, "promotion")["speed" if verdict == "limits" else "verdict"]
    failed = inconclusive = 0
    while True:
        if "failureCondition" in metric:
            inconclusive += 1
        else:
            failed += 1
        if failed > metric.get("failureLimit", 0):
            outcome = "roll_back"
            break
        if inconclusive > metric.get("inconclusiveLimit", 0):
            outcome = "hold"
            break
    assert outcome == on_undecided
    # The controller's verdict every 30 s for 300 s; a measurement against fixed limits once.
    assert failed + inconclusive == looks
    assert metric.get("count") == (1 if looks == 1 else None)
    assert metric["initialDelay"] == ("600s" if verdict == "limits" else "60s")


def test_a_pod_finishes_its_requests_before_it_is_killed(tmp_path: Path) -> None:
    pod = written(tmp_path)["Rollout", "resume-eu"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    words = container["args"]
    shutdown = int(words[words.index("--shutdown-timeout") + 1])
    (_, unrouted) = container["lifecycle"]["preStop"]["exec"]["command"]
    assert shutdown >= 280 and int(unrouted) + shutdown < pod["terminationGracePeriodSeconds"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_only_the_port_of_the_api_can_be_reached(tmp_path: Path) -> None:
    objects = written(tmp_path)
    policy = objects["NetworkPolicy", "resume-eu"]["spec"]
    pod = objects["Rollout", "resume-eu"]["spec"]["template"]
    assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (rule,) = policy["ingress"]
    assert {each["port"] for each in rule["ports"]} == {
        port["name"] for port in pod["spec"]["containers"][0]["ports"]
    }


def test_the_admin_route_is_not_routed(tmp_path: Path) -> None:
    rules = written(tmp_path)["HTTPRoute", "resume-eu"]["spec"]["rules"]
    paths = {
        match["path"]["value"]: bool(rule.get("backendRefs"))
        for rule in rules
        for match in rule["matches"]
    }
    assert paths == {"/v1": True, "/health": True, "/v1/admin": False}


def test_the_controllers_verdict_decides_where_it_is_asked_for(tmp_path: Path) -> None:
    objects = written(tmp_path, verdict="controller")
    promotion, guards = metrics(objects, "promotion"), metrics(objects, "guards")
    query = promotion["verdict"]["provider"]["prometheus"]["query"]
    assert query == 'max(outrider_canary_verdict{endpoint="resume_eu"})'
    assert promotion["verdict"]["successCondition"].endswith("result[0] == 1")
    assert guards["verdict"]["failureCondition"].endswith("result[0] == -1")


@needs_crds
@pytest.mark.parametrize(
    "policy", [{}, {"on_undecided": "hold", "shares": [1, 50, 100]}], ids=["roll_back", "hold"]
)
@pytest.mark.parametrize("verdict", ["limits", "controller"])
def test_argo_takes_the_manifest(tmp_path: Path, policy: dict[str, Any], verdict: str) -> None:
    objects = written(tmp_path, policy=policy, verdict=verdict)
    checked = [
        each for (kind, _), each in objects.items() if kind not in ("Service", "NetworkPolicy")
    ]
    assert len(checked) == 4
    assert [problem for each in checked for problem in problems(each)] == []


@needs_crds
def test_argos_pods_are_as_kubernetes_has_them(tmp_path: Path) -> None:
    """Argo's schema leaves pods open; KServe's has them whole."""
    pod = written(tmp_path)["Rollout", "resume-eu"]["spec"]["template"]["spec"]
    service = {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": "x"},
        "spec": {"model": {"uri": "hf://a/b"}, "template": pod},
    }
    assert problems(service) == []


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
    asked = queries(written(tmp_path, policy={"min_requests": 10}))
    assert asked.keys() == EXPECTED.keys()
    expected = {name: [round(value, 6)] for name, value in EXPECTED.items()}
    done = evaluated(tmp_path, asked, expected)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = expected | {"speed": [expected["speed"][0] + 0.01]}
    assert evaluated(tmp_path, asked, wrong).returncode == 1


@needs_promtool
def test_nothing_is_concluded_from_too_few_requests(tmp_path: Path) -> None:
    asked = queries(written(tmp_path, policy={"min_requests": 18}))
    done = evaluated(tmp_path, asked, {name: [] for name in asked})
    assert done.returncode == 0, done.stdout + done.stderr
