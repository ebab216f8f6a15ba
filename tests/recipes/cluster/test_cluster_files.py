"""The shipped files for clusters: valid for KubeRay, `ray start` and the recipe's own keys."""

import shlex
from pathlib import Path
from typing import Any

import yaml

from outrider.pipeline.recipe.load import load_recipe

FOLDER = Path(__file__).resolve().parents[3] / "recipes" / "cluster"


def documents() -> dict[str, dict[str, Any]]:
    """Kind -> object of rayjob.yaml."""
    text = (FOLDER / "rayjob.yaml").read_text(encoding="utf-8")
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def pods(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def test_the_command_of_the_job_is_a_recipe_that_uses_the_nodes() -> None:
    job = documents()["RayJob"]["spec"]
    command = shlex.split(job["entrypoint"])
    assert command[:2] == ["outrider", "train"]
    overrides = [each for each in command[3:] if "=" in each]
    recipe = load_recipe(command[2], overrides).recipe
    cluster = job["rayClusterSpec"]
    gpus = [
        int(pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]) for pod in pods(cluster)
    ]
    counts = [1, *(group["replicas"] for group in cluster["workerGroupSpecs"])]
    total = sum(gpu * count for gpu, count in zip(gpus, counts, strict=True))
    assert recipe.cluster.address == "auto"
    assert recipe.training.processes == total
    assert recipe.cluster.capture_replicas * recipe.serving.engine.tensor_parallel == total


def test_nobody_else_reaches_the_job() -> None:
    found = documents()
    cluster = found["RayJob"]["spec"]["rayClusterSpec"]
    assert cluster["authOptions"]["mode"] == "token"
    assert cluster["headGroupSpec"]["serviceType"] == "ClusterIP"
    policy = found["NetworkPolicy"]
    assert policy["metadata"]["namespace"] == found["RayJob"]["metadata"]["namespace"]
    assert policy["spec"]["podSelector"] == {} and policy["spec"]["policyTypes"] == ["Ingress"]
    own, operator = policy["spec"]["ingress"]
    assert own == {"from": [{"podSelector": {}}]}
    assert operator["ports"] == [{"port": 8265}], "more than the job server"


def test_states_stay_in_memory() -> None:
    for pod in pods(documents()["RayJob"]["spec"]["rayClusterSpec"]):
        (container,) = pod["containers"]
        variables = {each["name"]: each["value"] for each in container["env"]}
        assert variables["RAY_automatic_object_spilling_enabled"] == "0"
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounted = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
        assert set(volumes) == {each["name"] for each in container["volumeMounts"]}
        assert mounted["/dev/shm"]["emptyDir"]["medium"] == "Memory"
        assert "emptyDir" in mounted["/tmp/ray"], "the session outlives the pod"
