from types import SimpleNamespace

import numpy as np
import pytest

from outrider.eval.bench.prompts import Prompt
from outrider.eval.config import EvalConfig
from outrider.eval.context import (
    Backends,
    EvaluationContext,
    EvaluationData,
    EvaluationFolders,
    HeldoutRequests,
)
from outrider.eval.prediction.best_k import choose_k
from outrider.eval.prediction.choose_k import choose, draft_plan, recipe_times
from outrider.eval.prediction.step_fit import StepFit
from outrider.eval.results.parts import CURRENT, SAME_K, Drafters
from outrider.eval.results.prediction import Choice
from outrider.serving.client import Sampling
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.speculator import Speculator
from outrider.serving.step_times import StepTimes
from tests.tiny import write_tiny_target

LENGTHS = [1.8, 2.4, 2.8, 3.0]


def chosen(step_s, lengths=LENGTHS, base=LENGTHS, draws=None, main=1):
    """The choice from exact times of 1..K drafts by batch size, or with resampled ones."""
    fit = StepFit(step_s, draws or {})
    none_s = dict.fromkeys(step_s, 0.005)
    return choose_k({"base": base, "custom": lengths}, fit, none_s, main)


def test_dear_drafts_shorten_k_and_cheap_ones_lengthen_it():
    dear = recipe_times(ServingConfig(target_step_ms=8, draft_step_ms=8, fixed_step_ms=1), 4)
    cheap = recipe_times(ServingConfig(target_step_ms=80, draft_step_ms=1, fixed_step_ms=1), 4)
    assert chosen({1: dear[1][1:]}).k.custom == 1
    assert chosen({1: cheap[1][1:]}).k.custom == 4
    assert chosen({1: dear[1][1:]}).tokens_per_s.custom["1"][1] == pytest.approx(
        2.4 / (0.008 + 0.001 + 2 * 0.008)
    )
    assert recipe_times(ServingConfig(target_step_ms=8), 4) is None


def test_each_speculator_has_its_own_k():
    found = chosen({1: [0.01, 0.012, 0.0135, 0.016]}, base=[1.6, 1.8, 1.85, 1.86])
    assert (found.k.base, found.k.custom) == (1, 3)
    assert found.reason.custom.larger.k == 4 and found.reason.custom.smaller.over == 2
    assert found.reason.custom.smaller.value == pytest.approx(2.8 / 0.0135 / (2.4 / 0.012) - 1)


def test_every_batch_size_has_its_own_and_ranges_end_at_what_was_measured():
    flat, steep = [0.02] * 4, [0.02, 0.04, 0.06, 0.08]
    times = {1: flat, 2: flat, 8: steep, 4: [0.02, 0.02, 0.04, 0.06]}
    found = chosen(times)
    assert found.k.custom == 4
    assert found.k_per_batch_size.custom == [(1, 2, 4), (3, 4, 2), (5, 8, 1)]
    assert found.tokens_per_s.custom["8"][0] == pytest.approx(8 * 1.8 / 0.02)
    assert chosen(times, main=8).k.custom == 1


def test_drafting_is_turned_off_where_it_does_not_pay_but_not_at_the_main_concurrency():
    with_none = {1: [0.01, 0.012, 0.014, 0.03, 0.04], 8: [0.01, 0.03, 0.05, 0.07, 0.09]}
    found = chosen(with_none)
    assert found.k_per_batch_size.custom == [(1, 1, 2), (2, 8, 0)]
    assert found.idle_step_ms == {"1": pytest.approx(10), "8": pytest.approx(10)}
    assert found.step_ms["8"] == pytest.approx([5, 30, 50, 70, 90])
    assert chosen(with_none, main=8).k.custom == 1


@pytest.mark.parametrize(
    ("noise", "gain", "k", "undecided"),
    [
        (0.001, 0.05, 2, []),
        (0.1, 0.05, 2, [1]),
        (0.1, -0.05, 1, [2]),
        (0.0, 0.009, 1, []),
        (0.001, -0.05, 1, []),
        (0.0, 0.0, 1, []),
    ],
)
def test_a_larger_k_needs_a_gain_of_one_percent_and_noise_is_named(noise, gain, k, undecided):
    step = [0.01, 0.01 * 2.4 / 1.8 / (1 + gain)]
    draws = np.array([step]) * np.exp(np.random.default_rng(0).normal(0, noise, (400, 2)))
    found = chosen({1: step}, LENGTHS[:2], LENGTHS[:2], {1: draws})
    assert found.k.custom == k
    reason = found.reason.custom
    assert (reason.smaller if k == 2 else reason.larger).value == pytest.approx(gain)
    assert [*reason.undecided] == undecided


def test_base_is_measured_at_other_numbers_only_where_they_differ():
    def plan(base, custom, current_k=None, by_batch_size=False):
        k = Drafters[int](base=base, custom=custom)
        schedules = Drafters(base=[(1, 8, base)], custom=[(1, 4, custom), (5, 8, 0)])
        choice = Choice(k=k, k_per_batch_size=schedules, source="", requested="auto", sequences=1)
        return draft_plan(choice, current_k, by_batch_size)

    assert plan(3, 3) == {"base": 3, "custom": 3}
    assert plan(2, 5) == {"base": 2, "custom": 5, SAME_K: 5}
    assert plan(2, 5, 1) == {"base": 2, "custom": 5, CURRENT: 1, SAME_K: 5}
    assert plan(2, 5, 2) == {"base": 2, "custom": 5, SAME_K: 5}
    assert plan(2, 5, 5) == {"base": 2, "custom": 5, CURRENT: 5}
    schedule = [(1, 4, 5), (5, 8, 0)]
    assert plan(2, 5, None, True) == {"base": [(1, 8, 2)], "custom": schedule, SAME_K: schedule}


def test_steps_are_timed_once_and_only_where_the_recipe_leaves_it_to_them(tmp_path):
    asked = []

    def measured(fleet, load, depth, sizes, texts, sampling, longest, first, undecided):
        asked.append((fleet, load, depth, sizes, texts, longest, first))
        rounds = {1: [[0.012, 0.014]] * 3, 4: [[0.04, None], [0.04, 0.08], [0.04, 0.08]]}
        return StepTimes({1: [0.01, 0.9, 0.9], 4: [0.02, 0.9, 0.9]}, (1e-4, 2e-4), rounds)

    target = write_tiny_target(tmp_path / "target")
    speculators = {
        "base": Speculator("mtp", target),
        "custom": Speculator("mtp", tmp_path / "custom"),
    }
    requests = HeldoutRequests(Sampling(), [], [Prompt("q", "s", [1], "a")])
    sums = SimpleNamespace(acceptance_length=lambda: [1.8, 2.4], sequence_ids=["a", "b", "c"])
    validation = {"base": sums, "custom": sums}

    def evaluated(serving=None, replayed=validation, **settings):
        context = EvaluationContext(
            recipe="a_test",
            target=TargetConfig(model=str(target)),
            serving=serving or ServingConfig(engine=EngineConfig(mode="compiled")),
            settings=EvalConfig(
                concurrency=[1, 4],
                max_tokens=99,
                engine_modes=["eager"],
                side_by_side=False,
                **settings,
            ),
            depth=2,
            speculators=speculators,
            data=EvaluationData(tmp_path, {}),
            folders=EvaluationFolders(*[tmp_path] * 4),
            backends=Backends(step_times=measured),
        )
        servers = SimpleNamespace(fleet=lambda mode: f"servers, {mode}")
        return choose(context, servers, "load", requests, replayed)

    by_hand = evaluated(k=1)
    assert by_hand.source == "the recipe's eval.k"
    assert (by_hand.k.base, by_hand.k.custom, by_hand.step_ms) == (1, 1, None)
    assert by_hand.acceptance_length.custom == [1.8, 2.4]
    without_replay = evaluated(replayed=None)
    assert without_replay.k.custom == 2
    assert without_replay.source == "the recipe's speculator.depth"
    named = evaluated(ServingConfig(target_step_ms=80, draft_step_ms=1, fixed_step_ms=1))
    assert named.k.custom == 2 and named.source == "the recipe's times"
    assert asked == []
    choice = evaluated()
    assert choice.k.custom == 2 and choice.k_per_batch_size.custom == [(1, 1, 2), (2, 4, 1)]
    # The fitted rounds replace the mean times.
    assert choice.step_ms == {"1": pytest.approx([10, 12, 14]), "4": pytest.approx([20, 40, 80])}
    assert choice.source == "steps of the eager engine, timed" and choice.sequences == 3
    assert choice.prompt_token_ms.drafting == 0.2
    assert evaluated() == choice
    assert asked == [("servers, eager", "load", 2, [1, 4], ["a"], 99, 1)]
