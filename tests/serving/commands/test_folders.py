"""A folder as the source of a serve command: the file in it that starts the server."""

from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.commands.serve_command import ServeCommand, read_serve_command

SERVE = "vllm serve org/model --tensor-parallel-size 2\n"
TEMPLATE = "vllm serve ${model} %{ if tp > 1 }-tp ${tp}%{ endif }\n"


def command_of(folder: Path, files: dict[str, str]) -> ServeCommand:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return read_serve_command(str(folder))


FOLDERS = {
    "start.sh": {"start.sh": SERVE, "notes.txt": "nothing", "model.bin": "\0" * 9},
    "compose.yaml": {
        "compose.yaml": "services: {vllm: {image: vllm/vllm-openai, command: --model org/x}}",
        "compose.override.yaml": "services:\n  vllm:\n    command: --model org/model -tp ${TP}\n",
        ".env": "TP=2\n",
    },
    "run.sh": {"run.sh": SERVE, "README.md": "```\nvllm serve org/other\n```\n"},
    "Dockerfile": {
        "Dockerfile": f"FROM vllm/vllm-openai\nCOPY serve.sh /\nENTRYPOINT {SERVE}",
        "serve.sh": "vllm serve org/other\n",
    },
    "deploy/serve.sh": {"deploy/serve.sh": SERVE, "README.md": "Serves a model.\n"},
    "Makefile": {
        "Makefile": "-include local.mk\nTP ?= 8\nserve:\n\tvllm serve org/model -tp $(TP)\n",
        "local.mk": "TP = 2\n",
    },
    "main.tf": {
        "main.tf": 'x = templatefile("${path.module}/run.tftpl", { model = var.model, tp = 2 })\n',
        "variables.tf": 'variable "model" { type = string }\n',
        "terraform.tfvars": 'model = "org/model"\n',
        "run.tftpl": "docker run vllm/vllm-openai --model ${model} -tp ${tp} # $${HOME}\n",
    },
    "vllm@.service": {
        "vllm@.service": (
            "[Service]\nEnvironmentFile=/etc/vllm/common.env\nEnvironmentFile=-/etc/vllm/%i.env\n"
            "ExecStart=/opt/vllm serve ${MODEL} $ARGS\n"
        ),
        "common.env": "MODEL=org/other\n",
        "mistral.env": 'MODEL=org/model\nARGS="--seed 0 \\\n  --tensor-parallel-size 2"\n',
    },
    "vllm.container": {
        "vllm.container": "[Container]\nImage=vllm/vllm-openai\nExec=--model org/model -tp 8\n",
        "vllm.container.d/10.conf": "[Container]\nExec=--model org/model -tp 2\n",
    },
}


MODEL_OF_MAP = "{configMapKeyRef: {name: settings, key: model}}"
RUNTIME = """apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: vllm}
spec:
  containers:
  - {name: kserve-container, image: vllm/vllm-openai, args: [--model, /mnt/models, --seed=3]}
"""
SERVICE = """apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: r1}
spec:
  predictor:
    model:
      modelFormat: {name: FORMAT}
      runtime: vllm
      storageUri: hf://org/model
      args: [--tensor-parallel-size=2]
"""
DEPLOYMENT = f"""apiVersion: apps/v1
kind: Deployment
metadata: {{name: vllm}}
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai
        args: [--model, $(MODEL), --seed=3, --tensor-parallel-size=2]
        env: [{{name: MODEL, valueFrom: {MODEL_OF_MAP}}}]
"""
CONFIG_MAP = """apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {model: org/model}
"""


@pytest.mark.parametrize(
    "manifests",
    [
        {"1-runtime.yaml": RUNTIME, "2-service.yaml": SERVICE.replace("FORMAT", "vLLM")},
        {"a.yaml": SERVICE, "b.yml": RUNTIME, "route.yaml": "apiVersion: v1\nkind: Route\n"},
        {"deployment.yaml": DEPLOYMENT, "map.yaml": CONFIG_MAP, "README.md": SERVE},
    ],
    ids=["runtime", "service", "map"],
)
def test_manifests_that_need_each_other_are_read_together(
    tmp_path: Path, manifests: dict[str, str]
) -> None:
    command = command_of(tmp_path, {f"k8s/{name}": text for name, text in manifests.items()})
    assert command.notes[0] == f"read from {tmp_path / 'k8s'}"
    assert command.values["target"] == {"model": "org/model"}
    engine = command.values["serving"]["engine"]
    assert engine["tensor_parallel"] == 2
    assert engine["extra_arguments"] == {"seed": 3}


def test_manifests_of_different_servers_are_no_server_together(tmp_path: Path) -> None:
    whole = DEPLOYMENT.replace("$(MODEL)", "org/model")
    other = whole.replace("name: vllm}", "name: other}").replace("=2", "=4")
    with pytest.raises(OutriderError, match=r"2 files start different servers \(a.yaml, b.yaml\)"):
        command_of(tmp_path, {"a.yaml": whole, "b.yaml": other})


@pytest.mark.parametrize("name", FOLDERS)
def test_the_file_that_starts_the_server_is_read(tmp_path: Path, name: str) -> None:
    command = command_of(tmp_path, FOLDERS[name])
    assert command.values["target"] == {"model": "org/model"}
    assert command.values["serving"]["engine"]["tensor_parallel"] == 2
    assert command.notes[0] == f"read from {tmp_path / name}"


def test_files_in_other_encodings_are_no_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "x.service.d").mkdir()
    (tmp_path / "x.service.d" / "a.conf").mkdir()
    (tmp_path / "x.service.d" / "b.conf").write_bytes("# café\n".encode("latin-1"))
    (tmp_path / "x.service").write_text(f"[Service]\nExecStart=/opt/bin/{SERVE}")
    assert command_of(tmp_path, {}).values["target"] == {"model": "org/model"}
    (tmp_path / "serve.ps1").write_bytes(f"{SERVE}".encode("utf-16"))
    assert read_serve_command(str(tmp_path / "serve.ps1")).values["target"]
    long = f"vllm serve org/model --served-model-name {300 * 'a'}"
    assert read_serve_command(long).values["target"] == {"model": "org/model"}
    assert read_serve_command("~nobody-here/bin/vllm serve org/model").values["target"]


def test_a_unit_that_needs_no_instance_is_read(tmp_path: Path) -> None:
    unit = f"[Service]\nEnvironmentFile=-/etc/vllm/%i.env\nExecStart=/usr/bin/{SERVE}"
    assert command_of(tmp_path, {"v@.service": unit}).values["target"] == {"model": "org/model"}
    files = {"v@.service": unit, "prod.env": "VLLM_USE_DEEP_GEMM=1\n"}
    engine = command_of(tmp_path, files).values["serving"]["engine"]
    assert engine["environment"] == {"VLLM_USE_DEEP_GEMM": "1"}
    for name in files:
        (tmp_path / name).unlink()
    strange = dict(FOLDERS["vllm@.service"])
    strange["a\\1b.env"] = strange.pop("mistral.env")
    assert command_of(tmp_path, strange).values["target"] == {"model": "org/model"}


def test_of_several_instances_of_a_unit_none_is_chosen(tmp_path: Path) -> None:
    files = FOLDERS["vllm@.service"] | {"llama.env": "MODEL=org/llama\n"}
    with pytest.raises(OutriderError, match="replace %i by its instance, one of llama, mistral"):
        command_of(tmp_path, files)


def test_equal_commands_of_several_files_are_one(tmp_path: Path) -> None:
    assert command_of(tmp_path, {"a.sh": SERVE, "b.sh": SERVE}).notes[0].endswith("a.sh")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"a.sh": SERVE, "b.sh": "vllm serve org/b\n"},
            r"2 files start different .*\(a.sh, b.sh\)",
        ),
        ({"a.sh": SERVE, "b.sh": "# unlike a.sh\nvllm serve org/b\n"}, "2 files start"),
        ({"a.sh": SERVE, "b.sh": "./old-a.sh\nvllm serve org/b\n"}, "2 files start"),
        ({"a.sh": SERVE, "b.sh": "echo ./a.sh\nvllm serve org/b # ./a.sh\n"}, "2 files start"),
        (FOLDERS["main.tf"] | {"run.tftpl": TEMPLATE}, r"\$\{model\}: contains a shell variable"),
        ({"a.txt": "nothing"}, "no file in this folder starts `vllm serve`"),
        ({}, "no file in this folder starts `vllm serve`"),
        ({"kustomization.yaml": "resources: [a.yaml]"}, "kubectl kustomize .* > rendered.yaml"),
        ({"Chart.yaml": "name: vllm", "a.sh": SERVE}, "helm template .* > rendered.yaml"),
        (
            {"a.sh": "vllm serve $MODEL\n", "b.txt": "x"},
            r"a.sh: \$MODEL: contains a shell variable",
        ),
        ({"a.sh": "python -m sglang.launch_server --model-path m\n"}, "a command of SGLang"),
    ],
)
def test_a_folder_is_refused_with_the_fix(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    with pytest.raises(OutriderError, match=message):
        command_of(tmp_path, files)
