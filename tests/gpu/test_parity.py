"""The engine's states give its log-probabilities, and its drafts are the trainer's unroll's."""

import time
from dataclasses import asdict
from pathlib import Path

import pytest

from outrider.data.features.engine_checks import check_engine, require_self_check, self_check
from outrider.eval.replay.draft_parity import engine_parity
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import open_engine
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.features import FeatureSpec, FeatureStream, layer_name
from outrider.speculators.parity import ParityConfig, parity_failure, parity_in_words
from tests.gpu.inputs import (
    NANO,
    PARITY,
    RANDOM_PARITY,
    K,
    engine_config,
    logged_prompts,
    logged_rows,
    random_r1,
)
from tests.serving.vllm_hooks.v2_dspark import parities

pytestmark = pytest.mark.engine


def test_states_give_the_engine_s_log_probabilities(on_gpu, tmp_path, record_property):
    checked(
        target=NANO,
        config=engine_config(on_gpu),
        count=256 if on_gpu else 8,
        folder=tmp_path,
        record_property=record_property,
    )


def test_states_of_mla_at_r1_s_head_widths(on_gpu, tmp_path, record_property):
    """In FP8 blocks on a GPU: vLLM computes them nowhere else."""
    target = random_r1(tmp_path, fp8=on_gpu)
    engine = engine_config(on_gpu, environment={})
    checked(
        target=target,
        config=engine,
        count=32 if on_gpu else 8,
        folder=tmp_path,
        record_property=record_property,
    )


def test_states_of_layers_are_the_target_s(on_gpu, tmp_path, record_property):
    """The last of them gives the state after the final norm."""
    target_dir = NANO.directory()
    head = load_target_ends(target_dir).lm_head_VH
    streams = tuple(FeatureStream(layer_name(layer), head.shape[1]) for layer in (2, 8, 13))
    with open_engine(NANO, engine_config(on_gpu), scratch=tmp_path) as engine:
        checks, _ = check_engine(
            engine=engine,
            rows=logged_rows(32 if on_gpu else 4),
            spec=FeatureSpec(streams).stored(head.shape[1]),
            lm_head_VH=head,
            target_dir=target_dir,
        )
    for name, value in checks["layer_check"].items():
        record_property(f"layers_{name}", value)


@pytest.mark.gpu
def test_states_are_whole_on_two_gpus(two_gpus, tmp_path, record_property):
    """No twin: vLLM's hooks have not run on two ranks without GPUs."""
    engine = engine_config(True, environment={}, tensor_parallel=2)
    checked(
        target=random_r1(tmp_path, fp8=False),
        config=engine,
        count=32,
        folder=tmp_path,
        record_property=record_property,
    )


def checked(
    target: TargetConfig,
    config: EngineConfig,
    count: int,
    folder: Path,
    record_property,
) -> None:
    logged = logged_rows(count)
    with open_engine(target, config, scratch=folder) as engine:
        head = load_target_ends(target.directory()).lm_head_VH
        found = self_check(engine, logged[: max(4, count // 8)], head)
        began = time.monotonic()
        tokens = sum(len(states.token_ids) for _, states in engine.prefill(logged))
        seconds = time.monotonic() - began
    record_property("capture_tokens_per_s", tokens / seconds)
    for name, value in asdict(found).items():
        record_property(name, value)
    require_self_check(found)


def test_engine_and_trainer_draft_the_same(on_gpu, record_property):
    parity = PARITY._replace(prompts=32, anchors=512) if on_gpu else PARITY
    compared(NANO, engine_config(on_gpu), parity, record_property)


@pytest.mark.gpu
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
def test_fp8_blocks_draft_as_the_dequantized_weights(
    gpu, kv_cache_dtype, tmp_path, record_property
):
    """Twins: tests/speculators/checkpoints/test_fp8.py, and parity without FP8 above."""
    engine = engine_config(True, environment={}, extra_arguments={"kv_cache_dtype": kv_cache_dtype})
    compared(random_r1(tmp_path, fp8=True), engine, RANDOM_PARITY, record_property)


@pytest.mark.gpu
@pytest.mark.parametrize("expert_parallel", [False, True], ids=["tensor", "experts"])
def test_two_gpus_draft_as_one(two_gpus, expert_parallel, tmp_path, record_property):
    """No twin: as above."""
    engine = engine_config(
        True,
        environment={},
        tensor_parallel=2,
        extra_arguments={"enable_expert_parallel": expert_parallel},
    )
    compared(random_r1(tmp_path, fp8=False), engine, RANDOM_PARITY, record_property)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["greedy", "probabilistic"])
def test_a_dspark_head_drafts_as_its_unroll(gpu, method, tmp_path, record_property):
    """Also after a swap to a head for other tokens. Model runner V2 alone walks over its block.

    vLLM 0.32, `_get_v1_model_runner_unsupported_features`.
    Twin: tests/serving/vllm_hooks/test_v2_runner.py, in Triton's interpreter.
    """
    environment = {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_MLA_DISABLE": "1"}
    engine = engine_config(True, environment=environment)
    prompts = logged_prompts(RANDOM_PARITY.prompts)
    found = parities(
        target=NANO,
        engine_config=engine,
        folder=tmp_path,
        prompts=prompts,
        parity=RANDOM_PARITY,
        sample_method=method,
    )
    for name in ("first", "second"):
        record_property(name, parity_in_words(found[name]))
        assert parity_failure(found[name], RANDOM_PARITY) is None
    assert parity_failure(found["crossed"], RANDOM_PARITY) is not None


def compared(
    target: TargetConfig,
    engine: EngineConfig,
    parity: ParityConfig,
    record_property,
) -> None:
    prompts = logged_prompts(parity.prompts)
    found = engine_parity(
        target=target,
        engine_config=engine,
        speculator_dir=target.directory(),
        k=K,
        prompts=prompts,
        parity=parity,
    )
    record_property("parity", parity_in_words(found))
    assert parity_failure(found, parity) is None
