"""Programs that start vLLM with its own arguments."""

import pytest

from outrider.serving.serve_launchers import of_launcher, words_of_prefixes
from outrider.serving.serve_text import find_command

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
    assert of_launcher(module, words) == expected
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
            [*SERVE, "--no-enable-prefix-caching"],
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
