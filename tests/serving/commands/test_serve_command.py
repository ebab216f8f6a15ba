"""A `vllm serve` command becomes the recipe's engine, and the recipe's engine that command."""

import argparse
import json
import logging
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest

import outrider
from outrider.common.errors import OutriderError
from outrider.pipeline.recipe.load import load_recipe
from outrider.serving.allowed import ARGUMENTS, KEYS_OF_ARGUMENTS, UNSERVABLE
from outrider.serving.commands.serve_command import read_serve_command
from outrider.serving.commands.speculation import HARMLESS as HARMLESS_KEYS
from outrider.serving.commands.speculation import NAMED, READ
from outrider.serving.commands.speculation import REFUSED as REFUSED_KEYS
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import CONTRADICTS, in_process
from outrider.serving.vllm_arguments import engine_arguments
from outrider.serving.vllm_flags import (
    ACROSS_NODES,
    CHANGES_TEXT,
    FASTER_LOADING,
    FLAGS_OF_VARIABLES,
    HARMLESS,
    KNOWN,
    NEUTRAL,
    REFUSED,
    SPECULATIVE,
    SWITCHES,
)

PUBLISHED = [
    # DeepSeek-R1 on one node of 8 H200, with its MTP layer (vLLM's recipes).
    "vllm serve deepseek-ai/DeepSeek-R1 --trust-remote-code --tensor-parallel-size 8"
    " --max-model-len 65536 --max-num-seqs 256 --gpu-memory-utilization 0.92"
    """ --speculative-config '{"method": "mtp", "num_speculative_tokens": 1}'"""
    " --reasoning-parser deepseek_r1 --port 8000 --api-key secret-key",
    # Data-parallel attention with expert parallelism.
    "VLLM_USE_DEEP_GEMM=1 VLLM_ALL2ALL_BACKEND=naive vllm serve deepseek-ai/DeepSeek-R1-0528"
    " -dp 8 --enable-expert-parallel --kv-cache-dtype fp8 --max-model-len=32k"
    " --max-num-batched-tokens 8K --no-enable-prefix-caching --enable-eplb --block-size 64"
    " --all2all-backend deepep_low_latency --eplb-config.window_size 500"
    """ -cc '{"cudagraph_mode": "FULL_DECODE_ONLY"}' --seed 3""",
    "python3 -m vllm.entrypoints.openai.api_server --model deepseek-ai/DeepSeek-R1"
    " -tp 4 -pp 2 --attention-backend FLASHMLA --dtype bfloat16 --quantization fp8"
    " --generation-config vllm --enforce-eager --async-scheduling",
]


@pytest.mark.parametrize("command", PUBLISHED)
def test_the_engine_gets_what_vllm_s_own_parser_reads(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    # Flags for a GPU, and of a target whose weights are not here.
    for module in ("runner", "vllm_arguments"):
        monkeypatch.setattr(f"outrider.serving.{module}.runs_on_cpu", lambda: False)
    monkeypatch.setattr(TargetConfig, "directory", lambda target: Path(target.model))
    words = shlex.split(command)
    words = words[next(i for i, word in enumerate(words) if "serve" in word or "api_" in word) :]
    parsed = EngineArgs.from_cli_args(
        make_arg_parser(FlexibleArgumentParser()).parse_args(words[1:])
    )
    if words[1][0] != "-":
        parsed.model = words[1]
    parsed.create_structured_outputs_config()  # --reasoning-parser is a key of it
    defaults = EngineArgs()
    values = read_serve_command(command).values
    engine = EngineConfig(**values["serving"]["engine"])
    ours = engine_arguments(TargetConfig(**values["target"]), engine)
    label = {
        "speculative_config",
        "reasoning_parser",
        "reasoning_parser_plugin",
        "disable_log_stats",
        "served_model_name",
        "trust_remote_code",  # runs code of the checkpoint: left out
    }
    for name in vars(parsed).keys() - label:
        theirs = getattr(parsed, name)
        default = getattr(defaults, name)
        if theirs == default and name not in ours:
            continue
        if name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens") and theirs is None:
            continue  # the recipe's value stays
        if isinstance(ours.get(name), dict):
            for key, value in ours[name].items():
                found = getattr(theirs, key)
                assert getattr(found, "name", found) == value, name
        else:
            assert ours.get(name) == theirs


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", {}),
        ("--reasoning-parser deepseek_r1", {"reasoning_parser": "deepseek_r1"}),
        (
            """--reasoning-parser qwen3 --structured-outputs-config '{"backend": "guidance"}'""",
            {"reasoning_parser": "qwen3", "backend": "guidance"},
        ),
        # A plugin's parser is code that Outrider does not import.
        ("--reasoning-parser of_plugin --reasoning-parser-plugin /plugin.py", {}),
    ],
)
def test_the_reasoning_parser_decides_where_grammars_start(
    flags: str, expected: dict[str, str]
) -> None:
    values = read_serve_command(f"vllm serve deepseek-ai/DeepSeek-R1 {flags}").values
    assert EngineConfig(**values["serving"]["engine"]).structured_outputs == expected


def test_capture_names_each_setting_that_it_cannot_have() -> None:
    engine = EngineConfig(**read_serve_command(PUBLISHED[1]).values["serving"]["engine"])
    ours, changes = in_process(engine)
    assert (ours.tensor_parallel, ours.data_parallel, ours.mode) == (8, 1, "eager")
    assert {"enable_eplb", "block_size", "eplb_config"} <= ours.extra_arguments.keys()
    text = " ".join(changes)
    assert all(f"without {name}" in text for name in ("all2all_backend", "compilation_config"))
    assert "data_parallel 8" in text and "prefix_caching" not in text
    cached, changes = in_process(EngineConfig(extra_arguments={"enable_prefix_caching": True}))
    assert not cached.prefix_caching and "prefix_caching off" in changes[0]
    both = {"enable_prefix_caching": True, "enable_dbo": True}
    assert in_process(EngineConfig(extra_arguments=both))[0] == cached
    plain, changes = in_process(EngineConfig())
    assert not plain.prefix_caching and EngineConfig().prefix_caching and not changes


@pytest.mark.parametrize(
    ("flags", "ranks", "words"),
    [
        ("-tp 4 -pp 2", 8, "4 x pipeline_parallel 2"),
        ("-tp 2 -pp 2 -dp 4", 16, "2 x pipeline_parallel 2 x data_parallel 4"),
        ("-dp 8", 8, "1 x data_parallel 8"),
    ],
)
def test_capture_folds_stages_and_replicas_into_tensor_parallelism(
    flags: str, ranks: int, words: str
) -> None:
    values = read_serve_command(f"vllm serve x/y {flags}").values["serving"]["engine"]
    engine, changes = in_process(EngineConfig(**values))
    assert (engine.tensor_parallel, engine.gpus) == (ranks, ranks)
    assert f"tensor_parallel {ranks} instead of {words}: " in " ".join(changes)


def test_a_drafter_on_pipeline_stages_is_refused_in_preflight(tmp_path: Path) -> None:
    """Not where only a running endpoint is measured."""
    words = ("traffic.path=nano_r1/social_chat",)
    command = "vllm serve nano_r1 -tp 4 -pp 2 --max-model-len 2048"
    fix = r"serving\.engine\.pipeline_parallel=1 serving\.engine\.tensor_parallel=8$"
    with pytest.raises(OutriderError, match=f"pipeline_parallel = 2: .*{fix}"):
        outrider.open("template", *words, runs=tmp_path, dry_run=True, serve_command=command)
    outrider.open("template", *words, runs=tmp_path, serve_command=command, measures_server=True)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("vllm bench --model x", "no `vllm serve`"),
        ("vllm serve --port 1", "no model"),
        ("vllm serve $MODEL -tp 8", r"\$MODEL: contains a shell variable"),
        ("vllm serve org/model --headless", "--headless: .* give the first node's"),
        ("vllm serve org/model --tokenizer org/other", "--tokenizer: .* give a copy of the target"),
        ("vllm serve m --revision v2 --tokenizer-revision v1", "--tokenizer-revision: .* a copy"),
        ("vllm serve org/model --worker-cls a.B", "--worker-cls: Outrider's hooks"),
        ("vllm serve org/model -tp s3cret", r"does not accept --tensor-parallel-size"),
        (
            """vllm serve org/model --hf-overrides '{"auth": {"token": "s3cret"}}'""",
            r"--hf-overrides: hf_overrides\.auth\.token: names code, a file or a secret",
        ),
        # Flags that change what the engine computes.
        (
            """vllm serve org/model --rope-scaling '{"rope_type": "yarn", "factor": 4.0}'""",
            r"--rope-scaling: vLLM 0\.32 has it in --hf-overrides .*rope_parameters",
        ),
        ("vllm serve --rope-theta 1000000 org/model", "--rope-theta: vLLM 0.32 has it in --hf"),
        ("vllm serve org/model --rope_theta=1e6", "--rope-theta: vLLM 0.32 has it in --hf"),
        ("vllm serve org/model --rope-scaling.factor 4", "--rope-scaling: vLLM 0.32 has it in"),
        ("vllm serve org/model --config-format mistral", "--config-format: only config.json and"),
        ("vllm serve org/model --hf-config-path /x", "--hf-config-path: config.json is read"),
        ("vllm serve org/model --logits-processors a:B", "--logits-processors: code that"),
        ("vllm serve org/model --calculate-kv-scales", "--calculate-kv-scales: vLLM 0.32 reads"),
        ("vllm serve org/model --quantization-param-path s.json", "--quantization-param-path: "),
        (
            "vllm serve org/model --spec-decoding-acceptance-method typical_acceptance_sampler",
            "only exact acceptance",
        ),
    ],
)
def test_what_cannot_be_served_is_named(command: str, message: str) -> None:
    with pytest.raises(OutriderError, match=message):
        read_serve_command(command)


def test_the_recipe_shows_the_command_and_overrides_win(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("traffic: {path: logs}\nserving: {engine: {max_num_seqs: 96}}\n")
    command = read_serve_command(PUBLISHED[1])
    loaded = load_recipe(str(recipe), ["serving.engine.data_parallel=4"], command).recipe
    engine = loaded.serving.engine
    assert loaded.target.model == "deepseek-ai/DeepSeek-R1-0528"
    assert (engine.max_num_seqs, engine.data_parallel) == (96, 4)
    assert engine.extra_arguments["kv_cache_dtype"] == "fp8"
    assert engine.environment == {"VLLM_USE_DEEP_GEMM": "1"}
    assert read_serve_command(PUBLISHED[0]).values["eval"] == {"current_k": 1}
    wrong = read_serve_command("vllm serve org/model -tp 0")
    with pytest.raises(OutriderError, match=r"--from-serve-command.*tensor_parallel"):
        load_recipe(str(recipe), [], wrong)


SECRETS = (
    "HF_TOKEN=s3cret-1 VLLM_API_KEY=s3cret-2 AWS_SECRET_ACCESS_KEY=s3cret-3 MY_PASSWORD=s3cret-4"
    " LD_PRELOAD=/tmp/x.so VLLM_USE_DEEP_GEMM=1 vllm serve org/model --api-key s3cret-5 s3cret-6"
    " --hf-token s3cret-7 --ssl-keyfile /s3cret-8 --middleware a.B --max-num-batched-tokens 8K"
    " --trust-remote-code"
    " --tokenizer-mode slow"
    """ --kv-transfer-config '{"api_key": "s3cret-10"}'"""
)


def test_secrets_of_a_command_are_named_and_not_kept() -> None:
    found = read_serve_command(SECRETS + " --of-another-release s3cret-11")
    assert "s3cret" not in str(found)
    engine = found.values["serving"]["engine"]
    assert engine["environment"] == {"VLLM_USE_DEEP_GEMM": "1"}
    assert engine["extra_arguments"] == {"tokenizer_mode": "slow"}
    assert engine["max_num_batched_tokens"] == 8192
    for name in (
        "HF_TOKEN",
        "LD_PRELOAD",
        "--api-key",
        "--hf-token",
        "--trust-remote-code",
    ):
        assert name in found.notes[-1]
    assert found.unknown == ["--of-another-release"]
    assert found.notes[-2] == "unknown to vLLM 0.32.0: --of-another-release"
    assert "--of-another-release" not in found.notes[-1]


def test_only_a_secret_is_taken_off_the_flag_it_is_glued_to() -> None:
    """`--ssl-keyfile` begins as `--ssl-keyfile-password` of vLLM 0.4, and is no secret itself."""
    command = "vllm serve org/model --api-keys3cret-1 --ssl-keyfile-password s3cret-2"
    assert read_serve_command(command).unknown == ["--api-key", "--ssl-keyfile-password"]


def test_flags_behind_a_comment_in_a_command_are_named(tmp_path: Path) -> None:
    """A shell joins a comment to the line before it; Docker leaves comments out first."""
    command = "vllm serve org/model \\\n  -tp 2 \\\n  # faster:\n  --max-model-len 4096\n"
    cut = command.replace("faster:", "--max-num-seqs 8 \\")
    for written, is_read in ((command, True), (cut, False)):
        read = read_serve_command(written)
        assert ("max_model_len" in read.values["serving"]["engine"]) == is_read
        (note,) = [note for note in read.notes if "comment" in note]
        assert "--max-model-len and what follows" in note and ("not read here" in note) != is_read
    glued = read_serve_command("vllm serve org/model \\\n # note\n --api-keys3cret-1 \\\n -tp 2")
    assert "s3cret" not in str(glued)
    (tmp_path / "Dockerfile").write_text(f"FROM vllm/vllm-openai:v0.32.0\nENTRYPOINT {command}")
    in_image = read_serve_command(str(tmp_path / "Dockerfile"))
    assert in_image.values["serving"]["engine"]["max_model_len"] == 4096
    assert not any("comment" in note for note in in_image.notes)


def parser_of_vllm() -> Any:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser())


def test_every_flag_of_vllm_s_parser_is_on_one_list() -> None:
    """A new release's flag fails here until someone has decided what it does."""
    kept = (ARGUMENTS, KEYS_OF_ARGUMENTS, SPECULATIVE)
    lists = (*kept, UNSERVABLE, REFUSED, CHANGES_TEXT, HARMLESS, ACROSS_NODES)
    names = {action.dest for action in parser_of_vllm()._actions} - {"model_tag"}
    assert {name: sum(name in each for each in lists) for name in names} == dict.fromkeys(names, 1)
    assert KNOWN - names >= SWITCHES and NEUTRAL.keys() <= REFUSED.keys() | {"load_format"}


def test_every_load_format_of_vllm_reads_the_target_s_files_or_is_kept() -> None:
    from vllm.model_executor.model_loader import LoadFormats

    of_other_files = {"dummy", "mistral", "npcache", "pt"} | {"runai_streamer_sharded"}
    assert {*FASTER_LOADING, *of_other_files, "sharded_state"} == {*get_args(LoadFormats)}
    command = "vllm serve org/model --load-format {} --model-loader-extra-config {{}}"
    found = read_serve_command(command.format("runai_streamer"))
    assert not found.values["serving"]["engine"]["extra_arguments"]
    assert found.notes[-1].endswith(": --load-format, --model-loader-extra-config")
    kept = read_serve_command(command.format("dummy")).values["serving"]["engine"]
    assert kept["extra_arguments"] == {"load_format": "dummy"}


def test_what_only_counts_is_left_out_and_said_for_the_live_endpoint() -> None:
    found = read_serve_command("vllm serve org/model --disable-log-stats")
    [note] = [note for note in found.notes if "--disable-log-stats" in note]
    assert "remove it from the live endpoint before `outrider deploy`" in note


def test_all_refused_and_unknown_flags_are_in_one_message() -> None:
    command = (
        "vllm serve org/model --rope-theta 1e6 --frobnicate 3 --disable-log-stats --headless"
        " --scheduler-cls a.B --defrobnicate"
    )
    with pytest.raises(OutriderError) as raised:
        read_serve_command(command)
    refused = [re.match(r"--from-serve-command: (--[\w-]+)", line)[1] for line in lines_of(raised)]
    assert refused == ["--rope-theta", "--headless", "--scheduler-cls", "--frobnicate"]
    assert "serving.ignored_flags=[--frobnicate,--defrobnicate]" in str(raised.value)


def lines_of(raised: pytest.ExceptionInfo[OutriderError]) -> list[str]:
    return str(raised.value).splitlines()


def test_variables_that_vllm_no_longer_reads_are_named_with_the_flag() -> None:
    """Those that vllm/envs.py lacks."""
    command = "VLLM_ATTENTION_BACKEND=FLASHINFER VLLM_USE_V1=1 VLLM_USE_DEEP_GEMM=1 vllm serve m"
    found = read_serve_command(command)
    assert found.values["serving"]["engine"]["environment"] == {"VLLM_USE_DEEP_GEMM": "1"}
    [note] = [note for note in found.notes if "does not read them" in note]
    assert note.endswith(
        ": VLLM_ATTENTION_BACKEND, VLLM_USE_V1; instead of VLLM_ATTENTION_BACKEND, write"
        " --attention-backend"
    )


def test_each_flag_that_replaces_a_variable_is_vllm_s() -> None:
    from vllm.config import AttentionConfig
    from vllm.envs import environment_variables

    flags = {flag for action in parser_of_vllm()._actions for flag in action.option_strings}
    flags |= {f"--attention-config.{name}" for name in AttentionConfig.__dataclass_fields__}
    assert {*FLAGS_OF_VARIABLES.values()} <= flags
    assert not FLAGS_OF_VARIABLES.keys() & environment_variables.keys()


def test_adapters_are_named_as_other_models_than_the_target() -> None:
    support = json.dumps({"name": "support", "path": "/b", "base_model_name": "org/model"})
    words = ["vllm", "serve", "org/model", "--enable-lora", "--max-loras", "4"]
    words += ["--lora-modules", "sql=/a", support]
    notes = read_serve_command(shlex.join(words)).notes
    [note] = [note for note in notes if "--lora-modules" in note]
    assert note.startswith("left out: --enable-lora, --lora-modules: only requests that name the")
    assert note.endswith(
        "adapters (sql, support); if the log has both, set traffic.model=org/model"
    )
    notes = read_serve_command(shlex.join([*words, "--served-model-name", "a", "b"])).notes
    assert any(note.endswith("set traffic.model=[a,b]") for note in notes)


def test_flags_that_place_ranks_on_nodes_change_no_size() -> None:
    sizes = "vllm serve org/model -tp 2 -dp 16"
    nodes = (
        " --nnodes 2 --node-rank 0 --data-parallel-size-local 8 --data-parallel-address 10.0.0.1"
        " --data-parallel-backend ray --data-parallel-hybrid-lb"
    )
    one = read_serve_command(sizes)
    several = read_serve_command(sizes + nodes)
    assert several.values == one.values
    [note] = [note for note in several.notes if note not in one.notes]
    named = re.findall(r"--[\w-]+", nodes)
    assert re.findall(r"--[\w-]+", note) == named and "one node" in note


def test_the_target_s_own_tokenizer_may_be_named() -> None:
    command = "vllm serve org/model --tokenizer org/model --tokenizer-revision main"
    found = read_serve_command(command)
    assert not found.values["serving"]["engine"]["extra_arguments"]
    assert found.notes[-1].endswith(": --tokenizer, --tokenizer-revision")


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_flag_is_an_error_unless_it_has_no_effect(name: str) -> None:
    flag = "--" + name.replace("_", "-")
    action = None
    action = next((each for each in parser_of_vllm()._actions if each.dest == name), None)
    switch = name in SWITCHES if action is None else action.nargs == 0
    choices = list(getattr(action, "choices", None) or [])
    value = choices[-1] if choices else "3" if name.endswith(("size", "s")) else "x.y"
    if name.endswith("_config") or name in ("ir_op_priority", "model_class_overrides"):
        value = '{"key": 1}' if name != "watermark_config" else '{"key": 1, "alpha": 0.2}'
    command = shlex.join(["vllm", "serve", "org/model", flag, *([] if switch else [str(value)])])
    with pytest.raises(OutriderError, match=f"{flag}: .* Change the command, or remove"):
        read_serve_command(command)


def test_flags_of_earlier_releases_are_read() -> None:
    command = (
        "vllm serve --swap-space 4 org/model --worker-use-ray --disable-log-requests"
        " --task generate --speculative-model /missing/head --num-speculative-tokens 5"
        " --config-format hf --spec-decoding-acceptance-method rejection_sampler"
        " --no-calculate-kv-scales"
        " --speculative-max-model-len 2048"
    )
    found = read_serve_command(command)
    assert found.values["target"] == {"model": "org/model"} and found.unknown == []
    assert found.values["eval"] == {"current_k": 5}
    *_, harmless, speculation = found.notes
    assert "--swap-space, --worker-use-ray" in harmless and "without effect" in harmless
    assert "/missing/head" in speculation and "left out" in speculation
    assert speculation.endswith("max_model_len")


def test_the_command_s_speculation_in_vllm_s_short_form() -> None:
    found = read_serve_command(
        "vllm serve org/model --spec-method ngram --spec-tokens 4"
        """ --speculative-config '{"prompt_lookup_max": 6}'"""
    )
    assert found.values["eval"] == {"current_k": 4}
    # vLLM's shortest length is then the longest, too (vllm/config/speculative.py:1207).
    settings = {"prompt_lookup_min": 6, "prompt_lookup_max": 6}
    assert found.values["speculator"] == {"base": "ngram", "base_settings": settings}
    assert found.notes[-1].endswith(
        "ngram, 4 drafts per step; in model runner V2 measured as ngram_gpu, with async scheduling"
    )
    for words, settings in (
        ('{"method": "ngram"}', {"prompt_lookup_min": 5, "prompt_lookup_max": 5}),
        (
            '{"method": "suffix", "suffix_decoding_max_spec_factor": 2.0}',
            {"suffix_decoding_max_spec_factor": 2.0, "suffix_decoding_min_token_prob": 0.1},
        ),
    ):
        command = f"vllm serve org/model --speculative-config '{words}'"
        found = read_serve_command(command)
        assert found.values["speculator"]["base_settings"] == settings
        assert "left out" not in found.notes[-1]


def test_a_command_without_a_number_of_drafts_says_where_to_find_it() -> None:
    found = read_serve_command("""vllm serve org/model --speculative-config '{"method": "mtp"}'""")
    assert "eval" not in found.values
    assert found.notes[-1].endswith(
        "mtp, the default number of drafts per step (set eval.current_k to num_spec_tokens in"
        " vLLM's log)"
    )


def test_vllm_s_defaults_replace_the_recipe_s(tmp_path: Path) -> None:
    found = read_serve_command(
        "vllm serve deepseek-ai/DeepSeek-R1 -dp 8 --enable-expert-parallel --dtype half"
    )
    recipe = load_recipe("r1/template", ["traffic.path=nano_r1/social_chat"], found).recipe
    engine = recipe.serving.engine
    assert (engine.tensor_parallel, engine.data_parallel, engine.gpus) == (1, 8, 8)
    assert engine.dtype == "float16"
    assert (
        read_serve_command("vllm serve x/y --dtype float").values["serving"]["engine"]["dtype"]
        == "float32"
    )


def test_a_served_head_names_its_target(tmp_path: Path) -> None:
    head = {
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "proposal_methods": [{"speculative_tokens": 3}],
            "verifier": {"name_or_path": "Qwen/Qwen3-8B"},
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(head))
    found = read_serve_command(f"vllm serve {tmp_path} -tp 2")
    assert found.values["target"] == {"model": "Qwen/Qwen3-8B"}
    assert found.values["speculator"] == {"base": str(tmp_path)}
    assert found.values["eval"] == {"current_k": 3}


def test_a_script_with_conditions_is_read_with_a_note() -> None:
    script = (
        'if [ -n "$EAGER" ]; then\n  EXTRA=--enforce-eager\nfi\nvllm serve org/model -tp 2 $EXTRA\n'
    )
    notes = read_serve_command(script).notes
    assert "conditions and loops of the script are not evaluated: check these values" in notes
    assert not any("conditions" in note for note in read_serve_command("vllm serve m").notes)


def test_an_unknown_flag_is_refused_until_the_recipe_lists_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A command that another test ran in this process keeps its lines to itself.
    monkeypatch.setattr(logging.getLogger("outrider"), "propagate", True)
    caplog.set_level(logging.INFO, "outrider")
    words = ("traffic.path=nano_r1/social_chat",)
    command = "vllm serve nano_r1 --frobnicate 3 --max-model-len 2048"
    with pytest.raises(OutriderError, match=r"--frobnicate: unknown to vLLM 0\.32\.0, .*ignored"):
        outrider.open("template", *words, runs=tmp_path, dry_run=True, serve_command=command)
    words += ("serving.ignored_flags=[--frobnicate]",)
    outrider.open("template", *words, runs=tmp_path, dry_run=True, serve_command=command)
    assert "unknown to vLLM 0.32.0: --frobnicate" in caplog.text
    assert not any("without effect" in line and "frob" in line for line in caplog.messages)


def test_a_config_file_is_found_next_to_the_file_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "deploy"
    folder.mkdir()
    (folder / "serve.sh").write_text("vllm serve --config r1.yaml -tp 8")
    (folder / "r1.yaml").write_text("model: org/model\n")
    monkeypatch.chdir(tmp_path)
    script = str(folder / "serve.sh")
    assert read_serve_command(script).values["target"] == {"model": "org/model"}
    (folder / "r1.yaml").rename(tmp_path / "r1.yaml")
    assert read_serve_command(script).values["target"] == {"model": "org/model"}
    (tmp_path / "r1.yaml").unlink()
    places = f"not {folder}/r1.yaml nor {tmp_path}/r1.yaml"
    with pytest.raises(OutriderError, match=rf"--config r1\.yaml: no such file \({places}\)"):
        read_serve_command(script)


def test_every_argument_of_the_allow_list_is_vllm_s() -> None:
    from vllm.engine.arg_utils import EngineArgs

    fields = EngineArgs.__dataclass_fields__.keys()
    assert fields >= ARGUMENTS | UNSERVABLE.keys() | KEYS_OF_ARGUMENTS.keys() | CONTRADICTS.keys()


def test_each_key_of_speculative_config_is_on_one_list() -> None:
    from vllm.config.speculative import SpeculativeConfig

    lists = (READ, REFUSED_KEYS, HARMLESS_KEYS, NAMED)
    keys = set(SpeculativeConfig.__dataclass_fields__)
    assert {key: sum(key in each for each in lists) for key in keys} == dict.fromkeys(keys, 1)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"method": "mtp", "num_speculativ_tokens": 1},
            r"\.num_speculativ_tokens: vLLM .* no such",
        ),
        ({"rejection_sample_method": "synthetic"}, r"\.rejection_sample_method: accepts drafts"),
        ({"synthetic_acceptance_length": 2.5}, r"\.synthetic_acceptance_length: accepts drafts"),
        ({"acceptance_method": "typical_acceptance_sampler"}, r"\.acceptance_method: accepts"),
    ],
)
def test_keys_of_speculative_config_that_cannot_be_kept_are_errors(
    section: dict[str, Any], message: str
) -> None:
    words = ["vllm", "serve", "x/y", "--speculative-config", json.dumps(section)]
    with pytest.raises(OutriderError, match=message):
        read_serve_command(shlex.join(words))


def test_how_the_endpoint_samples_drafts_is_kept_and_other_keys_are_named() -> None:
    section = {"method": "mtp", "num_speculative_tokens": 2, "draft_sample_method": "probabilistic"}
    section |= {"rejection_sample_method": "block", "enforce_eager": True, "max_model_len": 2048}
    words = ["vllm", "serve", "x/y", "--speculative-config", json.dumps(section)]
    found = read_serve_command(shlex.join(words))
    assert found.values["speculator"] == {"draft_sample_method": "probabilistic"}
    assert found.notes[-1].endswith(
        "may differ: max_model_len, rejection_sample_method; left out, without effect on"
        " acceptance: enforce_eager"
    )
    for method in ("suffix", "ngram_gpu", "[ngram]"):
        section = {"method": method, "num_speculative_tokens": 3}
        words = ["vllm", "serve", "x/y", "--speculative-config", json.dumps(section)]
        found = read_serve_command(shlex.join(words))
        assert found.values["speculator"]["base"] == ("suffix" if method == "suffix" else "ngram")
        assert ("measured as ngram_gpu" in found.notes[-1]) is (method == "[ngram]")


def sample(parser: argparse.ArgumentParser, action: argparse.Action) -> list[str]:
    """Words of a flag with a value of its type."""
    flag = max(action.option_strings, key=len)
    if action.nargs == 0:
        return [flag]
    for value in [
        *map(str, action.choices or ()),
        "1",
        "0.5",
        "word",
        "name=path",
        '{"1": 1}',
        "[1]",
        '["a"]',
    ]:
        try:
            parser.parse_args([flag, value])
        except (SystemExit, ValueError, TypeError):
            continue
        return [flag, value]
    return [flag, '{"key": 1}']  # an object with keys of its own; its class is not built here


def test_every_flag_of_vllm_s_parser_is_kept_named_or_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a value of its type, each ends in exactly one class."""
    plain = read_serve_command("vllm serve x/y")
    counts: Counter[str] = Counter()
    parser = parser_of_vllm()
    for action in parser._actions:
        if not action.option_strings or action.dest in ("help", "config"):
            continue
        words = sample(parser, action)
        flag = "--" + action.dest.replace("_", "-")
        if action.dest == "speculative_config":
            words[1] = '{"method": "mtp", "num_speculative_tokens": 1}'
        try:
            found = read_serve_command(shlex.join(["vllm", "serve", "x/y", *words]))
        except OutriderError as error:
            assert flag in str(error), words
            counts["refused"] += 1
            continue
        notes = [note for note in found.notes if note not in plain.notes]
        named = sum(re.search(rf"{flag}(?![\w-])", note) is not None for note in notes)
        named += any("speculative_config" in note for note in notes)
        kept = action.dest in found.values["serving"]["engine"]["extra_arguments"]
        kept = kept or action.dest in KEYS_OF_ARGUMENTS
        assert kept + named == 1 and not found.unknown, words
        counts["kept" if kept else "named"] += 1
    assert counts["kept"] > 80 and counts["named"] > 100 and counts["refused"] > 12


def test_a_config_file_is_read_as_vllm_reads_it(tmp_path: Path) -> None:
    """Flags of the command line take precedence over those of the file."""
    file = tmp_path / "serve.yaml"
    file.write_text(
        "model: org/model\ntensor-parallel-size: 4\nkv-cache-dtype: fp8\nenable-eplb: true\n"
        "speculative-config:\n  method: mtp\n  num_speculative_tokens: 2\n"
    )
    found = read_serve_command(f"vllm serve --config {file} -tp 8")
    engine = found.values["serving"]["engine"]
    assert found.values["target"] == {"model": "org/model"} and engine["tensor_parallel"] == 8
    assert engine["extra_arguments"] == {"kv_cache_dtype": "fp8", "enable_eplb": True}
    assert found.values["eval"] == {"current_k": 2}
    file.write_text("[")
    for name in (str(file), str(tmp_path / "gone.yaml"), str(tmp_path / "serve.json")):
        with pytest.raises(OutriderError, match="give a YAML file of flags that exists here"):
            read_serve_command(f"vllm serve org/model --config {name}")


@pytest.mark.parametrize(
    "flags",
    [
        "-tp 2 -pp 1 -dp 4 -ep -q fp8",
        "--tensor_parallel_size=2 --data_parallel_size 4 --enable_expert_parallel"
        " --quantization=fp8",
        "-tp 8 --tensor-parallel-size 2 --data-parallel-size=4 --no-enable-expert-parallel"
        " --enable-expert-parallel --quantization fp8",
        "-tp=2 -dp=4 -ep -q=fp8",
    ],
)
def test_flags_have_all_spellings_of_vllm_and_the_last_one_counts(flags: str) -> None:
    engine = read_serve_command(f"vllm serve x/y {flags}").values["serving"]["engine"]
    assert (engine["tensor_parallel"], engine["data_parallel"]) == (2, 4)
    assert engine["extra_arguments"] == {"enable_expert_parallel": True, "quantization": "fp8"}


def test_keys_and_texts_of_earlier_releases_speculation_are_read() -> None:
    keys = {"disable_log_stats": True, "enable_chunked_prefill": True, "num_speculative_tokens": 3}
    section = json.dumps({"model": "org/medusa", "method": "medusa", **keys})
    command = read_serve_command(f"vllm serve org/model --speculative-config '{section}'")
    assert command.values["eval"] == {"current_k": 3}
    # Flags before vLLM 0.8: texts, and the method in brackets instead of a model.
    flags = "--speculative-model [ngram] --num-speculative-tokens 64"
    lengths = "--ngram-prompt-lookup-min 2 --ngram-prompt-lookup-max 64"
    command = read_serve_command(f"vllm serve org/model {flags} {lengths}")
    settings = {"prompt_lookup_min": 2, "prompt_lookup_max": 64}
    assert command.values["speculator"] == {"base": "ngram", "base_settings": settings}


@pytest.mark.parametrize(
    ("model", "note"),
    [
        ("org/model", None),
        ("/models", "set target.model to a copy (its host has it at ../vllm/current)"),
        ("/models/r1", "set target.model to a copy (its host has it at ../vllm/current/r1)"),
        ("/cache/r1", "no directory here; set target.model to a copy"),
        ("/tmp", None),
        ("pvc://claim/r1", "a store's address; set target.model to a copy"),
    ],
)
def test_a_model_at_a_place_of_the_endpoint_is_named(model: str, note: str | None) -> None:
    command = f"docker run -v ../vllm/current:/models:ro vllm/vllm-openai --model {model}"
    about = [line for line in read_serve_command(command).notes if line.startswith(f"{model}:")]
    assert (note or "") in "".join(about)
    assert len(about) == (note is not None)


@pytest.mark.parametrize("length", ["-1", "auto"])
def test_a_length_that_vllm_chooses_stays_the_recipe_s(length: str) -> None:
    command = read_serve_command(f"vllm serve org/model --max-model-len {length}")
    assert "max_model_len" not in command.values["serving"]["engine"]
    assert any("its log names" in note for note in command.notes)
