"""The recorder around a scheduler whose outputs are given."""

import stat
from types import SimpleNamespace

from outrider.serving.config import ServingConfig
from outrider.serving.vllm_hooks import step_recorder
from outrider.serving.vllm_hooks.step_recorder import RECORD, RUN, Step, StepFile


def test_numbers_of_drafts_rotate_and_steps_are_recorded(tmp_path, monkeypatch):
    path, clock = tmp_path / "steps.jsonl", iter(range(1000))
    path.write_text("of an earlier server\n")
    file = StepFile(path)
    assert (
        file.recorded(ServingConfig()).engine.environment == {RECORD: str(path)}
        and file.new() == []
    )
    monkeypatch.setattr(step_recorder.time, "perf_counter", lambda: float(next(clock)))
    asked: list[int] = []

    def schedule(scheduler, plan):
        asked.append(scheduler.dynamic_sd_lookup[1])
        new = [SimpleNamespace(req_id=name) for name in plan.get("new", ())]
        return SimpleNamespace(
            num_scheduled_tokens=plan["tokens"],
            total_num_scheduled_tokens=sum(plan["tokens"].values()),
            scheduled_new_reqs=new,
        )

    scheduler = SimpleNamespace(num_spec_tokens=2, dynamic_sd_lookup=[2, 2, 2])
    recorded = step_recorder._recorded(schedule, str(path))
    plans = [{"tokens": {"a": 30}, "new": ["a"]}]
    plans += [{"tokens": {"a": 2}}] * RUN
    plans += [
        {"tokens": {"a": 3, "b": 50}, "new": ["b"]},
        {"tokens": {"a": 3, "b": 3}},
        {"tokens": {}},
        {"tokens": {"c": 3}},
    ]
    for plan in plans:
        recorded(scheduler, plan)
    assert asked == [1] * RUN + [2] * (len(plans) - RUN)
    steps = file.new()
    assert steps[0] == Step(1.0, 1, 1, 30, 1, 30, True)
    assert steps[1] == Step(1.0, 1, 1, 2, 0, 0, True) and steps[1].settled
    # It verifies fewer drafts than it makes: the step before made one.
    assert not steps[RUN].settled and steps[RUN].drafts == 2
    assert steps[RUN + 1] == Step(1.0, 2, 2, 53, 1, 50, True) and not steps[RUN + 1].settled
    assert steps[RUN + 2] == Step(1.0, 2, 2, 6, 0, 0, False) and steps[RUN + 2].settled
    # No step is recorded for the call without requests, nor yet for the last one.
    assert len(steps) == RUN + 3
    recorded(scheduler, {"tokens": {"c": 3}})
    assert file.new() == [Step(1.0, 1, 2, 3, 0, 0, True)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_number_of_drafts_changes_with_the_next_step(tmp_path):
    path = tmp_path / "steps.jsonl"
    file, asked = StepFile(path), []

    def schedule(scheduler, requests):
        asked.append(scheduler.dynamic_sd_lookup[1:])
        tokens = dict.fromkeys("abcd"[:requests], 3)
        return SimpleNamespace(
            num_scheduled_tokens=tokens,
            total_num_scheduled_tokens=3 * requests,
            scheduled_new_reqs=[],
        )

    def run(recorded, steps, requests=1):
        asked.clear()
        for _ in range(steps):
            recorded(scheduler, requests)

    scheduler = SimpleNamespace(num_spec_tokens=3, dynamic_sd_lookup=[3, 3, 3, 3, 3])
    recorded = step_recorder._recorded(schedule, str(path))
    run(recorded, 4)
    assert asked == [[1] * 4] * 4
    file.draft(2)
    run(recorded, 20)
    assert asked == [[2] * 4] * 20
    file.draft([(1, 2, 3), (3, 3, 0)])  # as vLLM: the last range's number holds beyond it
    run(recorded, 2, requests=4)
    assert asked == [[3, 3, 0, 0]] * 2
    file.draft(0, 3)
    run(recorded, 2 * RUN)
    assert sorted(asked) == [[0] * 4] * RUN + [[3] * 4] * RUN
    numbers = [step.drafts for step in file.new()]
    assert numbers[:4] == [1] * 4 and numbers[4:24] == [2] * 20 and numbers[24:26] == [0, 0]
    assert {*numbers[26:]} == {0, 3}
    StepFile(path)  # the next server's file: rotates again
    run(step_recorder._recorded(schedule, str(path)), 4)
    assert asked == [[1] * 4] * 4


def test_half_a_line_is_left_for_the_next_reading(tmp_path):
    path = tmp_path / "steps.jsonl"
    file = StepFile(path)
    path.write_text("[0.5, 1, 0, 1, 0, 0, true]\n[0.25, 1, ")
    assert file.new() == [Step(0.5, 1, 0, 1, 0, 0, True)]
    path.write_text(path.read_text() + "0, 1, 0, 0, false]\n")
    assert file.new() == [Step(0.25, 1, 0, 1, 0, 0, False)]
    assert file.new() == []
