"""Commands that charts and frameworks make of their settings."""

import pytest
import yaml

from outrider.common.errors import OutriderError
from outrider.serving.commands.find import find_command
from outrider.serving.commands.serve_command import read_serve_command

SIZES = ["--tensor-parallel-size", "8", "--max-model-len", "65536"]
DRAFTS = {"method": "mtp", "num_speculative_tokens": 1}
DRAFT_WORDS = ["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}']


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {
                "modelURL": "org/model",
                "vllmConfig": {
                    "tensorParallelSize": 8,
                    "maxModelLen": 65536,
                    "enablePrefixCaching": False,
                    "v1": 1,
                    "extraArgs": ["--seed", 3],
                },
            },
            ["org/model", *SIZES, "--no-enable-prefix-caching", "--seed", "3"],
        ),
        (
            {
                "spec": {
                    "model": {"modelURL": "org/model", "maxModelLen": 65536, "maxNumSeqs": 64},
                    "vllmConfig": {"tensorParallelSize": 8},
                }
            },
            ["org/model", *SIZES[2:], "--max-num-seqs", "64", *SIZES[:2]],
        ),
        (
            {
                "llm_configs": [
                    {
                        "model_loading_config": {"model_id": "r1", "model_source": "org/model"},
                        "engine_kwargs": {
                            "tensor_parallel_size": 8,
                            "max_model_len": 65536,
                            "enable_expert_parallel": True,
                            "speculative_config": DRAFTS,
                        },
                    }
                ]
            },
            ["org/model", *SIZES, "--enable-expert-parallel", *DRAFT_WORDS],
        ),
        ({"llm_configs": [{"model_loading_config": {"model_id": "org/model"}}]}, ["org/model"]),
        (
            {
                "modelArtifacts": {"uri": "pvc+hf://org/model"},
                "decode": {
                    "parallelism": {"tensor": 8, "data": 2, "dataLocal": 1},
                    "containers": [{"modelCommand": "vllmServe", "args": SIZES[2:]}],
                },
            },
            [
                *("org/model", "--tensor-parallel-size", "8", "--data-parallel-size", "2"),
                *("--data-parallel-size-local", "1", *SIZES[2:]),
            ],
        ),
        (
            {
                "kind": "LLMInferenceService",
                "spec": {
                    "model": {"uri": "hf://org/model", "name": "r1"},
                    "parallelism": {"tensor": 8},
                    "template": {
                        "containers": [
                            {
                                "name": "main",
                                "env": [
                                    {"name": "VLLM_ADDITIONAL_ARGS", "value": " ".join(SIZES[2:])}
                                ],
                            }
                        ]
                    },
                },
            },
            ["org/model", *SIZES],
        ),
    ],
)
def test_settings_are_the_flags_that_they_become(settings: dict, words: list[str]) -> None:
    assert find_command("values.yaml", yaml.safe_dump(settings, sort_keys=False))[1] == words


ONE_OF_RAY = {
    "model_loading_config": {"model_id": "r1", "model_source": "org/model"},
    "engine_kwargs": {"tensor_parallel_size": 8, "max_model_len": 65536},
}
OF_RAY = {
    "applications": [
        {"import_path": "ray.serve.llm:build_openai_app", "args": {"llm_configs": [ONE_OF_RAY]}}
    ]
}


@pytest.mark.parametrize(
    "document",
    [
        OF_RAY,
        {"kind": "RayService", "spec": {"serveConfigV2": yaml.safe_dump(OF_RAY, sort_keys=False)}},
    ],
)
def test_ray_serve_s_configuration_has_the_engine_s_arguments(document: dict) -> None:
    """Also as text in a RayService, where KubeRay has it."""
    text = yaml.safe_dump(document, sort_keys=False)
    assert find_command("serve.yaml", text)[1] == ["org/model", *SIZES]


def test_of_several_models_of_ray_serve_none_is_chosen() -> None:
    small = {"model_loading_config": {"model_id": "org/small"}}
    several = yaml.safe_dump({"llm_configs": [ONE_OF_RAY, small]})
    with pytest.raises(OutriderError, match=r"several models, org/model, org/small; leave only"):
        find_command("serve.yaml", several)
    # Prefill and decoding of one model.
    replicas = yaml.safe_dump({"prefill_config": ONE_OF_RAY, "decode_config": ONE_OF_RAY})
    assert find_command("serve.yaml", replicas)[1][0] == "org/model"


def test_the_log_has_the_command_that_started_it() -> None:
    logged = {"model_tag": "org/model", "model": "org/model", "tensor_parallel_size": 8}
    logged |= {"max_model_len": 65536, "speculative_config": DRAFTS, "served_model_name": ["a"]}
    text = (
        "(APIServer pid=1) INFO 07-01 09:59:58 [api_server.py:2110] vLLM API server version 0.32.0"
        f"\n(APIServer pid=1) INFO 07-01 09:59:58 [utils.py:233] non-default args: {logged}\n"
    )
    words = ["org/model", *SIZES, *DRAFT_WORDS, "--served-model-name", "a"]
    assert find_command("vllm.log", text) == ({}, words)
    cut = text.replace("}\n", " <object at 0x7f>}\n") + text
    assert find_command("vllm.log", cut) == ({}, words)


def test_kubectl_describes_the_arguments_of_a_container() -> None:
    described = """Name:         r1-0
Containers:
  vllm:
    Image:          docker.io/vllm/vllm-openai:v0.32.0
    Port:           8000/TCP
    Args:
      --model
      org/model
      --tensor-parallel-size
      8
      --max-model-len=65536
    State:          Running
      Started:      Wed, 01 Jul 2026 09:59:00 +0000
    Ready:          True
    Environment:
      VLLM_USE_DEEP_GEMM:  1
      HF_TOKEN:  <set to the key 'token' in secret 'hf'>  Optional: false
Conditions:
  Type              Status
  Ready             True
"""
    variables, words = find_command("pod.txt", described)
    assert words == ["--model", "org/model", *SIZES[:2], "--max-model-len=65536"]
    assert variables["VLLM_USE_DEEP_GEMM"] == "1"


def test_the_last_start_in_a_log_counts() -> None:
    start = (
        "INFO 08-21 11:02:10 [utils.py:273] non-default args: {{'model': 'org/model',"
        " 'max_model_len': {}}}\n"
        "INFO 08-21 11:02:41 [core.py:121] Initializing a V1 LLM engine (v{}) with config: x\n"
    )
    log = start.format(40960, "0.26.0") + "RuntimeError: out of memory\n"
    command = read_serve_command(log + start.format(8192, "0.27.1"))
    assert command.values["serving"]["engine"]["max_model_len"] == 8192
    assert command.values["serving"]["production_release"] == "0.27.1"
