"""Kinds are ranked by tokens/s at the main concurrency, each at its own best K."""

import json

import numpy as np
import pytest

from outrider.eval.bench.kind_steps import KindSteps
from outrider.eval.prediction.best_k import choose_k
from outrider.eval.prediction.choose_k import RESAMPLES, round_table
from outrider.eval.prediction.kind_forecast import Candidate, forecast, step_times_of
from outrider.eval.prediction.step_fit import fit_steps
from outrider.eval.prediction.throughput_simulator import closed_loop_seconds
from outrider.serving.step_times import StepCosts, StepTimes
from tests.eval.sample_kinds import FACTS, STEPS_MS, sample_choice, sample_kind_steps
from tests.eval.sample_results import EVALUATION, sample_replay


def test_the_fastest_comes_first_each_at_its_own_k() -> None:
    choice = sample_choice()
    assert [each.kind for each in choice.kinds] == ["eagle3", "mtp", "p_eagle"]
    assert choice.finalists == ["eagle3", "mtp"] and choice.sequences == 120
    by_kind = {each.kind: each for each in choice.kinds}
    # A kind that can make only one number of drafts has that one, and no reason.
    assert by_kind["p_eagle"].k == 4 and by_kind["p_eagle"].reason is None
    for kind in ("eagle3", "mtp"):
        assert by_kind[kind].reason.k == by_kind[kind].k
    for each in choice.kinds:
        expected = sample_replay(0.6 if each.kind == "p_eagle" else 0.8).acceptance_length()
        assert each.acceptance_length.value == pytest.approx(expected[each.k - 1])
        assert each.acceptance_length.low < each.acceptance_length.value
        for size, speed in each.tokens_per_s.items():
            assert speed.low < speed.value < speed.high
            # The relative width has that of the step time and that of the acceptance length.
            step = each.step_ms[size]
            assert speed.high / speed.low > step.high / step.low


def test_speed_is_that_of_the_simulated_closed_loop() -> None:
    choice = sample_choice()
    for each in choice.kinds:
        true = STEPS_MS[each.kind][each.k - 1 if len(STEPS_MS[each.kind]) > 1 else 0]
        none = choice.none.step_ms["1"].value
        assert each.step_ms["1"].value / none == pytest.approx(true / 10, rel=0.08)
        # One request at a time: prompts, then steps; its own responses.
        replay = sample_replay(0.6 if each.kind == "p_eagle" else 0.8)
        costs = StepCosts({1: each.step_ms["1"].value / 1000}, 1e-5)
        steps = replay.steps_RK[:, each.k - 1]
        later = np.minimum(replay.tokens_R, EVALUATION.max_tokens - 1)
        steps = steps * later / replay.tokens_R
        block = EVALUATION.block_requests(1)
        seconds = sum(
            closed_loop_seconds(steps[i : i + block].tolist(), 1, costs, 200)
            for i in range(0, len(steps) - block + 1, block)
        )
        whole = len(steps) // block * block
        speed = (later[:whole] + 1).sum() / seconds
        assert each.tokens_per_s["1"].value == pytest.approx(speed, rel=1e-9)


def test_a_schedule_drafts_its_own_best_number_at_every_concurrency() -> None:
    single, scheduled = sample_choice(), sample_choice(by_batch_size=True)
    for before, after in zip(single.kinds, scheduled.kinds, strict=True):
        assert set(before.k_by_concurrency.values()) == {before.k}
        assert after.k_by_concurrency["1"] == after.k == before.k
    assert {each.kind: each for each in scheduled.kinds}["p_eagle"].k_by_concurrency == {
        "1": 4,
        "4": 4,
        "8": 4,
    }


def test_servers_that_did_not_run_at_the_same_time_are_not_paired() -> None:
    steps = sample_kind_steps()
    saved = KindSteps.model_validate_json(steps.model_dump_json())
    assert saved == steps
    assert all(len(turn) == 6 for turn in saved.turns["mtp"].values())


def test_few_sessions_have_no_interval() -> None:
    replay = sample_replay(0.8)
    few = replay.__class__(**{**vars(replay), "sessions": ["s"] * 120})
    steps = sample_kind_steps({name: STEPS_MS[name] for name in ("none", "mtp")})
    choice = forecast(steps, {"mtp": Candidate("x", few, FACTS)}, EVALUATION, 200, False)
    assert choice.kinds[0].tokens_per_s["1"].low is None and choice.finalists == ["mtp"]


def test_a_kinds_evaluation_chooses_the_k_of_the_forecast() -> None:
    """Its step times are those of the forecast, in the form in which it reads them."""
    timed, choice = sample_kind_steps(), sample_choice()
    found = step_times_of(timed, EVALUATION.seed)
    assert set(found) == {"mtp", "eagle3"}  # p_eagle can make only one number of drafts
    for kind, times in found.items():
        assert StepTimes.from_dict(json.loads(json.dumps(times.as_dict()))) == times
        lengths = sample_replay(0.8).acceptance_length()
        fit = fit_steps(round_table(times), RESAMPLES, EVALUATION.seed)
        own = choose_k({"base": lengths, "custom": lengths}, fit, {1: 0.01, 4: 0.01, 8: 0.01}, 1)
        forecast_of_kind = choice.of(kind)
        assert own.k.custom == forecast_of_kind.k
        for size, step in forecast_of_kind.step_ms.items():
            assert own.step_ms[size][forecast_of_kind.k] == pytest.approx(step.value, rel=1e-3)
