"""The engine's drafts are those of the trainer's unroll, at every depth (eval/replay)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.eval.replay.draft_parity import engine_parity
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.speculators.parity import ParityConfig, complaint, in_words
from tests.gpu.inputs import (
    NANO,
    PARITY,
    RANDOM_PARITY,
    K,
    engine_config,
    logged_prompts,
    random_r1,
)

pytestmark = pytest.mark.engine


def test_engine_and_trainer_draft_the_same(
    on_gpu: bool, record_property: Callable[[str, object], None]
) -> None:
    parity = PARITY.model_copy(update={"prompts": 32, "anchors": 512}) if on_gpu else PARITY
    compared(NANO, engine_config(on_gpu), parity, record_property)


@pytest.mark.gpu
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
def test_fp8_blocks_draft_as_the_dequantized_weights(
    gpu: None,
    kv_cache_dtype: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    engine = engine_config(True, environment={}, extra_arguments={"kv_cache_dtype": kv_cache_dtype})
    compared(random_r1(tmp_path, fp8=True), engine, RANDOM_PARITY, record_property)


@pytest.mark.gpu
@pytest.mark.parametrize("expert_parallel", [False, True], ids=["tensor", "experts"])
def test_two_gpus_draft_as_one(
    two_gpus: None,
    expert_parallel: bool,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    engine = engine_config(
        True,
        environment={},
        tensor_parallel=2,
        extra_arguments={"enable_expert_parallel": expert_parallel},
    )
    compared(random_r1(tmp_path, fp8=False), engine, RANDOM_PARITY, record_property)


def compared(
    target: TargetConfig,
    engine: EngineConfig,
    parity: ParityConfig,
    record_property: Callable[[str, object], None],
) -> None:
    prompts = logged_prompts(parity.prompts)
    found = engine_parity(target, engine, target.directory(), K, prompts, parity)
    record_property("parity", in_words(found))
    assert complaint(found, parity) is None
