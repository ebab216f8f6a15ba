"""Makefiles, justfiles, PowerShell and shell scripts whose values are in other lines."""

import json

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.commands.find import find_command
from outrider.serving.commands.forms.make_files import script_of_makefile, with_dotenv
from outrider.serving.commands.serve_command import read_serve_command

MAKEFILE = """SPEC ?= {spec}
TP = 2
TP ?= 8
{condition}
FLAGS = --seed 1
else ifeq ($(SPEC),b)
FLAGS = --seed 2
else
FLAGS = --seed 3
endif
serve:
\tvllm serve org/model -tp $(TP) $(FLAGS)
"""


def words_in(text: str) -> list[str]:
    return find_command("x", text)[1]


@pytest.mark.parametrize(
    ("spec", "condition", "seed"),
    [
        ("a", "ifeq ($(SPEC),a)", "1"),
        ("b", "ifeq ($(SPEC),a)", "2"),
        ("c", "ifeq ($(SPEC),a)", "3"),
        ("c", "ifneq ($(SPEC),a)", "1"),
        ("a", 'ifeq "$(SPEC)" "a"', "1"),
        ("a", "ifdef SPEC", "1"),
        ("b", "ifdef OTHER", "2"),
        ("b", "ifndef OTHER", "1"),
        ("b", "ifneq ($(OTHER),)", "2"),
        ("", "ifdef SPEC", "3"),
        ("a", "WIDE = $(SPEC)\nifeq ($(WIDE),a)", "1"),
        ("a", "MORE += x\nifdef MORE", "1"),
        ("a", "override SPEC := b\nifeq ($(SPEC),a)", "2"),
        ("a", "FIRST := $(SPEC)$(LATER)\nLATER := x\nifeq ($(FIRST),a)", "1"),
    ],
)
def test_a_makefile_s_conditions_are_decided(spec: str, condition: str, seed: str) -> None:
    words = words_in(MAKEFILE.format(spec=spec, condition=condition))
    assert words == ["org/model", "-tp", "2", "--seed", seed]


@pytest.mark.parametrize(
    "line", ["SIZE != nproc", "define SIZE\n8\nendef", "include size.mk", "SIZE = $(shell nproc)"]
)
def test_a_condition_on_an_unknown_value_leaves_both_branches(line: str) -> None:
    flags = "ifeq ($(SIZE),8)\nTP = 8\nendif\n"
    text = f"{line}\nTP = 2\n{flags}serve:\n\tvllm serve org/model -tp $(TP)\n"
    assert words_in(text) == ["org/model", "-tp", "8"]


def test_conditions_take_linear_time() -> None:
    text = f"A = {40_000 * 'x'}\nB = {2_400 * '$(A)'}\n" + 200 * "ifeq ($(B),x)\nendif\n"
    assert "vllm serve m" in script_of_makefile(f"{text}serve:\n\tvllm serve m\n")


JUSTFILE = """set dotenv-load
model := env("MODEL", "org/other")
tp := env_var_or_default('TP', '2')
serve:
    vllm serve {{ model }} -tp {{ tp }}
"""


def test_a_justfile_s_variables_are_those_of_env_or_their_defaults() -> None:
    assert words_in(JUSTFILE) == ["org/other", "-tp", "2"]
    with_file = with_dotenv(JUSTFILE, {"MODEL": "org/model"})
    assert words_in(with_file) == ["org/model", "-tp", "2"]
    assert with_dotenv("MODEL=a\n", {"MODEL": "b"}) == "MODEL=a\n"
    unset = JUSTFILE.replace("set dotenv-load", "set dotenv-load := false")
    assert with_dotenv(unset, {"MODEL": "b"}) == unset


POWERSHELL = """param(
    [string] $Model = 'org/model',
    [int]$Tp = 2,
    [switch] $Eager
)
$serve = @(
    '--model', $Model,   # the target
    "--tensor-parallel-size", $Tp
)
$serve += '--seed', 0
if ($Eager) {
    $serve += '--enforce-eager'
}
if (-not $Eager) {
    $serve += @('--max-num-seqs', 8)
}
docker run --gpus all vllm/vllm-openai:v0.32.0 @serve
"""


def test_a_powershell_script_s_arrays_are_words() -> None:
    served = ["--model", "org/model", "--tensor-parallel-size", "2", "--max-num-seqs", "8"]
    assert words_in(POWERSHELL.replace("$serve += '--seed', 0\n", "")) == served
    with pytest.raises(Exception, match="in the same way @other"):
        words_in("docker run vllm/vllm-openai --model $Model @other\n$Model = 'm'\n")


ADDED = """$serve = @("--model", "org/model")
{line}
docker run vllm/vllm-openai @serve
"""


@pytest.mark.parametrize(
    "line",
    ['$serve += "-tp", "4"', '$serve += @("-tp", "4") # yes', "$serve += '-tp', 4 ;"],
)
def test_what_is_added_to_an_array_is_read(line: str) -> None:
    assert words_in(ADDED.format(line=line))[2:] == ["-tp", "4"]


@pytest.mark.parametrize(
    "line",
    [
        '$serve = $serve + @("-tp", "4")',
        'if ($env:BIG) {\n  $serve += "--enforce-eager"\n}',
        "param([switch] $E)\nif ($E) {\n  $serve += '-x'\n} else {\n  $serve += '-y'\n}",
        "param([switch] $E)\n$E = $true\nif ($E) {\n  $serve += '-x'\n}",
        "if ($Debugging)\n{\n  $serve += '--enforce-eager'\n}",
        "if ($Debugging) { # debug\n  $serve += '--enforce-eager'\n}",
        "1..2 | ForEach-Object {\n  $serve += '--enforce-eager'\n}",
    ],
)
def test_an_array_that_is_set_in_another_way_is_refused_by_its_name(line: str) -> None:
    with pytest.raises(OutriderError, match="@serve: contains a shell variable"):
        words_in(ADDED.format(line=line))


def test_a_switch_s_name_has_no_case() -> None:
    line = "param([switch]$Eager = $false)\nif ($eager) {\n  $serve += '--enforce-eager'\n}"
    line += "\n# $serve += '--seed'"
    assert words_in(ADDED.format(line=line)) == ["--model", "org/model"]


@pytest.mark.parametrize(
    "line",
    [
        "$hosts = @(gpu-node-0001.example.internal:8000)",
        "$files = @(Get-ChildItem -Recurse -Filter *.safetensors)",
        "$b = @(" + 40 * "a" + "!",
        "$b = @(" + 200 * "#a\n" + "!",
    ],
)
def test_other_arrays_are_left_in_linear_time(line: str) -> None:
    assert words_in(f"vllm serve org/model `\n  -tp 2\n{line}\n")[:3] == ["org/model", "-tp", "2"]


@pytest.mark.parametrize(
    "config",
    [
        """"$(cat <<'JSON'\n{\n  "method": "ngram"\n}\nJSON\n)\"""",
        """"$(cat <<JSON\n{"method": "$METHOD"}\nJSON\n)\"""",
        """"$(printf '{"method": "%s"}' "$METHOD")\"""",
        """$(printf '{"method": "%s"}' $METHOD)""",
    ],
)
def test_a_text_that_a_word_reads_is_the_word(config: str) -> None:
    script = f"METHOD=ngram\nvllm serve org/model --speculative-config {config}\n"
    _, flag, value = words_in(script)
    assert flag == "--speculative-config"
    assert "".join(value.split()) == '{"method":"ngram"}'


def test_a_text_that_is_only_printed_starts_nothing() -> None:
    usage = "usage() {\n  cat <<EOF\nvllm serve org/other\nEOF\n}\n"
    assert words_in(f"{usage}vllm serve org/model\n") == ["org/model"]
    assert words_in(usage) == ["org/other"]  # a page of instructions
    assert words_in(f"{usage}sudo systemctl restart vllm\n") == ["org/other"]


LISTED = """kind: List
apiVersion: v1
items:
- kind: Deployment
  apiVersion: apps/v1
  spec:
    template:
      spec:
        containers:
        - image: vllm/vllm-openai:v0.32.0
          args: [--model, $(MODEL)]
          env:
          - {name: MODEL, valueFrom: {configMapKeyRef: {name: llm, key: model}}}
- kind: ConfigMap
  apiVersion: v1
  metadata: {name: llm}
  data: {model: org/model}
"""


def test_a_list_of_kubectl_s_is_its_documents() -> None:
    assert words_in(LISTED) == ["--model", "org/model"]


def test_a_hub_s_address_has_the_revision() -> None:
    service = (
        "spec: {predictor: {model: {modelFormat: {name: vLLM}, args: [-tp=2],"
        " storageUri: 'hf://org/model:abc123'}}}"
    )
    target = read_serve_command(service).values["target"]
    assert target == {"model": "org/model", "revision": "abc123"}


def test_of_a_chart_s_models_that_of_embeddings_is_left_out() -> None:
    values = """servingEngineSpec:
  modelSpec:
  - {name: a, repository: vllm/vllm-openai, tag: v0.32.0, modelURL: org/model}
  - {name: b, repository: vllm/vllm-openai, tag: v0.32.0, modelURL: org/embedding,
     vllmConfig: {extraArgs: [--runner, pooling]}}
"""
    assert read_serve_command(values).values["target"] == {"model": "org/model"}


def test_gcloud_s_command_has_the_script_s_variables() -> None:
    deploy = "gcloud run deploy x --image=vllm/vllm-openai --args=--model=$MODEL\n"
    assert words_in(f"MODEL=${{1:-org/model}}\n{deploy}") == ["--model=org/model"]


def notebook(*cells: str) -> str:
    listed = [{"cell_type": "code", "source": cell} for cell in cells]
    return json.dumps({"cells": listed, "nbformat": 4})


def test_a_notebook_s_expressions_and_magics_are_python_s() -> None:
    cells = ["n = 4\n", "!vllm serve org/model --max-num-seqs {2 * n} --seed {n}"]
    engine = read_serve_command(notebook(*cells)).values["serving"]["engine"]
    assert engine["max_num_seqs"] == 8 and engine["extra_arguments"] == {"seed": 4}
    program = "%pip install vllm\n", "from vllm import LLM\nllm = LLM('org/model', max_num_seqs=8)"
    assert read_serve_command(notebook(*program)).values["target"] == {"model": "org/model"}
