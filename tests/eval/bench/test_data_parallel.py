"""With data parallelism or EPLB every number of drafts and every speculator has its own server."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.eval.bench.server_pool import Fleet
from outrider.eval.bench.step_times import StepTimes, joined
from outrider.eval.results.parts import CURRENT, SAME_K
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.speculator import Speculator
from outrider.serving.vllm_hooks import step_recorder


def both(folder: Path) -> dict[str, Speculator]:
    return {name: Speculator("mtp", folder / name) for name in ("base", "custom")}


APART = [{"data_parallel": 2}, {"extra_arguments": {"enable_eplb": True}}]


@pytest.mark.parametrize("settings", APART)
def test_no_server_is_asked_for_two_numbers(settings: dict[str, Any], tmp_path: Path) -> None:
    serving = ServingConfig(engine=EngineConfig(**settings))
    speculators = {
        "base": Speculator("mtp", tmp_path / "base"),
        "custom": Speculator("mtp", tmp_path),
    }
    plan = {"base": 2, "custom": 4, SAME_K: 4, CURRENT: 1}
    fleet = Fleet(TargetConfig(), serving, speculators, plan, tmp_path, False)
    variants = ["none", *plan]
    assert fleet.engines(variants) == [[variant] for variant in variants]
    assert [fleet._numbers(name) for name in plan] == [(2,), (4,), (4,), (1,)]
    alone = Fleet(TargetConfig(), serving, speculators, None, tmp_path, False, depth=4)
    assert alone._numbers("custom") == (4,)


def test_one_engine_serves_all_where_it_can(tmp_path: Path) -> None:
    speculators = {
        "base": Speculator("mtp", tmp_path / "base"),
        "custom": Speculator("mtp", tmp_path),
    }
    plan = {"base": 2, "custom": 4, SAME_K: 4}
    fleet = Fleet(TargetConfig(), ServingConfig(), speculators, plan, tmp_path, False)
    assert sorted(map(len, fleet.engines(["none", *plan]))) == [1, 3]


def test_times_of_servers_that_ran_one_after_another_are_compared_by_the_targets_own() -> None:
    """The machine was twice as slow while the second number was timed."""
    one = StepTimes(numbers=[1], plain_s={4: 0.01}, rounds={4: [[0.012], [0.014]]})
    two = StepTimes(numbers=[2], plain_s={4: 0.02}, rounds={4: [[0.030], [0.032], [0.030]]})
    times = joined([one, two])
    assert times.numbers == [1, 2] and times.plain_s == {4: pytest.approx(0.015)}
    assert times.rounds[4] == [pytest.approx([0.018, 0.0225]), pytest.approx([0.021, 0.024])]


def test_a_scheduler_without_a_schedule_of_drafts_records_its_own_number(tmp_path: Path) -> None:
    """As vLLM's is with data parallelism: it has dropped `dynamic_sd_lookup`."""
    path = tmp_path / "steps.jsonl"
    file = step_recorder.StepFile(path)
    file.draft(1, 2)
    output = SimpleNamespace(
        num_scheduled_tokens={"a": 4}, scheduled_new_reqs=[], total_num_scheduled_tokens=4
    )
    scheduler = SimpleNamespace(dynamic_sd_lookup=None, num_spec_tokens=3)
    schedule = step_recorder._recorded(lambda scheduler: output, str(path))
    for _ in range(3):
        schedule(scheduler)
    step_recorder._opened(str(path)).flush()
    assert [step.drafts for step in file.new()] == [3, 3]
