"""The model runner that Outrider expects is the one that vLLM's configuration chooses."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args
from unittest import mock

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.runner import VARIABLE, compiles_triton, runner_of, runner_refusal
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_arguments import engine_arguments
from outrider.speculators.kinds import KINDS, kind_named

DBO = {"enable_dbo": True}
LAUNCHED = {"distributed_executor_backend": "external_launcher"}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "micro batches": {"extra_arguments": {"ubatch_size": 2}},
    "one micro batch": {"extra_arguments": {"ubatch_size": 1}},
    "dual batch overlap": {"extra_arguments": DBO},
    "dual batch overlap, V2": {"extra_arguments": DBO, "environment": {VARIABLE: "1"}},
    "pipeline": {"pipeline_parallel": 2},
    "torchrun": {"extra_arguments": LAUNCHED},
    "torchrun, pipeline": {"extra_arguments": LAUNCHED, "pipeline_parallel": 2},
    "V1": {"environment": {VARIABLE: "0"}},
    "V2": {"environment": {VARIABLE: "1"}},
    "hisparse": {"extra_arguments": {"attention_config": {"hisparse_config": {"top_k": 64}}}},
    "another backend": {"extra_arguments": {"attention_config": {"backend": "FLASH_ATTN"}}},
}


@pytest.fixture(autouse=True)
def environment_is_restored() -> Any:
    """VllmConfig sets LD_PRELOAD and other variables on a CPU."""
    with mock.patch.dict(os.environ):
        os.environ.pop(VARIABLE, None)
        yield


@pytest.fixture(scope="module")
def vllm_config() -> Any:
    from vllm.config import VllmConfig

    with mock.patch.dict(os.environ):
        return VllmConfig()


def vllms_runner(
    config: Any, kind_name: str, engine: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> str:
    """What vLLM's own property answers for the kind's settings in this engine."""
    settings = kind_named(kind_name).vllm_settings(Path("head"), 4, "greedy", None)
    drafting = None
    if settings is not None:
        defaults = {"parallel_drafting": False}
        drafting = SimpleNamespace(**defaults | settings)
    arguments = engine.extra_arguments
    attention = arguments.get("attention_config", {})
    micro_batches = arguments.get("ubatch_size", 0)
    monkeypatch.setattr(config, "speculative_config", drafting)
    changed = {
        "pipeline_parallel_size": engine.pipeline_parallel,
        "distributed_executor_backend": arguments.get("distributed_executor_backend"),
        "enable_dbo": arguments.get("enable_dbo", False),
        "ubatch_size": micro_batches,
    }
    for name, value in changed.items():
        monkeypatch.setattr(config.parallel_config, name, value)
    hisparse = attention.get("hisparse_config")
    monkeypatch.setattr(config.attention_config, "hisparse_config", hisparse)
    with mock.patch.dict(os.environ, engine.environment):
        return "v2" if config.use_v2_model_runner else "v1"


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind_name", KINDS)
def test_it_is_vllms_own_choice(
    kind_name: str,
    case: str,
    on_gpu: bool,
    vllm_config: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vllm.config.vllm.HAS_TRITON", on_gpu)
    monkeypatch.setattr("outrider.serving.runner.runs_on_cpu", lambda: not on_gpu)
    engine = EngineConfig(**CASES[case])
    expected = vllms_runner(vllm_config, kind_name, engine, monkeypatch)
    assert runner_of(kind_named(kind_name), engine) == expected


def test_both_runners_are_chosen_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.serving.runner.runs_on_cpu", lambda: False)
    chosen = {name: runner_of(kind, EngineConfig()) for name, kind in KINDS.items()}
    of_v1 = {name for name, runner in chosen.items() if runner == "v1"}
    assert of_v1 == {"suffix", "p_eagle"}


def test_the_variable_of_the_command_counts_and_the_recipes_overrides_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ngram = kind_named("ngram")
    monkeypatch.setenv(VARIABLE, "1")
    assert runner_of(ngram, EngineConfig()) == "v2"
    assert runner_of(ngram, EngineConfig(environment={VARIABLE: "0"})) == "v1"
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(OutriderError, match=f"{VARIABLE} = 'yes': .*set it to 0 or 1"):
        runner_of(ngram, EngineConfig())


def test_ngram_lookup_keeps_async_scheduling_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU vLLM has none, and V1 must be able to draft fewer tokens than at its start."""
    from vllm.config.speculative import NgramGPUTypes

    drafting = Drafting(Speculator("ngram", settings={"prompt_lookup_min": 1}), 4)
    target = TargetConfig(model="nano_r1")
    methods = {}
    for on_cpu in (True, False):
        monkeypatch.setattr("outrider.serving.runner.runs_on_cpu", lambda on_cpu=on_cpu: on_cpu)
        settings = engine_arguments(target, EngineConfig(), drafting)["speculative_config"]
        assert settings["prompt_lookup_min"] == 1
        methods[on_cpu] = settings["method"]
    assert methods == {True: "ngram", False: get_args(NgramGPUTypes)[0]}
    v1 = EngineConfig(environment={VARIABLE: "0"})
    assert engine_arguments(target, v1, drafting)["speculative_config"]["method"] == "ngram"


def test_triton_is_used_as_by_the_installed_vllm() -> None:
    from vllm.triton_utils import HAS_TRITON

    assert compiles_triton() is HAS_TRITON


def test_a_kind_of_one_runner_is_refused_in_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.serving.runner.runs_on_cpu", lambda: False)
    v1, v2 = (EngineConfig(environment={VARIABLE: value}) for value in "01")
    for kind in KINDS.values():
        refused = {"v1": runner_refusal(kind, v1), "v2": runner_refusal(kind, v2)}
        for runner, reason in refused.items():
            assert (reason is None) is (kind.only_runner in {None, runner}), (kind.name, runner)
    assert "suffix lookup in its model runner V1 only" in str(
        runner_refusal(kind_named("suffix"), v2)
    )
    overlapped = EngineConfig(extra_arguments=DBO)
    assert "dual batch overlap" in str(runner_refusal(kind_named("dspark"), overlapped))
