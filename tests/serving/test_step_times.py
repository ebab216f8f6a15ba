"""Steps of the real engine, timed in a process of its own; how long they take is the machine's affair."""

from pathlib import Path

import pytest

from outrider.serving.client import Sampling
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.step_times import measure_step_times
from outrider.speculators.errors import OutriderError


@pytest.mark.engine
def test_every_number_of_drafts_is_timed_at_every_batch_size(
    target: TargetConfig, prompts: list[list[int]], tmp_path: Path
) -> None:
    engine, log = EngineConfig(max_num_seqs=4, max_model_len=512, kv_cache_gb=0.25), tmp_path / "logs" / "steps.log"
    times = measure_step_times(
        target, engine, target.directory(), 3, [1, 3], prompts, Sampling(0.6, 0.95), log_path=log
    )
    assert set(times) == {1, 3} and all(len(row) == 4 and min(row) > 0 for row in times.values())
    assert log.stat().st_mode & 0o777 == 0o600


def test_an_engine_too_short_for_it_is_refused(target: TargetConfig) -> None:
    with pytest.raises(
        OutriderError, match=r"max_model_len = 128: too short to time steps of up to 4 drafts; raise it by"
    ):
        measure_step_times(target, EngineConfig(max_model_len=128), target.directory(), 4, [1], [[1]], Sampling())
