"""KServe: two services of one routing group."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from outrider.common.errors import OutriderError
from outrider.live.manifests import write_manifest
from outrider.serving.bundle.bundle_digest import bundle_digest
from tests.live.crds import needs_crds, problems
from tests.live.manifest_endpoint import SOURCE, endpoint
from tests.serving.exported import R1, write_exported


def written(folder: Path, **cluster: Any) -> tuple[str, list[dict[str, Any]]]:
    bundle = write_exported(folder / "bundle")
    text = write_manifest("kserve", bundle, endpoint(folder, **cluster))
    return text, list(yaml.safe_load_all(text))


def container(document: dict[str, Any]) -> dict[str, Any]:
    (found,) = document["spec"]["template"]["containers"]
    return found


def flags(document: dict[str, Any]) -> list[str]:
    (found,) = (e for e in container(document)["env"] if e["name"] == "VLLM_ADDITIONAL_ARGS")
    return found["value"].split(" ")


def test_both_services_are_of_one_group_and_one_model(tmp_path: Path) -> None:
    _, (stable, canary) = written(tmp_path)
    routes = [each["spec"]["router"]["route"] for each in (stable, canary)]
    assert [route["group"] for route in routes] == ["resume-eu", "resume-eu"]
    assert [route["weight"] for route in routes] == [9500, 500]
    # KServe joins members that serve the same model name only.
    assert stable["spec"]["model"] == canary["spec"]["model"] == {"uri": f"hf://{R1}", "name": R1}
    assert [each["metadata"]["name"] for each in (stable, canary)] == [
        "resume-eu-stable",
        "resume-eu-canary",
    ]
    assert [each["spec"]["replicas"] for each in (stable, canary)] == [3, 1]


def test_the_canary_serves_the_bundle_and_stable_the_targets_own(tmp_path: Path) -> None:
    _, (stable, canary) = written(tmp_path)
    assert "--speculative-config.model=/mnt/speculator" in flags(canary)
    assert "--speculative-config.num_speculative_tokens=3" in flags(canary)
    download = canary["spec"]["template"]["initContainers"][0]
    assert download["args"] == [SOURCE, "/mnt/speculator"]
    mount = download["volumeMounts"][0]
    assert mount["name"] == canary["spec"]["template"]["volumes"][0]["name"]
    assert mount["mountPath"] == container(canary)["volumeMounts"][0]["mountPath"]
    # At the k of the evaluation's base, from where KServe mounts the target.
    assert "--speculative-config.model=/mnt/models" in flags(stable)
    assert "--speculative-config.num_speculative_tokens=1" in flags(stable)
    assert "volumes" not in stable["spec"]["template"]
    others = [set(flags(each)) for each in (stable, canary)]
    assert all("--speculative" in flag for flag in others[0] ^ others[1])
    digest = bundle_digest(tmp_path / "bundle")
    assert canary["metadata"]["labels"]["outrider/release"] == digest[:12]
    assert canary["metadata"]["annotations"]["outrider/bundle-digest"] == digest
    assert container(canary)["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert container(canary)["image"] == "vllm/vllm-openai:v0.32.0"


def test_stable_without_speculation(tmp_path: Path) -> None:
    _, (stable, _) = written(tmp_path, stable="none")
    assert not [flag for flag in flags(stable) if "speculative" in flag]


def test_stable_with_another_bundle(tmp_path: Path) -> None:
    _, (stable, canary) = written(tmp_path, stable="pvc://releases/february")
    volume = stable["spec"]["template"]["volumes"][0]
    assert volume["persistentVolumeClaim"]["claimName"] == "releases"
    assert container(stable)["volumeMounts"][0]["subPath"] == "february"
    assert "initContainers" not in stable["spec"]["template"]
    assert flags(stable) == flags(canary)


def test_an_oci_image_is_a_volume(tmp_path: Path) -> None:
    _, (_, canary) = written(tmp_path, speculator="oci://registry.example/resume:march")
    template = canary["spec"]["template"]
    assert template["volumes"][0]["image"]["reference"] == "registry.example/resume:march"
    # The export writes files below /models.
    assert container(canary)["volumeMounts"][0]["subPath"] == "models"


def test_the_next_shares_are_in_the_head(tmp_path: Path) -> None:
    text, _ = written(tmp_path)
    assert text.startswith("# Release ")
    patch = '{"spec":{"router":{"route":{"weight":2500}}}}'
    assert f"patch llmisvc resume-eu-canary --type merge -p '{patch}'" in text
    assert '"weight":10000' in text


@pytest.mark.parametrize(
    ("cluster", "key"),
    [
        ({"stable": None}, "cluster.stable"),
        ({"speculator": None}, "cluster.speculator"),
    ],
)
def test_a_missing_setting_is_named(tmp_path: Path, cluster: dict[str, Any], key: str) -> None:
    with pytest.raises(OutriderError, match=key):
        written(tmp_path, **cluster)


def test_a_target_that_pods_cannot_read_is_named(tmp_path: Path) -> None:
    bundle = write_exported(tmp_path / "bundle", model="nano_r1")
    with pytest.raises(OutriderError, match=r"cluster\.model.*nano_r1"):
        write_manifest("kserve", bundle, endpoint(tmp_path))


def test_a_changed_bundle_is_refused(tmp_path: Path) -> None:
    bundle = write_exported(tmp_path / "bundle")
    (bundle / "model.safetensors").write_bytes(b"other")
    with pytest.raises(OutriderError, match=r"model\.safetensors: changed"):
        write_manifest("kserve", bundle, endpoint(tmp_path))


@needs_crds
@pytest.mark.parametrize(
    "cluster",
    [
        {},
        {"stable": "none", "speculator": "oci://registry.example/resume@sha256:" + "a" * 64},
        {"stable": "hf://acme/february@main", "model": "pvc://models/r1", "service_account": "s3"},
        {"stable": "pvc://releases/february", "api_key_secret": "endpoint-key"},
    ],
)
def test_kserve_takes_the_manifest(tmp_path: Path, cluster: dict[str, Any]) -> None:
    _, documents = written(tmp_path, **cluster)
    assert [problem for each in documents for problem in problems(each)] == []


@needs_crds
@pytest.mark.parametrize("place", ["router", "route", "container"])
def test_a_field_that_kserve_does_not_know_is_found(tmp_path: Path, place: str) -> None:
    _, (_, canary) = written(tmp_path)
    spec = canary["spec"]
    found = {
        "router": spec["router"],
        "route": spec["router"]["route"],
        "container": container(canary),
    }
    found[place]["wieght"] = 5
    assert len(problems(canary)) == 1
