"""Flags of the engine, the server and a bundle come from one source, and what a bundle may set."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.bundle.bundle import serve_script
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.serve_flags import bundle_command, read_serve_flags, without_quotes
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_arguments import engine_arguments, serve_arguments
from tests.serving.exported import engine, write_exported

HERE = "/mnt/speculator"
SCHEDULE = [(1, 4, 3), (5, 64, 1)]


def test_vllm_parses_the_server_s_flags_to_the_engine_s_arguments(tmp_path: Path) -> None:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    (tmp_path / "config.json").write_text("{}")
    drafting = Drafting(Speculator("mtp", Path("custom")), 3, "probabilistic", SCHEDULE)
    settings = TargetConfig(model=str(tmp_path)), EngineConfig(max_num_seqs=5), drafting
    model, *words = serve_arguments(*settings)
    parsed = EngineArgs.from_cli_args(
        EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(words)
    )
    arguments = engine_arguments(*settings)
    assert model == arguments.pop("model")
    compilation = arguments.pop("compilation_config", {})
    assert {name: getattr(parsed, name) for name in arguments} == arguments
    assert {name: getattr(parsed.compilation_config, name) for name in compilation} == compilation


@pytest.mark.parametrize("schedule", [None, SCHEDULE], ids=["one-k", "schedule"])
def test_flags_are_those_that_the_engine_was_evaluated_with(tmp_path, schedule) -> None:
    settings = engine(
        extra_arguments={"attention_config": {"backend": "FLASHMLA", "flash_attn_version": 3}}
    )
    bundle = write_exported(tmp_path / "bundle", schedule=schedule, settings=settings)
    flags = read_serve_flags(bundle, HERE)
    drafting = Drafting(Speculator("mtp", Path(HERE)), 3, k_per_batch_size=schedule)
    _, *words = serve_arguments(TargetConfig(), settings, drafting)
    assert flags.words == words
    assert flags.arguments["speculative_config"]["model"] == HERE
    assert flags.gpus == 8
    assert "VLLM_LOGGING_STREAM" not in flags.environment


def test_serve_sh_sets_nothing_that_the_recipe_leaves_to_vllm(tmp_path: Path) -> None:
    drafting = Drafting(Speculator("mtp", Path("custom")), 3)
    mode: dict[str, Any] = {"mode": "compiled"}
    script = serve_script(TargetConfig(), EngineConfig(**mode), drafting)
    flags = set(re.findall(r"^  --([a-z-]+)", script, re.MULTILINE))
    # Of the target and the machine; the rest is the speculator's.
    measured = {"dtype", "max-model-len", "kv-cache-memory-bytes", "gpu-memory-utilization"}
    needed = {"speculative-config", "served-model-name", "host", "compilation-config"}
    assert flags <= measured | needed, script
    off = {"enable_prefix_caching": False}
    changed = EngineConfig(max_num_seqs=8, extra_arguments=off, **mode)
    script = serve_script(TargetConfig(), changed, drafting)
    assert "--max-num-seqs 8" in script and "--no-enable-prefix-caching" in script
    assert EngineConfig().prefix_caching and not changed.prefix_caching


def test_a_shell_and_vllm_read_the_same_from_flags_without_quotes(tmp_path) -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    settings = engine(
        extra_arguments={"compilation_config": {"custom_ops": ["all", "-rotary_embedding"]}}
    )
    bundle = write_exported(tmp_path / "bundle", schedule=SCHEDULE, settings=settings)
    groups = read_serve_flags(bundle, HERE).groups
    text = without_quotes(groups)
    for script in ("printf '%s\\n' $ARGS", "eval \"printf '%s\\n' ${ARGS}\""):
        done = subprocess.run(
            ["bash", "-c", script], env={"ARGS": text}, capture_output=True, text=True, check=True
        )
        assert done.stdout.split("\n")[:-1] == text.split(" "), script

    def parsed(words: list[str]) -> Any:
        return make_arg_parser(FlexibleArgumentParser()).parse_args(words)

    with_quotes = parsed([word for group in groups for word in group])
    assert with_quotes.speculative_config["num_speculative_tokens_per_batch_size"]
    assert with_quotes.compilation_config.custom_ops == ["all", "-rotary_embedding"]
    assert parsed(text.split(" ")) == with_quotes
    with pytest.raises(OutriderError, match="LLMInferenceServiceConfig"):
        without_quotes([("--chat-template", "a b")])


@pytest.mark.attack("serve")
@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("environment", "LD_PRELOAD", "/tmp/x.so"),
        ("environment", "PYTHONPATH", "/tmp"),
        ("environment", "VLLM_SERVER_DEV_MODE", "1"),
        ("environment", "VLLM_PLUGINS", "theirs"),
        ("environment", "VLLM_API_KEY", "s3cret"),
        ("environment", "VLLM_USE_DEEP_GEMM", "1\nexport LD_PRELOAD=x"),
        ("arguments", "trust_remote_code", True),
        ("arguments", "middleware", "evil.Module"),
        ("arguments", "worker_cls", "evil.Worker"),
        ("arguments", "logits_processors", ["evil.Logits"]),
        ("arguments", "hf_token", "s3cret"),
        ("arguments", "dtype", "--middleware=evil.Module"),
        ("arguments", "distributed_executor_backend", "evil.Executor"),
        ("arguments", "compilation_config", {"backend": "evil.backend"}),
        ("arguments", "compilation_config", '{"inductor_passes": {"x": "evil.pass"}}'),
        ("arguments", "structured_outputs_config", '{"reasoning_parser_plugin": "/evil.py"}'),
        ("arguments", "cudagraph_capture_sizes", ["1", "-cc.inductor_passes.x=evil.pass"]),
        ("arguments", "tokenizer", "evil/x"),
        ("arguments", "generation_config", "evil/x"),
        ("arguments", "load_format", "evil"),
        ("environment", "VLLM_HUMMING_ONLINE_QUANT_CONFIG", "evil.json"),
        ("environment", "VLLM_CPU_OMP_THREADS_BIND", "$(HF_TOKEN)evil"),
        ("environment", "VLLM_DISABLED_KERNELS", "/evil/x"),
        ("arguments", "hf_overrides", {"auto": {"trust_remote_code": True}}),
        ("arguments", "model", "elsewhere"),
        ("arguments", "speculative_config", {"model": "elsewhere"}),
    ],
)
def test_a_bundle_sets_only_what_the_engine_computes_with(tmp_path, section, name, value) -> None:
    bundle = write_exported(tmp_path / "bundle")
    manifest = json.loads((bundle / "bundle.json").read_text())
    manifest["serve"][section][name] = value
    (bundle / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(OutriderError, match=name) as caught:
        read_serve_flags(bundle, HERE)
    assert "s3cret" not in str(caught.value) and "evil" not in str(caught.value)


@pytest.mark.attack("serve")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("serve", None),
        ("serve", {"arguments": [], "environment": {}}),
        ("serve.environment", "LD_PRELOAD"),
        ("target", "nano_r1"),
        ("target.model", "x/--trust-remote-code"),
        ("target.model", "x/--trust-remote-code/."),
        ("target.model", "x/$(HF_TOKEN)"),
        ("target.model", "x/y\nz"),
        ("target.revision", "main --middleware=evil.Module"),
        ("vllm", "0.32.0@sha256:ab"),
        ("vllm", None),
        ("method", "evil"),
        ("num_speculative_tokens", "3"),
        ("num_speculative_tokens", True),
        ("num_speculative_tokens", -1),
        ("num_speculative_tokens_per_batch_size", {"x": "evil"}),
        ("num_speculative_tokens_per_batch_size", [[1, 4, "evil"]]),
        ("draft_sample_method", "evil.Sampler"),
    ],
)
def test_what_becomes_a_word_of_a_command_is_checked(tmp_path, key, value) -> None:
    bundle = write_exported(tmp_path / "bundle")
    manifest = json.loads((bundle / "bundle.json").read_text())
    *path, last = key.split(".")
    section = manifest[path[0]] if path else manifest
    section[last] = value
    (bundle / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(OutriderError, match=last if last != "method" else "kind 'evil'"):
        read_serve_flags(bundle, HERE)


@pytest.mark.attack("serve")
def test_serve_sh_is_not_read(tmp_path) -> None:
    bundle = write_exported(tmp_path / "bundle", model="nano_r1")
    before = read_serve_flags(bundle, HERE)
    (bundle / "serve.sh").write_text("#!/bin/sh\nvllm serve x --middleware evil.Module\n")
    assert read_serve_flags(bundle, HERE) == before
    command, environment = bundle_command(bundle)
    assert command[:2] == [sys.executable, "-P"]  # no module of the current folder
    assert command[4:6] == ["serve", str(TargetConfig().directory())]
    assert "--middleware" not in command and "VLLM_SERVER_DEV_MODE" not in environment
    speculative = json.loads(command[command.index("--speculative-config") + 1])
    assert speculative["model"] == str(bundle)
