"""The vLLM command in scripts, container commands and manifests."""

import json
import shlex

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.common.errors import OutriderError
from outrider.serving.commands.find import find_command
from outrider.serving.commands.forms.pasted import strip_paste_marks
from outrider.serving.commands.forms.unresolved import UNRESOLVED

SETTINGS = '{"method": "mtp", "num_speculative_tokens": 1}'
WORDS = ["org/model", "-tp", "8", "--speculative-config", SETTINGS, "--port=8000"]
VARIABLES = {"VLLM_USE_DEEP_GEMM": "1", "VLLM_ALL2ALL_BACKEND": "naive"}
IMAGE = "vllm/vllm-openai:v0.32.0"


def manifest(**container: object) -> str:
    pod = {"spec": {"containers": [{"name": "vllm", "image": IMAGE, **container}]}}
    return yaml.safe_dump({"kind": "Deployment", "spec": {"template": pod}})


def compose(**service: object) -> str:
    return yaml.safe_dump({"services": {"vllm": {"image": IMAGE, **service}}})


def forms(words: list[str], variables: dict[str, str]) -> dict[str, str]:
    """The same command as people write it."""
    flags = shlex.join(words)
    set_first = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    exported = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    docker = " ".join(f"-e {name}={shlex.quote(value)}" for name, value in variables.items())
    lines = " \\\n    ".join(map(shlex.quote, words))
    unit = "".join(f"Environment={shlex.quote(f'{k}={v}')}\n" for k, v in variables.items())
    supervised = ",".join(f'{name}="{value}"' for name, value in variables.items())
    image_env = "".join(f"ENV {name}={shlex.quote(value)}\n" for name, value in variables.items())
    inspected = {
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "Cmd": words,
        "Image": IMAGE,
        "Entrypoint": ["vllm", "serve"],
    }
    of_pod = [{"name": name, "value": value} for name, value in variables.items()]
    script = f"{exported}vllm serve {lines}"
    run = f"docker run --rm --gpus all --name vllm --ipc=host -v ~/.cache:/root -p 1:1 {docker}"
    return {
        "prefix": f"{set_first} vllm serve {flags}",
        "env": f"env {set_first} nohup /opt/bin/vllm serve {flags} > log.txt 2>&1 &",
        "script": f"#!/bin/bash\nset -e  # fail fast\n{script}\necho done\n",
        "exec": f"{exported}\nexec numactl -N 0 {script.removeprefix(exported)} | tee log",
        "spaces after backslashes": script.replace("\\\n", "\\  \r\n"),
        "module": f"{set_first} python3 -m vllm.entrypoints.openai.api_server {flags}",
        "cli module": f"{set_first} python -m vllm.entrypoints.cli.main serve {flags}",
        "bash -c": f"{set_first} bash -lc {shlex.quote(f'cd /x && vllm serve {flags} 2>err')}",
        "docker": f"sudo {run} {IMAGE} {flags}",
        "podman": f"{run} docker.io/{IMAGE} vllm serve {flags}".replace("docker run", "podman run"),
        "docker bash": f"{run} rocm/vllm:latest bash -c {shlex.quote(f'vllm serve {flags}')}",
        "kubernetes args": manifest(args=words, env=of_pod),
        "kubernetes command": manifest(command=["vllm", "serve"], args=words, env=of_pod),
        "kubernetes shell": manifest(
            command=["/bin/sh", "-c"], args=[f"exec vllm serve {flags}"], env=of_pod
        ),
        "kubernetes json": json.dumps(yaml.safe_load(manifest(args=words, env=of_pod))),
        "systemd": f"[Unit]\nAfter=network.target\n\n[Service]\n{unit}"
        f"ExecStartPre=/usr/bin/nvidia-smi\nExecStart=-/opt/bin/vllm serve {lines}\n"
        "ExecStop=/bin/kill $MAINPID\n\n[Install]\nWantedBy=multi-user.target\n",
        "systemctl cat": f"# /etc/systemd/system/r1.service\n[Service]\nExecStart=/bin/false\n\n"
        f"# /etc/systemd/system/r1.service.d/x.conf\n[Service]\n{unit}ExecStart=\n"
        f"ExecStart=vllm serve {flags}\n",
        "ansible": yaml.safe_dump(
            [
                {
                    "tasks": [
                        {"docker_container": {"image": IMAGE, "command": words, "env": variables}}
                    ]
                }
            ]
        ),
        "systemd shell": f"[Service]\n{unit}"
        f"ExecStart=/bin/bash -lc {shlex.quote(f'cd /x && exec vllm serve {flags}')}\n",
        "quadlet": f"[Container]\nImage=docker.io/{IMAGE}\n{unit}Exec={flags}\n\n[Service]\n",
        "supervisor": f"[program:r1]\ncommand=vllm serve {flags}\nenvironment={supervised}\n",
        "dockerfile": f"FROM {IMAGE} AS serve\n{image_env}EXPOSE 8000\nCMD {json.dumps(words)}\n",
        "dockerfile entry point": f"FROM nvidia/cuda:12.8.0-runtime\n{image_env}"
        f"ENTRYPOINT {json.dumps(['vllm', 'serve'])}\nCMD {json.dumps(words)}\n",
        "docker inspect": json.dumps([{"Id": "a", "Config": inspected}], indent=4),
        "slurm": f"#!/bin/bash\n#SBATCH --gres=gpu:8\n{exported}"
        f"srun apptainer exec --nv /x/vllm.sif vllm serve {lines}\n",
        "powershell": f"{run} `\r\n  {IMAGE} `\r\n  "
        + " `\r\n  ".join(map(shlex.quote, words))
        + "\r\n",
        "bash array": f"{exported}ARGS=(\n  # flags\n"
        + "".join(f"  {shlex.quote(word)}\n" for word in words)
        + """)\nvllm serve "${ARGS[@]}"\n""",
        "skypilot": yaml.safe_dump(
            {"envs": variables, "setup": "uv pip install vllm", "run": f"vllm serve {lines}\n"}
        ),
        "markdown": f"It's started with\n\n```bash\n{script}\n```\n\nand isn't public.\n",
        "ssh": f"ssh gpu-1 {shlex.quote(exported.replace(chr(10), '; ') + f'vllm serve {flags}')}",
        "apptainer": f"{set_first} apptainer run --nv docker://{IMAGE} {flags}",
        "production stack": yaml.safe_dump(
            {
                "kind": "VLLMRuntime",
                "spec": {
                    "model": {"modelURL": words[0]},
                    "vllmConfig": {"extraArgs": words[1:]},
                    "env": of_pod,
                },
            }
        ),
        "llm-d": yaml.safe_dump(
            {
                "modelArtifacts": {"uri": f"hf://{words[0]}"},
                "decode": {
                    "containers": [{"modelCommand": "vllmServe", "args": words[1:], "env": of_pod}]
                },
            }
        ),
        "kserve": yaml.safe_dump(
            {
                "kind": "LLMInferenceService",
                "spec": {
                    "model": {"uri": f"hf://{words[0]}"},
                    "template": {"containers": [{"args": words[1:], "env": of_pod}]},
                },
            }
        ),
        "compose default image": compose(
            image=f"${{VLLM_IMAGE:-{IMAGE}}}", command=words, environment=variables
        ),
        "compose": compose(command=flags, environment=variables),
        "compose list": compose(
            command=words, environment=[f"{name}={value}" for name, value in variables.items()]
        ),
        "compose entrypoint": compose(
            entrypoint=["vllm", "serve"], command=words, environment=variables
        ),
    }


@pytest.mark.parametrize("form", forms(WORDS, VARIABLES))
def test_every_form_has_the_same_words_and_variables(form: str) -> None:
    variables, words = find_command("serve.sh", forms(WORDS, VARIABLES)[form])
    assert words == WORDS
    assert variables == VARIABLES


value = st.text(
    st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="$`;&|<>"), min_size=1
).filter(lambda text: text.strip() == text and not text.startswith("-") and "vllm" not in text)
# What a template would still replace is refused: test_a_template_is_refused_in_any_form.
value = value.filter(lambda text: not UNRESOLVED.search(text))


@settings(max_examples=100, deadline=None)
@given(st.lists(value, max_size=4), st.sampled_from(sorted(forms(WORDS, VARIABLES))))
def test_any_values_come_back_from_any_form(values: list[str], form: str) -> None:
    words = ["org/model"]
    for index, each in enumerate(values):
        words += [f"--flag-{index}", each]
    variables, found = find_command("serve.sh", forms(words, VARIABLES)[form])
    assert (variables, found) == (VARIABLES, words)


@pytest.mark.parametrize("form", forms(WORDS, VARIABLES))
def test_a_template_is_refused_in_any_form(form: str) -> None:
    text = forms(["org/model", "--flag-0", "{{"], VARIABLES)[form]
    with pytest.raises(OutriderError, match=r"\{\{: contains a shell variable"):
        find_command("serve.sh", text)


def test_variables_have_the_values_that_the_text_sets() -> None:
    script = 'MODEL=org/model\nvllm serve "$MODEL" -tp ${TP:-8} --port ${PORT-80} --seed $UNSET'
    with pytest.raises(OutriderError, match=r"\$UNSET: contains a shell variable; replace it"):
        find_command("serve.sh", script)
    _, words = find_command("serve.sh", script.removesuffix(" --seed $UNSET"))
    assert words == ["org/model", "-tp", "8", "--port", "80"]
    pod = manifest(args=["org/model", "-tp", "$(TP)"], env=[{"name": "TP", "value": "4"}])
    assert find_command("pod.yaml", pod)[1] == ["org/model", "-tp", "4"]
    assert find_command("x", 'vllm serve m "$@"')[1] == ["m"]


def test_a_script_s_own_variables_have_the_values_of_the_shell() -> None:
    """Defaults of themselves and of positional parameters, lower case, several flags in one."""
    script = """
MODEL=${MODEL:-org/model}
port=${1:-9000}
tp=4
extra="--max-model-len 8192 --seed $tp"
vllm serve "$MODEL" -tp $tp --port $port $extra
"""
    variables, words = find_command("serve.sh", script)
    assert variables == {"MODEL": "org/model"}
    flags = ["-tp", "4", "--port", "9000", "--max-model-len", "8192", "--seed", "4"]
    assert words == ["org/model", *flags]


@pytest.mark.parametrize("doubled", ["$A$A$A$A", "${A}${A:-x}", "$(A)$(A)$A"])
def test_variables_that_double_are_refused_before_they_fill_the_memory(doubled: str) -> None:
    text = "A=xxxxxxxx\n" + f"A={doubled}\n" * 60 + "vllm serve org/model --dtype $A"
    with pytest.raises(OutriderError, match="variable A stands for more than 20000 characters"):
        find_command("--from-serve-command", text)


def test_an_unset_variable_in_a_flag_of_the_http_server_is_left_out() -> None:
    script = "vllm serve org/model --api-key $KEY --port=${PORT} -tp 2"
    assert find_command("serve.sh", script)[1] == ["org/model", "-tp", "2"]
    with pytest.raises(OutriderError, match="contains a shell variable"):
        find_command("serve.sh", "vllm serve org/model --tensor-parallel-size $TP")


def test_lines_of_flags_go_on_without_backslashes() -> None:
    text = "vllm serve org/model\n  --port 8000\n  # a comment\n\n  -tp 8\necho done"
    assert find_command("x", text)[1] == ["org/model", "--port", "8000", "-tp", "8"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "python3 -m sglang.launch_server --model-path x --tp 8",
            "a command of SGLang, and .* vLLM",
        ),
        ("docker run lmsysorg/sglang:latest python -m sglang.launch_server", "of SGLang"),
        ("vllm bench serve --model x", "no `vllm serve`"),
        ("trtllm-serve x --tp_size 8", "of TensorRT-LLM, .* serving.engine.tensor_parallel"),
        ("python -m tensorrt_llm.commands.serve x", "of TensorRT-LLM"),
        ("docker run ghcr.io/huggingface/text-generation-inference:3.3.4 --model-id x", "of Hugg"),
        ("text-generation-launcher --model-id x --num-shard 2", "of Hugging Face's text-gen"),
        ("lmdeploy serve api_server x --tp 8", "of LMDeploy"),
        ("./llama-server -m x.gguf", "of llama.cpp"),
        ("image: ghcr.io/ggml-org/llama.cpp:server-cuda\nargs: [-m, x.gguf]", "of llama.cpp"),
        ("OLLAMA_HOST=0.0.0.0 ollama serve", "of Ollama"),
        ("vllm serve 'org/model", "not a shell command"),
        ("kind: Deployment\nspec: {}", "no `vllm serve`"),
        ("", "no `vllm serve`"),
        ("vllm serve org/embeddings --runner pooling", "take no drafts"),
        (
            "kind: Kustomization\npatches: [{path: p.yaml}]\n---\n"
            + manifest(args=["--model", "org/model"]),
            "a file of Kustomize, which changes the command next to it",
        ),
        ('execve("/bin/vllm", ["vllm", "serve", "/models/DeepS"...], 0x7f) = 0', "strace has cut"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(OutriderError, match=message):
        find_command("serve.sh", text)


def test_json_without_its_quotation_marks_is_one_word() -> None:
    shown = f"root 41 102 1.0 ? Sl 10:00 9:59 python3 /usr/local/bin/vllm serve {' '.join(WORDS)}"
    assert find_command("x", shown) == ({}, WORDS)
    listed = json.dumps(["vllm", "serve", *WORDS])
    assert find_command("x", listed) == ({}, WORDS)
    assert find_command("x", f"command = {listed[:-1]},\n]") == ({}, WORDS)
    assert find_command("x", f"server = subprocess.Popen({listed})") == ({}, WORDS)
    cmdline = "\0".join(["python3", "/usr/local/bin/vllm", "serve", *WORDS]) + "\0"
    assert find_command("x", cmdline) == ({}, WORDS)


def test_an_apostrophe_in_a_comment_changes_nothing() -> None:
    nested = """{"a": {"b": 1}, "c": [ {"d": 2} ]}"""
    script = f"# it's the endpoint\nvllm serve m --hf-overrides '{nested}'"
    assert find_command("x", script) == ({}, ["m", "--hf-overrides", nested])


def test_arrays_are_added_to() -> None:
    script = """A=(-tp 8)\nA+=(--seed 3)\nvllm serve m "${A[@]}" """
    assert find_command("x", script) == ({}, ["m", "-tp", "8", "--seed", "3"])


FIRST_NODE = "vllm serve org/model --data-parallel-size 16 --data-parallel-size-local 8"
FURTHER_NODE = f"{FIRST_NODE} --data-parallel-start-rank 8 --headless"


@pytest.mark.parametrize(
    "text",
    [
        f"{FIRST_NODE}\n{FURTHER_NODE}",
        f"{FURTHER_NODE}\n{FIRST_NODE}",
        f"- args: [-c, {FURTHER_NODE}]\n- args: [-c, {FIRST_NODE}]",
    ],
)
def test_of_an_engine_on_several_nodes_the_first_node_s_command_is_read(text: str) -> None:
    assert find_command("x", text)[1] == FIRST_NODE.split()[2:]


def test_a_comment_may_follow_the_end_of_a_line_that_goes_on() -> None:
    """As in vLLM's docs, "expert parallel deployment"."""
    script = "vllm serve org/model \\\n  -tp 1 \\   # GPUs, it's per node\n  -dp 16 \\ # all\n  -ep"
    assert find_command("x", script)[1] == ["org/model", "-tp", "1", "-dp", "16", "-ep"]


def test_the_place_of_a_rank_may_be_a_variable() -> None:
    script = "vllm serve org/model -dp 16 --data-parallel-address ${LWS_LEADER_ADDRESS}"
    assert find_command("x", script)[1] == ["org/model", "-dp", "16"]


def test_a_script_s_own_arguments_and_the_prefix_of_a_container_s_variables() -> None:
    script = (
        'export APPTAINERENV_VLLM_USE_DEEP_GEMM=1\nvllm serve org/m -tp 2 "${@:2}" "$@" "${@}"\n'
    )
    assert find_command("x", script) == ({"VLLM_USE_DEEP_GEMM": "1"}, ["org/m", "-tp", "2"])


TWO_SERVICES = """
services:
  {first}:
    image: vllm/vllm-openai:v0.11.0
    command: ["--model", "org/{first}"{flags}]
  chat:
    image: vllm/vllm-openai:v0.11.0
    command: ["--model", "org/chat", "-tp", "2"]
"""


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve org/other --port 1 &\nvllm serve org/chat --port 2\n",
        "M=org/other\nvllm serve $M &\nM=org/chat\nvllm serve --model=$M\n",
        TWO_SERVICES.format(first="other", flags=""),
    ],
)
def test_servers_of_several_models_are_refused(text: str) -> None:
    with pytest.raises(OutriderError, match=r"2 models \(org/other, org/chat\); give only the one"):
        find_command("x", text)


@pytest.mark.parametrize(
    "text",
    [
        'vllm serve org/m &\necho "vllm serve started"\n',
        'vllm serve org/m &\nuntil curl x; do echo "waiting for vllm serve to start"; done\n',
        "docker run --name vllm vllm/vllm-openai:v1 --model=org/m\ndocker exec vllm nvidia-smi\n",
        'import subprocess\nHINT = "Use vllm serve other"\n'
        'subprocess.run(["vllm", "serve", "org/m"])\n',
        "vllm serve org/m --port 1 &\nvllm serve org/m/ --port 2\n",
        "services:\n  llm:\n    image: vllm/vllm-openai\n    command: --model=org/m\n"
        "  other:\n    image: nvcr.io/nim/a/b:1\n    environment:\n      NIM_MODEL_NAME: a/b\n",
    ],
)
def test_what_starts_no_other_server_is_no_other_model(text: str) -> None:
    assert find_command("x", text)[1][0].removeprefix("--model=") == "org/m"


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve org/embeddings --task embed &\nvllm serve --model org/chat -tp 2\n",
        "vllm serve org/embeddings --runner=pooling &\nvllm serve --model org/chat -tp 2\n",
        "for N in 0 1; do\n  vllm serve --model org/chat -tp 2 --port $N &\ndone\n"
        "vllm serve --model org/chat -tp 4\n",
        TWO_SERVICES.format(first="embeddings", flags=', "--task", "embed"'),
    ],
)
def test_of_several_servers_the_first_that_drafts_is_read(text: str) -> None:
    assert find_command("x", text)[1][:4] == ["--model", "org/chat", "-tp", "2"]


PRODUCERS = (
    """--kv-transfer-config '{"kv_connector": "Nixl", "kv_role": "kv_producer"}'""",
    "--kv-transfer-config.kv_role kv_producer",
)


@pytest.mark.parametrize("producer", PRODUCERS)
def test_of_prefill_and_decode_servers_the_one_that_drafts_is_read(producer: str) -> None:
    text = f"vllm serve org/chat {producer} -tp 1 &\nvllm serve org/chat -tp 4\n"
    assert find_command("x", text)[1] == ["org/chat", "-tp", "4"]


def test_of_dynamos_workers_the_one_that_drafts_is_read() -> None:
    def worker(*flags: str) -> dict[str, object]:
        words = ["--model", "org/chat", *flags]
        main = {"command": ["python3", "-m", "dynamo.vllm"], "args": words}
        return {"componentType": "worker", "extraPodSpec": {"mainContainer": main}}

    services = {
        "Prefill": worker("--is-prefill-worker", "--enforce-eager"),
        "Decode": worker("-tp", "4"),
    }
    graph = {"kind": "DynamoGraphDeployment", "spec": {"services": services}}
    assert find_command("x", yaml.safe_dump(graph))[1] == ["--model", "org/chat", "-tp", "4"]


APP = """{name: 'r1', script: '/opt/bin/vllm', interpreter: 'none',
  args: %s,  // 'serve org/other'
  env: {VLLM_USE_DEEP_GEMM: '1'}, env_staging: {VLLM_USE_DEEP_GEMM: '0'},},
  {script: 'vllm', args: 'bench serve --model org/other'}"""
WITH_QUOTES = """serve org/m --speculative-config '{"method": "mtp"}' -tp 2"""


@pytest.mark.parametrize(
    "arguments",
    [
        f"`{WITH_QUOTES}`",
        json.dumps(WITH_QUOTES),
        "'" + WITH_QUOTES.replace("'", "\\'") + "'",
        json.dumps(shlex.split(WITH_QUOTES)),
    ],
)
def test_an_app_of_pm2_is_a_script_and_its_arguments(arguments: str) -> None:
    text = f"/* pm2 */\nmodule.exports = {{\n  apps: [{APP % arguments}],\n}};\n"
    variables, words = find_command("x", text)
    assert words == ["org/m", "--speculative-config", '{"method": "mtp"}', "-tp", "2"]
    assert variables == {"VLLM_USE_DEEP_GEMM": "1"}


@pytest.mark.parametrize(
    "text",
    [
        "const config = {apps: [{script: 'vllm', args: 'serve org/m -tp 2', env: {A: 1}}]};\n"
        "module.exports = config;\n",
        "module.exports = {apps: [{out_file: path.join(__dirname, 'out.log'), script: 'vllm',\n"
        " max_memory_restart: `${process.env.M}G`, args: 'serve org/m -tp 2'}]}",
        "{apps:[{script:'vllm',args:'serve org/m -tp 2'}]}",
        json.dumps({"apps": [{"script": "vllm", "args": "serve org/m -tp 2"}]}),
        "module.exports = {script: 'vllm', args: 'serve org/m -tp 2', env: Object.assign({}, b)}",
    ],
)
def test_other_ecosystem_files_are_read(text: str) -> None:
    assert find_command("x", text)[1] == ["org/m", "-tp", "2"]


def test_pm2s_files_in_yaml_are_read() -> None:
    apps = [{"script": "vllm", "args": "serve org/m -tp 2", "env": {"VLLM_USE_DEEP_GEMM": "1"}}]
    assert find_command("x", yaml.safe_dump({"apps": apps}))[1] == ["org/m", "-tp", "2"]


@pytest.mark.parametrize("dashes", ["—", "–", "–-", "-–", "\u2011\u2011", "\u2212-"])
def test_dashes_of_word_processors_are_hyphens(dashes: str) -> None:
    text = f"hi\n\nvllm serve org/m {dashes}max-num-seqs 64 {dashes}dtype bfloat16\n"
    words = find_command("x", strip_paste_marks(text))[1]
    assert words == ["org/m", "--max-num-seqs", "64", "--dtype", "bfloat16"]


def test_an_image_may_be_a_variable() -> None:
    script = 'IMAGE=vllm/vllm-openai:v0.32.0\ndocker run --gpus all "$IMAGE" --model org/m -tp 2\n'
    assert find_command("x", script)[1] == ["--model", "org/m", "-tp", "2"]


def test_a_worker_logs_its_command_between_brackets() -> None:
    text = (
        "12:00 INFO - With image: vllm/vllm-openai:v0.32.0, command: [vllm serve /m --hf-overrides "
        '{"a": [1, 2]} --max-num-seqs=6], envs: [HF_HUB_OFFLINE=1]\n'
    )
    assert find_command("x", text)[1] == [
        "/m",
        "--hf-overrides",
        '{"a": [1, 2]}',
        "--max-num-seqs=6",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        "['serve', 'org/m', eager ? '--enforce-eager' : '--seed=1']",
        "['serve', 'org/m'].concat(['--seed=1'])",
        "['serve', 'org/m', ...extra]",
        "'serve org/m ' + '--seed=1'",
        "`serve org/m ${flags}`",
    ],
)
def test_computed_arguments_of_an_app_are_named(arguments: str) -> None:
    app = f"module.exports = {{apps: [{{script: 'vllm', args: {arguments}, x: 1}}]}}"
    with pytest.raises(OutriderError, match=r"\$\{(args|flags)\}: contains a shell variable"):
        find_command("x", app)


def test_a_list_of_an_apps_arguments_may_have_numbers() -> None:
    app = {"script": "vllm", "args": ["serve", "org/m", "--max-num-seqs", 32, "-tp", 2]}
    app |= {"interpreter": "none", "env": {"VLLM_USE_DEEP_GEMM": "1", "X": {"a": 1}}}
    text = json.dumps({"apps": [app]}, separators=(",", ":"))
    variables, words = find_command("x", text)
    assert words == ["org/m", "--max-num-seqs", "32", "-tp", "2"]
    assert variables["VLLM_USE_DEEP_GEMM"] == "1"


@pytest.mark.parametrize(
    ("image", "used"),
    [
        ("reg:5000/vllm/vllm-openai", "reg:5000/vllm/vllm-openai:v0.10.0"),
        ("vllm/vllm-openai", "vllm/vllm-openai@sha256:ab"),
    ],
)
def test_an_image_that_kustomize_changes_is_named(image: str, used: str) -> None:
    built = yaml.safe_dump({"kind": "Kustomization", "images": [{"name": image, "newTag": "v1"}]})
    text = f"{built}---\n{manifest(image=used, args=['--model', 'org/m'])}"
    with pytest.raises(OutriderError, match="a file of Kustomize"):
        find_command("x", text)
    other = "kind: Kustomization\nimages: 5\n---\n" + manifest(args=["--model", "org/m"])
    assert find_command("x", other)[1] == ["--model", "org/m"]


def of_role(key: str, role: str, tp: int) -> dict[str, object]:
    words = ["vllm", "serve", "org/model", f"-tp={tp}"]
    pod = {
        "metadata": {"labels": {"app": "r1", key: role}},
        "spec": {"containers": [{"image": IMAGE, "command": words}]},
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": pod}}


@pytest.mark.parametrize("key", ["llm-d.ai/role", "role-name"])
@pytest.mark.parametrize("is_list", [True, False])
def test_of_servers_with_roles_the_one_that_decodes_is_read(key: str, is_list: bool) -> None:
    servers = [of_role(key, "prefill", 2), of_role(key, "decode", 4)]
    text = yaml.safe_dump({"kind": "List", "items": servers})
    if not is_list:
        text = yaml.safe_dump_all(servers)
    _, words = find_command("deploy.yaml", text)
    assert words == ["org/model", "-tp=4"]


@pytest.mark.parametrize(
    ("gpu", "number"),
    [("H100:80GB:4", "4"), ("A100:2", "2"), ("H100", "1"), ({"name": "H200", "count": 8}, "8")],
)
def test_dstack_sets_the_number_of_gpus(gpu: object, number: str) -> None:
    task = {
        "type": "service",
        "resources": {"gpu": gpu},
        "commands": ["echo hi\nvllm serve org/model -tp $DSTACK_GPUS_NUM"],
    }
    _, words = find_command("r1.dstack.yml", yaml.safe_dump(task))
    assert words == ["org/model", "-tp", number]
    with pytest.raises(OutriderError, match=r"dstack sets it from resources\.gpu"):
        find_command("r1.dstack.yml", yaml.safe_dump(task | {"resources": {"gpu": "H100:1..4"}}))


def test_an_expression_of_terraform_is_named() -> None:
    text = (
        'locals {\n  args = concat(["--model=org/model"], var.more)\n}\n'
        f'container {{\n  image = "{IMAGE}"\n  command = ["vllm", "serve"]\n  args = local.args\n}}'
        '\nresource "kubernetes_deployment_v1" "r1" {}\n'
    )
    with pytest.raises(OutriderError, match=r"local\.args.*what Terraform makes of this"):
        find_command("main.tf", text)
