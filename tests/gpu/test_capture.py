"""Log-probabilities rebuilt from captured states are the engine's."""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from outrider.data.features.engine_checks import require_self_check, self_check
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import open_engine
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.features import FINAL_NORM
from tests.gpu.inputs import NANO, engine_config, logged_rows, random_r1

pytestmark = pytest.mark.engine


def test_states_give_the_engine_s_log_probabilities(
    on_gpu: bool, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    checked(NANO, engine_config(on_gpu), 256 if on_gpu else 8, tmp_path, record_property)


def test_states_of_mla_at_r1_s_head_widths(
    on_gpu: bool, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """In FP8 blocks on a GPU: vLLM computes them nowhere else."""
    target = random_r1(tmp_path, fp8=on_gpu)
    engine = engine_config(on_gpu, environment={})
    checked(target, engine, 32 if on_gpu else 8, tmp_path, record_property)


@pytest.mark.gpu
def test_states_are_whole_on_two_gpus(
    two_gpus: None, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    engine = engine_config(True, environment={}, tensor_parallel=2)
    checked(random_r1(tmp_path, fp8=False), engine, 32, tmp_path, record_property)


def checked(
    target: TargetConfig,
    config: EngineConfig,
    count: int,
    folder: Path,
    record_property: Callable[[str, object], None],
) -> None:
    logged = logged_rows(count)
    with open_engine(target, config, scratch=folder) as engine:
        head = load_target_ends(target.directory()).lm_head_VH
        found = self_check(engine, logged[: max(4, count // 8)], head)
        began = time.monotonic()
        tokens = sum(len(states[FINAL_NORM]) for _, states, _ in engine.prefill(logged))
        seconds = time.monotonic() - began
    record_property("capture_tokens_per_s", tokens / seconds)
    for name, value in asdict(found).items():
        record_property(name, value)
    require_self_check(found)
