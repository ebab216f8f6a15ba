"""Commands copied from notebooks, mails, documents, histories, screenshots and process lists."""

import email.message
import json
import quopri

import pytest
import yaml

from outrider.common.errors import OutriderError
from outrider.serving.commands.find import find_command
from outrider.serving.commands.forms.gcloud import words_of_gcloud
from outrider.serving.commands.forms.llama_swap import words_of_llama_swap
from outrider.serving.commands.forms.pasted import strip_paste_marks
from outrider.serving.commands.serve_command import read_serve_command

SETTINGS = '{"method": "mtp", "num_speculative_tokens": 1}'
SCRIPT = f"vllm serve org/model -tp 8 \\\n  --speculative-config '{SETTINGS}' \\\n  --dtype half\n"
WORDS = ["org/model", "-tp", "8", "--speculative-config", SETTINGS, "--dtype", "half"]


def notebook(*cells: str, kind: str = "code") -> str:
    listed = [{"cell_type": kind, "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps({"cells": listed, "nbformat": 4, "metadata": {}}, indent=1)


@pytest.mark.parametrize(
    "cell",
    [
        f"!nohup {SCRIPT.rstrip()} > log.txt 2>&1 &",
        f"%%bash\n{SCRIPT}",
        f"#!vllm serve x\n!{SCRIPT}",
    ],
)
def test_a_notebooks_cells_are_a_script(cell: str) -> None:
    text = notebook("%env VLLM_USE_DEEP_GEMM=1\nimport os", "import torch\n", cell)
    variables, words = find_command("x", strip_paste_marks(text))
    assert words == WORDS
    assert variables == {"VLLM_USE_DEEP_GEMM": "1"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("vllm serve {model} -tp {size}", ["org/model", "-tp", "8"]),
        ("vllm serve $model \\\n  -tp $size", ["org/model", "-tp", "8"]),
        ("vllm serve {model} --seed {size}\nmodel = 'org/later'", ["org/model", "--seed", "8"]),
        (
            'vllm serve {model} --speculative-config \'{{"a": {{"b": 1}}}}\'',
            ["org/model", "--speculative-config", '{"a": {"b": 1}}'],
        ),
        (
            'vllm serve {model} --speculative-config \'{"a": {"b": 1}}\'',
            ["org/model", "--speculative-config", '{"a": {"b": 1}}'],
        ),
    ],
)
def test_a_notebooks_command_has_the_values_of_python(command: str, expected: list[str]) -> None:
    cells = ["owner = 'org'\n%env A=b\nsize = 2 * 4", "!pip install vllm\nsize = 8"]
    text = notebook(*cells, "model = f'{owner}/model'", f"!{command}")
    assert find_command("x", strip_paste_marks(text))[1] == expected


def test_a_notebooks_prose_is_no_command() -> None:
    with pytest.raises(OutriderError, match="no `vllm serve`"):
        find_command("x", strip_paste_marks(notebook(SCRIPT, kind="markdown")))


def test_other_json_stays() -> None:
    text = '{"cells": [], "nbformat": 4'
    assert strip_paste_marks(text) == text


def test_a_mail_is_decoded_and_its_quoted_lines_are_read() -> None:
    quoted = "".join(f"> {line}\n" for line in SCRIPT.splitlines())
    body = f"Hi,\n\n{quoted}\nGrüße\n> On 12 Nov, Jo wrote:\n>> the vllm command? I have =20\n"
    message = email.message.EmailMessage()
    message.set_content(body, cte="quoted-printable")
    assert find_command("x", strip_paste_marks(message.as_string()))[1] == WORDS
    # A part that was copied from the source has no header.
    encoded = quopri.encodestring(quoted.replace("-tp 8", f"-tp 8 --seed=0 {'x' * 70}").encode())
    words = find_command("x", strip_paste_marks(encoded.decode()))[1]
    assert words[:4] == ["org/model", "-tp", "8", "--seed=0"]


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve org/model --cudagraph-capture-sizes 1 2 \\\n> vllm.log 2>&1\n",
        "vllm serve \\\n> vllm.log --model org/model\n",
        "export TOKEN=aGk=\nvllm serve org/model --served-model-name=3D-gen\n",
    ],
)
def test_what_only_looks_like_a_mail_stays(text: str) -> None:
    assert strip_paste_marks(text) == text


def test_a_pdfs_letters_are_a_keyboards() -> None:
    typeset = (
        "The con\u00adtainer:\n\nvllm serve org/my\u2011model ––max\u2011num\u2011seqs 96"
        " ––speculative\u2011con\ufb01g ‘{“method”: “ngram”,\n    “num_speculative_tokens”: 4}’\n"
        "    ––dtype half\n"
    )
    assert find_command("x", strip_paste_marks(typeset))[1] == [
        *("org/my-model", "--max-num-seqs", "96", "--speculative-config"),
        *('{"method": "ngram",\n    "num_speculative_tokens": 4}', "--dtype", "half"),
    ]


def zsh(*commands: str) -> str:
    return "".join(f": {1763370000 + at}:0;{command}\n" for at, command in enumerate(commands))


def test_zshs_history_is_one_command_a_line() -> None:
    long = SCRIPT.rstrip().replace("\\\n", "\\\\\n")
    assert find_command("x", strip_paste_marks(zsh("cd ~", "nvidia-smi", long, long)))[1] == WORDS
    with pytest.raises(OutriderError, match="2 different commands"):
        find_command("x", strip_paste_marks(zsh("vllm serve org/model -tp 2", long)))
    commented = zsh("# start\\\nvllm serve org/model -tp 2")
    assert find_command("x", strip_paste_marks(commented))[1] == ["org/model", "-tp", "2"]


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("--max-model-le", "ends in --max-model-le, a flag without its value"),
        ("--max_num_seqs", "ends in --max-num-seqs, a flag without its value"),
        ("--max-num-seqs l28", "not its value"),
        ("--max-num-seqs x --max-mode1-len 3", r"has no --max-mode1-len \(--max-model-len\?\)"),
    ],
)
def test_a_command_that_is_cut_or_misread_is_refused(end: str, why: str) -> None:
    with pytest.raises(OutriderError, match=why):
        read_serve_command(f"vllm serve org/model -tp 8 {end}\n")


@pytest.mark.parametrize("end", ["--enforce-eager", "--enforce", "--seed 1", "-tp 2"])
def test_other_ends_are_read(end: str) -> None:
    assert read_serve_command(f"vllm serve org/model {end}\n").values["target"]["model"]


def test_helms_values_begin_below_their_title() -> None:
    spec = {"modelURL": "org/model", "vllmConfig": {"tensorParallelSize": 8}}
    values = yaml.safe_dump({"servingEngineSpec": {"modelSpec": [spec]}})
    words = find_command(
        "x", strip_paste_marks(f"$ helm get values v\nUSER-SUPPLIED VALUES:\n{values}")
    )[1]
    assert words[0] == "org/model"
    assert words[words.index("--tensor-parallel-size") + 1] == "8"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("^;^--model=org/m;--x={1,2};-tp=2", ["--model=org/m", "--x={1,2}", "-tp=2"]),
        ("--model,org/m,-tp,2", ["--model", "org/m", "-tp", "2"]),
    ],
)
def test_gclouds_lists_are_words(arguments: str, words: list[str]) -> None:
    image = "vllm/vllm-openai:v0.12.0"
    vertex = ["gcloud", "ai", "models", "upload", f"--container-image-uri={image}"]
    (of_vertex,) = words_of_gcloud([*vertex, f"--container-args={arguments}"])
    assert of_vertex[-len(words) :] == words and of_vertex[-len(words) - 1] == image
    run = ["gcloud", "run", "deploy", "--command", "vllm,serve", "--args", arguments]
    other = ["&&", "gcloud", "run", "services", "update", "--set-env-vars=A=3"]
    (of_run,) = words_of_gcloud([*run, "--set-env-vars=A=1,B=2", *other])
    assert of_run == ["A=1", "B=2", "vllm", "serve", *words]
    assert not list(words_of_gcloud(["x", f"--args={arguments}"]))


def test_llama_swaps_macros_are_replaced() -> None:
    document = {
        "startPort": 9000,
        "macros": {"len": 4096, "server": "vllm serve ${model} --port ${PORT}", "model": "org/a"},
        "models": {
            "other": {"cmd": "llama-server -m x.gguf --port ${PORT}"},
            "m": {"cmd": "${server} --max-model-len ${len}", "macros": {"model": "org/m"}},
        },
    }
    _, words = words_of_llama_swap([document])
    expected = ["vllm", "serve", "org/m", "--port", "9000", "--max-model-len", "4096"]
    assert words[1:] == expected
    assert find_command("x", yaml.safe_dump(document))[1] == expected[2:]


def test_the_first_nodes_branch_is_read() -> None:
    script = (
        'EXTRA=()\nif [[ "${NODE_RANK}" != "0" ]]; then\n  EXTRA+=(--headless)\nfi\n'
        'vllm serve org/m -tp 8 --node-rank "$NODE_RANK" ${EXTRA[@]+"${EXTRA[@]}"}\n'
    )
    assert "--headless" not in find_command("x", script)[1]
    set_here = f"NODE_RANK=1\n{script}"
    assert "--headless" in find_command("x", set_here)[1]
    one_branch = "if [ $NODE_RANK -eq 1 ]; then\n  vllm serve org/m -tp 8\nfi\n"
    assert find_command("x", one_branch)[1] == ["org/m", "-tp", "8"]
