"""Commands that programs and other tools' files build."""

import itertools
import json

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.commands.find import find_command
from outrider.serving.commands.serve_command import read_serve_command


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            'MODEL = "org/model"\ncmd = ["vllm", "serve", MODEL]\ncmd += ["-tp", str(8)]\n',
            ["org/model", "-tp", "8"],
        ),
        (
            'import os\nargs = ["--seed", os.environ.get("SEED", "3")]\n'
            'cmd = ["/opt/bin/vllm", "serve", f"org/{\'model\'}", *args]\n',
            ["org/model", "--seed", "3"],
        ),
        (
            "FAST = True\n\ndef serve():\n"
            '    cmd = ["vllm", "serve", "org/model"]\n'
            '    cmd.append("--enforce-eager" if FAST else "--no-enforce-eager")\n'
            '    if not_known():\n        cmd.extend(["--seed", "1"])\n'
            "    if FAST:\n        pass\n"
            '    else:\n        cmd += ["--seed", "2"]\n',
            ["org/model", "--enforce-eager", "--seed", "1"],
        ),
        (
            'import sys\ncmd: list[str] = [sys.executable, "-m",'
            ' "vllm.entrypoints.openai.api_server", "--model", "org/model"]\n',
            ["--model", "org/model"],
        ),
    ],
)
def test_a_python_program_s_list_is_followed(lines: str, words: list[str]) -> None:
    assert find_command("serve.py", lines)[1] == words


def test_what_python_does_not_say_is_named() -> None:
    program = 'import modal\ncmd = ["vllm", "serve", config.model]\n'
    with pytest.raises(OutriderError, match=r"serve.py: \$\{config_model\}: .*replace it"):
        find_command("serve.py", program)


def test_an_engine_has_the_variables_that_its_program_exports() -> None:
    program = (
        "import os\nfrom vllm import AsyncEngineArgs\n"
        'os.environ.setdefault("VLLM_A", "1")\nos.environ["VLLM_B"] = "2"\n'
        'AsyncEngineArgs(model="org/m", tensor_parallel_size=2)\n'
    )
    variables, words = find_command("x", program)
    assert variables == {"VLLM_A": "1", "VLLM_B": "2"}
    assert words == ["org/m", "--tensor-parallel-size", "2"]


def test_a_makefile_s_variables_have_their_values() -> None:
    makefile = (
        "MODEL ?= org/model\nTP := 8\nFLAGS = --seed 3 --max-model-len 65536\n"
        "export VLLM_USE_DEEP_GEMM = 1\n\n.PHONY: serve\n\n"
        "serve: setup  ## starts it\n\t@echo $$HOME\n"
        "\t@vllm serve $(MODEL) -tp ${TP} \\\n\t\t$(FLAGS)\n"
    )
    variables, words = find_command("Makefile", makefile)
    assert words == ["org/model", "-tp", "8", "--seed", "3", "--max-model-len", "65536"]
    assert variables["VLLM_USE_DEEP_GEMM"] == "1"


@pytest.mark.parametrize("quoted_name", ["VLLM_USE_DEEP_GEMM", '"VLLM_USE_DEEP_GEMM"'])
def test_a_container_in_hcl_has_image_arguments_and_variables(quoted_name: str) -> None:
    job = (
        f'env {{\n  {quoted_name} = "1"\n}}\nconfig {{\n  image = "vllm/vllm-openai:v0.32.0"\n'
        '  args = [\n    # the model\n    "--model", "org/model",\n    "-tp", "8",\n  ]\n}\n'
    )
    variables, words = find_command("r1.nomad.hcl", job)
    assert words == ["--model", "org/model", "-tp", "8"]
    assert variables == {"VLLM_USE_DEEP_GEMM": "1"}


def test_variables_of_a_container_in_a_dictionary() -> None:
    script = """
import json
env = {
    "SM_VLLM_MODEL": "org/model",
    "SM_VLLM_MAX_NUM_SEQS": "32",
    # "SM_VLLM_KV_CACHE_DTYPE": "fp8",
    "SM_VLLM_SPECULATIVE_CONFIG": json.dumps({
        "method": "mtp", "num_speculative_tokens": 3,
    }),
}
client.create_model(PrimaryContainer={"Image": "x/vllm:0.11.2-gpu-py312", "Environment": env})
"""
    command = read_serve_command(script)
    assert command.values["target"] == {"model": "org/model"}
    assert command.values["eval"] == {"current_k": 3}
    engine = command.values["serving"]["engine"]
    assert engine["max_num_seqs"] == 32 and engine["extra_arguments"] == {}


def test_a_batch_file_of_windows() -> None:
    script = (
        '@echo off\r\nrem set TP=8\r\nset TP=2\r\nset "MODEL=C:\\models\\m"\r\n'
        'if "%~1"=="long" set TP=4\r\nif not defined SEED set SEED=3\r\n'
        "vllm serve %MODEL% ^\r\n  -tp %TP% --seed %SEED% ^\r\n"
        '  --speculative-config "{\\"method\\":\\"ngram\\"}"\r\n'
    )
    words = ["C:/models/m", "-tp", "2", "--seed", "3", "--speculative-config"]
    assert find_command("x", script)[1] == [*words, '{"method":"ngram"}']


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("set TP=4\nif not defined TP set TP=2\nvllm serve m -tp %TP%", ["m", "-tp", "4"]),
        ("set TP=2\ncd C:\\x && vllm serve m -tp !TP!", ["m", "-tp", "2"]),
        ("if exist C:\\m vllm serve m -tp 2", ["m", "-tp", "2"]),
    ],
)
def test_lines_of_a_batch_file(lines: str, words: list[str]) -> None:
    assert find_command("x", f"@echo off\n{lines}\n")[1] == words


def test_an_argument_of_a_batch_file_is_refused() -> None:
    with pytest.raises(OutriderError, match="contains a shell variable"):
        find_command("x", "@echo off\nvllm serve %1\n")


def test_a_shell_s_text_with_an_assignment_of_windows_is_no_batch_file() -> None:
    text = "set HF_HOME=x\nvllm serve org/m \\\n  -tp 8\n"
    assert find_command("x", text)[1] == ["org/m", "-tp", "8"]


def test_powershell() -> None:
    script = """
$Model = "org/model"
$MaxLen = 24576
docker run --gpus all `\r
  -v "$env:USERPROFILE\\.cache:/root/.cache" --env VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 `\r
  vllm/vllm-openai:v0.22.0 `\r
  --model $Model --max-model-len $MaxLen `\r
  --speculative-config '{\\"method\\": \\"ngram\\", \\"num_speculative_tokens\\": 3}'\r
docker logs -f vllm\r
"""
    command = read_serve_command(script)
    assert command.values["target"] == {"model": "org/model"}
    assert command.values["serving"]["engine"]["max_model_len"] == 24576
    assert command.values["eval"] == {"current_k": 3}
    assert command.values["serving"]["production_release"] == "0.22.0"


@pytest.mark.parametrize(
    "doubling",
    ["a += a", "a = a + a", 'a = f"{a}{a}"', "a = [*a, *a]", "a = [a, a]", 'a = " ".join([a, a])'],
)
def test_a_value_that_doubles_is_followed_only_so_far(doubling: str) -> None:
    begin = 'a = ["-tp", "8"]' if "[" in doubling else 'a = "vllm"'
    lines = ["import subprocess", begin, *[doubling] * 60, 'subprocess.run(["vllm", "serve", a])']
    with pytest.raises(OutriderError):
        read_serve_command("\n".join(lines))


def test_attributes_have_the_defaults_of_arguments_and_fields() -> None:
    program = """
import argparse, subprocess
from dataclasses import dataclass, field

@dataclass
class Settings:
    length: int = 16 * 1024
    more: list = field(default_factory=lambda: ["--max-num-seqs", "24"])

parser = argparse.ArgumentParser()
parser.add_argument("model", default="org/model")
parser.add_argument("-t", "--tensor-parallel", type=int, default=4)
parser.add_argument("--eager", action="store_true")
args = parser.parse_args()
words = ["vllm", "serve", args.model, "-tp", str(args.tensor_parallel)]
words += ["--max-model-len", str(settings.length), *settings.more]
if args.eager:
    words.append("--enforce-eager")
subprocess.run(words)
"""
    command = read_serve_command(program)
    values = command.values
    assert values["target"] == {"model": "org/model"}
    assert any("defaults of arguments" in note for note in command.notes)
    engine = values["serving"]["engine"]
    assert (engine["tensor_parallel"], engine["max_model_len"]) == (4, 16384)
    assert (engine["max_num_seqs"], engine["mode"]) == (24, "compiled")


def test_variables_of_a_play_that_stand_for_each_other_are_bounded() -> None:
    names = [f"v{index}" for index in range(6)]
    sections = {
        name: f"{{{{ {following} }}}}" * 200 for name, following in itertools.pairwise(names)
    }
    play = [{"hosts": "a", "vars": {**sections, "v5": "x"}, "command": "vllm serve {{ v0 }}"}]
    with pytest.raises(OutriderError, match=r"makes a value longer than 1000000 characters"):
        read_serve_command(json.dumps(play))
