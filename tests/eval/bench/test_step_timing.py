"""Steps of real servers, timed while they serve.

How long a step takes depends on the machine; which steps are timed does not.
"""

from pathlib import Path

import pytest

from outrider.eval.bench.server_pool import ServerPool
from outrider.eval.bench.step_timing import time_steps
from outrider.serving.client import Sampling, complete
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.step_times import StepTimes

DEPTH = 2


@pytest.mark.engine
def test_steps_are_timed_for_every_k_and_the_same_servers_then_draft_the_chosen_one(
    nano_r1: Path, tmp_path: Path
) -> None:
    target = TargetConfig(model=str(nano_r1))
    serving = ServingConfig(
        engine=EngineConfig(max_num_seqs=4, max_model_len=512, kv_cache_gb=0.25)
    )
    texts = ["Where is my order?", "List the total of this receipt.", "Is this candidate a fit?"]
    sampling, logs = Sampling(0.6, 0.95), tmp_path / "logs"
    speculators = {"base": nano_r1, "custom": nano_r1}
    with (
        ServerPool(target, serving, speculators, DEPTH, logs) as pool,
        LoadGenerator(target, logs / "load.log") as load,
    ):
        fleet = pool.fleet("eager")
        times = time_steps(fleet, load, DEPTH, [1, 3], texts, sampling, 48)
        speculating = fleet.server("base")
        assert pool.fleet("eager", DEPTH) is fleet and fleet.server("base") is speculating
        fleet.new_steps("base")
        complete(speculating.url, speculating.model_name, [[0, 17, 4]], sampling, 40)
        steps = fleet.new_steps("base")
    assert len(steps) > 5 and {step.drafts for step in steps[1:]} == {DEPTH}
    assert set(times.step_s) == {1, 3}
    assert all(len(row) == DEPTH + 1 and min(row) > 0 for row in times.step_s.values())
    assert all(0 <= seconds < 1 for seconds in times.prompt_token_s)
    assert {path.stat().st_mode & 0o777 for path in logs.glob("*.log")} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in logs.glob("*.jsonl")} == {0o600}
    assert StepTimes.from_dict(times.as_dict()) == times
