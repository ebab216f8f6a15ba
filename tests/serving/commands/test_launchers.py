"""Programs that start vLLM with its own arguments."""

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.commands.find import find_command
from outrider.serving.commands.forms.launchers import translate_launcher, words_of_prefixes

SERVE = ["vllm", "serve", "--model", "org/model"]


@pytest.mark.parametrize(
    ("module", "words", "expected"),
    [
        (
            "dynamo.vllm",
            ["--disaggregation-mode", "decode", "--model", "org/model", "--connector", "nixl", "x"],
            ["--model", "org/model"],
        ),
        (
            "dynamo.vllm",
            ["--model=org/model", "--is-decode-worker", "--no-enable-prefix-caching"],
            ["--model=org/model", "--no-enable-prefix-caching"],
        ),
        (
            "huggingfaceserver",
            ["--model_id", "org/model", "--model_name=r1", "--max_length=8192", "--dtype", "half"],
            ["--model", "org/model", "--max-model-len=8192", "--dtype", "half"],
        ),
    ],
)
def test_a_launcher_s_own_flags_are_left_out(
    module: str, words: list[str], expected: list[str]
) -> None:
    assert translate_launcher(module, words) == expected
    assert find_command("x", f"python3 -m {module} " + " ".join(words))[1] == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "docker run -e SM_VLLM_MODEL=org/model -e SM_VLLM_SEED=3 x/vllm:0.11-gpu",
            [*SERVE, "--seed", "3"],
        ),
        (
            'env = {"SM_VLLM_MODEL": "org/model", "SM_VLLM_ENFORCE_EAGER": "true"}',
            [*SERVE, "--enforce-eager"],
        ),
        (
            "SM_VLLM_MODEL: org/model\nSM_VLLM_ENABLE_PREFIX_CACHING: false\n",
            SERVE,  # AWS: "false omits the flag entirely"
        ),
        (
            "option.model_id=org/model\noption.rolling_batch=vllm\noption.max_rolling_batch_size=64",
            [*SERVE, "--max-num-seqs", "64"],
        ),
        (
            "docker run -e HF_MODEL_ID=org/model -e OPTION_TENSOR_PARALLEL_DEGREE=4 djl:lmi",
            [*SERVE, "--tensor-parallel-size", "4"],
        ),
        ("SM_VLLM_SEED=3 vllm serve org/model", []),
        ("vllm serve org/model", []),
    ],
)
def test_variables_and_settings_of_containers_are_flags(text: str, words: list[str]) -> None:
    assert words_of_prefixes(text) == words


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ('-e \'OPTION_SPECULATIVE_CONFIG={"method": "mtp"}\'', '{"method": "mtp"}'),
        ('{"OPTION_SPECULATIVE_CONFIG": "{\\"method\\": \\"mtp\\"}"}', '{"method": "mtp"}'),
        ("- name: OPTION_SPECULATIVE_CONFIG\n  value: '{\"k\": 1}'", '{"k": 1}'),
        ('-e "OPTION_SPECULATIVE_CONFIG=a b"', "a b"),
    ],
)
def test_a_variable_s_value_is_read_in_any_quotation(text: str, setting: str) -> None:
    words = words_of_prefixes(f"HF_MODEL_ID=org/model\n{text}")
    assert words == [*SERVE, "--speculative-config", setting]


@pytest.mark.parametrize(
    "text",
    [
        "MODEL_NAME=org/model\nVLLM_EXTRA_ARGS=--kv-cache-dtype fp8 --seed 3  \nA=b\n# worker-vllm",
        "env:\n  # worker-vllm\n  MODEL_NAME: org/m\n"
        "  VLLM_EXTRA_ARGS: --kv-cache-dtype fp8 --seed 3",
        "- MODEL_NAME=org/m\n- VLLM_EXTRA_ARGS=--kv-cache-dtype fp8 --seed 3\n# worker-vllm",
        "docker run -e MODEL_NAME=org/model -e 'VLLM_EXTRA_ARGS=--kv-cache-dtype fp8 --seed 3'"
        " runpod/worker-v1-vllm:v2.14.0",
    ],
)
def test_flags_in_a_variable_are_the_rest_of_its_line_in_a_file(text: str) -> None:
    words = words_of_prefixes(text)
    assert words[-4:] == ["--kv-cache-dtype", "fp8", "--seed", "3"]


def test_flags_in_a_variable_of_a_command_end_with_its_word() -> None:
    text = (
        "docker run -e MODEL_NAME=org/model -e VLLM_EXTRA_ARGS=--seed=3 runpod/worker-v1-vllm:v3.1"
    )
    assert words_of_prefixes(text) == [*SERVE, "--seed=3"]


def test_variables_of_vllm_itself_stay_next_to_those_of_a_container() -> None:
    text = "docker run -e SM_VLLM_MODEL=org/m -e VLLM_USE_DEEP_GEMM=0 -e HF_HOME=/hf image"
    assert find_command("x", text) == ({"VLLM_USE_DEEP_GEMM": "0"}, ["--model", "org/m"])


def test_kserve_makes_float16_of_auto() -> None:
    assert translate_launcher("huggingfaceserver", ["--model_id=m"])[1:] == ["--dtype", "float16"]
    given = translate_launcher("huggingfaceserver", ["--model_id=m", "--dtype", "auto"])
    assert given[1:] == ["--dtype", "float16"]


def test_nim_without_a_number_of_gpus_is_refused() -> None:
    command = "docker run -e NIM_MODEL_PATH=hf://org/model nvcr.io/nim/nvidia/llm-nim:2.0.1"
    with pytest.raises(OutriderError, match=r"from the profile .*add --tensor-parallel-size"):
        find_command("x", command)
    words = find_command("x", f"{command} nim-serve -tp 2")[1]
    assert words == ["--model", "org/model", "-tp", "2"]


def test_nim_s_variables_are_its_command() -> None:
    service = """
services:
  nim:
    image: nvcr.io/nim/nvidia/llm-nim:2.0.1
    environment:
      NIM_MODEL_PATH: hf://org/model
      NIM_TENSOR_PARALLEL_SIZE: 8
      NIM_ENABLE_KV_CACHE_REUSE: "0"
"""
    words = find_command("x", service)[1]
    sizes = ["--tensor-parallel-size", "8", "--no-enable-prefix-caching"]
    assert words == ["--model", "org/model", *sizes]


def test_keys_behind_a_dot_stay_as_they_are_written() -> None:
    """vLLM's parser replaces underscores before the first dot only."""
    words = ["--max_model_len", "4096", "--speculative_config.num_speculative_tokens", "3"]
    expected = ["--max-model-len", "4096", "--speculative-config.num_speculative_tokens", "3"]
    assert translate_launcher("dynamo.vllm", words)[:4] == expected
