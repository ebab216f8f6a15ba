"""Files with a serve command, as producers write them: read as they are served, or refused.

`source` of blind/cases.json has where the form comes from.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.commands.serve_command import read_serve_command

COMMANDS = Path(__file__).parent / "blind"
CASES = json.loads((COMMANDS / "cases.json").read_text(encoding="utf-8"))

SECRETS = ("sk-local-1234567890", "hf_secret", "vault_hf_token")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["file"])
def test_a_file_is_read_as_it_is_served_or_refused(case: dict[str, Any]) -> None:
    path = str(COMMANDS / case["file"])
    if "refused" in case:
        with pytest.raises(OutriderError, match=case["refused"]):
            read_serve_command(path)
        return
    command = read_serve_command(path)
    for key, expected in case["values"].items():
        value: Any = command.values
        for name in key.split("."):
            value = value[name]
        assert value == expected, key
    notes = "\n".join(command.notes)
    assert [part for part in case["notes"] if part not in notes] == []
    assert not command.unknown
    assert not [secret for secret in SECRETS if secret in f"{command.values}{notes}"]
    is_known = "serving.production_release" in case["values"]
    assert is_known == ("production_release" in command.values["serving"])


def test_what_a_worker_leaves_to_vllm_stays_the_recipe_s() -> None:
    command = read_serve_command(str(COMMANDS / "runpod-worker" / "endpoint.env"))
    assert "max_num_batched_tokens" not in command.values["serving"]["engine"]


STACK = """
servingEngineSpec:
  modelSpec:
  - {{name: a, repository: vllm/vllm-openai, tag: v0.19.1, modelURL: org/a{}}}
  - {{name: b, repository: vllm/vllm-openai, tag: v0.26.0, modelURL: org/b, modelRevision: main}}
"""


def test_the_release_is_that_of_the_enabled_model(tmp_path: Path) -> None:
    command = read_serve_command(STACK.format(", enabled: false"))
    assert command.values["target"] == {"model": "org/b", "revision": "main"}
    assert command.values["serving"]["production_release"] == "0.26.0"
    with pytest.raises(OutriderError, match=r"enables several models, org/a, org/b; leave only"):
        read_serve_command(STACK.format(""))


TASK = "resources: {}\nrun: |\n  vllm serve org/model -tp $SKYPILOT_NUM_GPUS_PER_NODE\n"


@pytest.mark.parametrize(
    "resources",
    [
        "{accelerators: {H200:8, B200:8}}",
        "{accelerators: 'H200:8'}",
        "{accelerators: ['H200:8', 'B200:8']}",
        "{accelerators: {H200: 8, B200: 8}}",
        "{any_of: [{accelerators: 'H200:8'}, {accelerators: 'B200:8'}]}",
    ],
)
def test_skypilot_s_number_of_gpus_is_that_of_its_accelerators(resources: str) -> None:
    engine = read_serve_command(TASK.format(resources)).values["serving"]["engine"]
    assert engine["tensor_parallel"] == 8


@pytest.mark.parametrize("resources", ["{accelerators: {H200:8, A100:4}}", "{cpus: 8}"])
def test_an_open_number_of_gpus_is_refused_with_who_sets_it(resources: str) -> None:
    message = r"\$SKYPILOT_NUM_GPUS_PER_NODE: .* \(SkyPilot sets it from resources.accelerators"
    with pytest.raises(OutriderError, match=message):
        read_serve_command(TASK.format(resources))


def test_a_unit_s_environment_file_is_read_next_to_it(tmp_path: Path) -> None:
    unit = (COMMANDS / "systemd-envfile" / "vllm.service").read_text(encoding="utf-8")
    (tmp_path / "vllm.service").write_text(unit)
    variables = "# set here\nVLLM_MODEL='org/model'\nVLLM_SERVE_ARGS=\"-tp 4 --seed 3\"\n"
    (tmp_path / "vllm.env").write_text(variables)
    command = read_serve_command(str(tmp_path / "vllm.service"))
    assert command.values["target"]["model"] == "org/model"
    assert command.values["serving"]["engine"]["tensor_parallel"] == 4


@pytest.mark.parametrize(
    "script",
    [
        "source ./serve.env\nvllm serve org/model -tp $TP",
        "set -a; . serve.env; set +a\nvllm serve org/model -tp $TP",
        "docker run --env-file serve.env vllm/vllm-openai:v0.32.0 vllm serve org/model -tp $TP",
    ],
)
def test_variables_of_a_file_next_to_a_script_are_read(script: str, tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(script)
    (tmp_path / "serve.env").write_text("export TP=8\n")
    engine = read_serve_command(str(tmp_path / "serve.sh")).values["serving"]["engine"]
    assert engine["tensor_parallel"] == 8
    (tmp_path / "serve.env").unlink()
    with pytest.raises(OutriderError, match=r"\$TP: .*serve\.env: not here"):
        read_serve_command(str(tmp_path / "serve.sh"))


def test_compose_has_the_values_of_docker_compose_config(tmp_path: Path) -> None:
    """`environment` counts before env_file, the first of COMPOSE_PROFILES starts a service."""
    (tmp_path / "compose.yaml").write_text(
        "services:\n"
        "  other:\n    image: vllm/vllm-openai:v0.30.0\n    command: [--model, org/other]\n"
        "    profiles: [off]\n"
        "  one:\n    image: vllm/vllm-openai:${TAG-v0.31.0}\n    profiles: [live]\n"
        "    env_file: [{path: vllm.env}, missing.env]\n    environment: [SEQS=7]\n"
        "    entrypoint: [sh, -c]\n"
        "    command: ['vllm serve org/model --max-num-seqs $$SEQS --seed $$SEED ${MORE:+-tp 2}']\n"
    )
    (tmp_path / ".env").write_text("COMPOSE_PROFILES=live\nMORE=yes\n")
    (tmp_path / "vllm.env").write_text("SEQS=9\nSEED=3  # of today\n")
    command = read_serve_command(str(tmp_path / "compose.yaml"))
    engine = command.values["serving"]["engine"]
    assert engine["max_num_seqs"] == 7
    assert engine["tensor_parallel"] == 2
    assert engine["extra_arguments"]["seed"] == 3
    assert command.values["serving"]["production_release"] == "0.31.0"
    (tmp_path / "vllm.env").unlink()
    with pytest.raises(OutriderError, match=r"\$SEED: .*env_file vllm\.env.*: not here"):
        read_serve_command(str(tmp_path / "compose.yaml"))


PLAY = (COMMANDS / "nemotron-super-nvfp4" / "site.yml").read_text(encoding="utf-8")


def test_a_variable_of_another_file_of_ansible_is_named() -> None:
    with pytest.raises(OutriderError, match=r"\{\{tp_size\}\}: contains .* variable"):
        read_serve_command(PLAY.replace("tp_size: 2", "other: 2"))
    default = PLAY.replace("tp_size: 2", "other: 2").replace(
        "tp_size }}", "tp_size | default(4) }}"
    )
    assert read_serve_command(default).values["serving"]["engine"]["tensor_parallel"] == 4


def test_a_kept_variable_has_a_value() -> None:
    with pytest.raises(OutriderError, match="VLLM_USE_DEEP_GEMM: set to a variable that has no"):
        read_serve_command("VLLM_USE_DEEP_GEMM=$WANTED vllm serve org/model")


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        ("--enable-chunked-prefill=False", {"enable_chunked_prefill": False}),
        ("--enable_chunked_prefill false --seed 3", {"enable_chunked_prefill": False, "seed": 3}),
        ("--enable-chunked-prefill True", {"enable_chunked_prefill": True}),
        ("--enable-chunked-prefill=true", {"enable_chunked_prefill": True}),
    ],
)
def test_a_switch_may_have_a_value_as_in_earlier_releases(
    flags: str, arguments: dict[str, Any]
) -> None:
    command = read_serve_command(f"vllm serve org/model {flags}")
    assert command.values["serving"]["engine"]["extra_arguments"] == arguments


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"model": "a/EAGLE-x", "num_speculative_tokens": 3}, "eagle, 3"),
        ({"model": "a/x_eagle3", "num_speculative_tokens": 3}, "eagle3, 3"),
        ({"model": "a/dspark_x", "num_speculative_tokens": 3}, "dspark, 3"),
        ({"method": "glm4_moe_mtp", "num_speculative_tokens": 3}, "mtp, 3"),
    ],
)
def test_a_method_has_vllm_s_name(section: dict[str, Any], words: str) -> None:
    command = read_serve_command(f"vllm serve m --speculative-config '{json.dumps(section)}'")
    assert re.search(f"current speculator: {words} drafts", "\n".join(command.notes))


def test_the_methods_are_vllm_s() -> None:
    from typing import get_args

    from vllm.config.speculative import SpeculativeMethod

    from outrider.serving.commands.speculation import METHODS, OF_VLLM

    def names(literal: object) -> set[str]:
        inner = get_args(literal)
        return set().union(*map(names, inner)) if inner else {str(literal)}

    of_vllm = names(SpeculativeMethod)
    assert of_vllm >= OF_VLLM
    assert all(name.endswith("_mtp") for name in of_vllm - OF_VLLM - METHODS.keys())
    with pytest.raises(OutriderError, match=r"speculative_config.method = lookahead: .*, eagle3,"):
        read_serve_command("""vllm serve m -sc '{"method": "lookahead"}'""")


def test_a_file_of_flags_without_a_model_is_named() -> None:
    with pytest.raises(OutriderError, match="no model; give `vllm serve MODEL"):
        read_serve_command("tensor-parallel-size: 4\nmax-model-len: 8192\n")


@pytest.mark.parametrize(("tag", "cached"), [("v2.7.0", False), ("v2.25.1", None)])
def test_the_worker_s_default_of_prefix_caching_depends_on_its_release(
    tag: str, cached: bool | None
) -> None:
    text = f"# runpod/worker-v1-vllm:{tag}\nMODEL_NAME=org/model\nENFORCE_EAGER=1\n"
    engine = read_serve_command(text).values["serving"]["engine"]
    assert engine["extra_arguments"].get("enable_prefix_caching") is cached
    assert engine["mode"] == "eager"
