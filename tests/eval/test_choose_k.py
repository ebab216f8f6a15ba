"""K of base and custom: the fewest drafts with the most tokens/s."""

from types import SimpleNamespace

import numpy as np
import pytest

from outrider.eval.bench.prompts import Prompt
from outrider.eval.bench.step_times import StepFit, StepTimes
from outrider.eval.choose_k import best_k, choose, choose_k, draft_plan
from outrider.eval.config import EvalConfig
from outrider.eval.context import (
    Backends,
    EvaluationContext,
    EvaluationData,
    EvaluationFolders,
    HeldoutRequests,
)
from outrider.eval.results.choice import Choice
from outrider.eval.results.parts import CURRENT, SAME_K, Drafters
from outrider.serving.client import Sampling
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.speculator import Speculator
from tests.tiny import write_tiny_target

LENGTHS = [1.8, 2.4, 2.8, 3.0]


def exact(step_s: dict[int, list[float]], plain_s: float = 0.005) -> StepTimes:
    """Times without noise of 1..K drafts, or of 0..K where there are more than LENGTHS."""
    first = 0 if len(step_s[1]) > len(LENGTHS) else 1
    return StepTimes(
        numbers=list(range(first, first + len(step_s[1]))),
        plain_s=dict.fromkeys(step_s, plain_s),
        rounds={size: [row] * 3 for size, row in step_s.items()},
    )


def chosen(step_s, lengths=LENGTHS, base=LENGTHS, main=1, base_s=None) -> Choice:
    times = {"base": exact(base_s or step_s), "custom": exact(step_s)}
    given = {"source": "a test", "sequences": 3}
    return choose_k({"base": base, "custom": lengths}, times, main, 0, {}, **given)


def test_dear_drafts_shorten_k_and_cheap_ones_lengthen_it() -> None:
    dear = chosen({1: [0.009 + 0.008 * k for k in range(1, 5)]})
    assert dear.k.custom == 1
    assert chosen({1: [0.081 + 0.001 * k for k in range(1, 5)]}).k.custom == 4


def test_each_speculator_has_its_own_k() -> None:
    found = chosen({1: [0.01, 0.012, 0.0135, 0.016]}, base=[1.6, 1.8, 1.85, 1.86])
    assert (found.k.base, found.k.custom) == (1, 3)
    assert set(found.step_ms) == {"custom"}


def test_an_engine_of_its_own_has_its_own_steps() -> None:
    found = chosen({1: [0.010, 0.011, 0.012, 0.013]}, base_s={1: [0.010, 0.03, 0.05, 0.07]})
    assert (found.k.base, found.k.custom) == (1, 3)
    assert found.step_ms["base"] == {"1": pytest.approx([5, 10, 30, 50, 70])}
    assert found.step_ms["custom"] == {"1": pytest.approx([5, 10, 11, 12, 13])}


def test_every_batch_size_has_its_own_and_ranges_end_at_what_was_measured() -> None:
    flat, steep = [0.02] * 4, [0.02, 0.04, 0.06, 0.08]
    times = {1: flat, 2: flat, 8: steep, 4: [0.02, 0.02, 0.04, 0.06]}
    found = chosen(times)
    assert found.k.custom == 4
    assert found.k_per_batch_size.custom == [(1, 2, 4), (3, 4, 2), (5, 8, 1)]
    assert chosen(times, main=8).k.custom == 1


def test_drafting_is_turned_off_where_it_does_not_pay_but_not_at_the_main_concurrency() -> None:
    with_none = {1: [0.01, 0.012, 0.014, 0.03, 0.04], 8: [0.01, 0.03, 0.05, 0.07, 0.09]}
    found = chosen(with_none)
    assert found.k_per_batch_size.custom == [(1, 1, 2), (2, 8, 0)]
    assert found.step_ms["custom"]["8"] == pytest.approx([5, 30, 50, 70, 90])
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
def test_a_larger_k_needs_a_gain_of_one_percent_and_noise_is_named(
    noise: float, gain: float, k: int, undecided: list[int]
) -> None:
    step = [0.01, 0.01 * 2.4 / 1.8 / (1 + gain)]
    draws = np.array([step]) * np.exp(np.random.default_rng(0).normal(0, noise, (400, 2)))
    reason = best_k(LENGTHS, [1, 2], StepFit(step, draws), least=1)
    assert reason.k == k
    assert [*reason.undecided] == undecided


def test_slow_rounds_cancel_and_the_fit_resamples_rounds() -> None:
    """A machine whose speed differs by 40 % from round to round."""
    random, step = np.random.default_rng(1), np.array([0.010, 0.011, 0.013])
    slow_R1 = np.exp(random.normal(0, 0.4, (400, 1)))
    rounds = (step * slow_R1 * np.exp(random.normal(0, 0.03, (400, 3)))).tolist()
    times = StepTimes(numbers=[1, 2, 3], plain_s={1: 0.01}, rounds={1: rounds})
    fit = times.fit(1, 500, seed=0)
    found, spread = np.array(fit.step_s), fit.draws_SK / fit.draws_SK.mean(axis=1, keepdims=True)
    assert found / found.mean() == pytest.approx(step / step.mean(), rel=0.01)
    # A median of 400 differences of 3 % noise is known to 1.25 * 0.03 * sqrt(2 / 3) / 20.
    assert spread.std(axis=0) / spread.mean(axis=0) == pytest.approx([0.0015] * 3, rel=0.5)
    assert StepTimes.model_validate_json(times.model_dump_json()) == times


def test_base_is_measured_at_other_numbers_only_where_they_differ() -> None:
    def plan(base, custom, current_k=None, by_batch_size=False):
        k = Drafters[int](base=base, custom=custom)
        schedules = Drafters(base=[(1, 8, base)], custom=[(1, 4, custom), (5, 8, 0)])
        choice = Choice(k=k, k_per_batch_size=schedules, source="", sequences=1)
        return draft_plan(choice, current_k, by_batch_size)

    assert plan(3, 3) == {"base": 3, "custom": 3}
    assert plan(2, 5) == {"base": 2, "custom": 5, SAME_K: 5}
    assert plan(2, 5, 1) == {"base": 2, "custom": 5, CURRENT: 1, SAME_K: 5}
    assert plan(2, 5, 2) == {"base": 2, "custom": 5, SAME_K: 5}
    assert plan(2, 5, 5) == {"base": 2, "custom": 5, CURRENT: 5}
    schedule = [(1, 4, 5), (5, 8, 0)]
    assert plan(2, 5, None, True) == {"base": [(1, 8, 2)], "custom": schedule, SAME_K: schedule}


def test_steps_are_timed_once_and_only_where_the_recipe_leaves_it_to_them(tmp_path) -> None:
    asked = []

    def measured(servers, mode, load, numbers, sizes, texts, sampling, longest, drafter):
        asked.append((servers, mode, load, [*numbers], sizes, texts, longest, drafter))
        rounds = {1: [[0.012, 0.014]] * 3, 4: [[0.04, 0.08]] * 2}
        return StepTimes(numbers=[1, 2], plain_s={1: 0.01, 4: 0.02}, rounds=rounds)

    target = write_tiny_target(tmp_path / "target")
    speculators = {
        "base": Speculator("mtp", target),
        "custom": Speculator("mtp", tmp_path / "custom"),
    }
    requests = HeldoutRequests(Sampling(), [], [Prompt("q", "s", [1], "a")])
    sums = SimpleNamespace(acceptance_length=lambda: [1.8, 2.4], sequence_ids=["a", "b", "c"])
    validation = {"base": sums, "custom": sums}

    def evaluated(replayed=validation, **settings):
        context = EvaluationContext(
            recipe="a_test",
            target=TargetConfig(model=str(target)),
            serving=ServingConfig(engine=EngineConfig(mode="compiled")),
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
        return choose(context, "servers", "load", requests, replayed)

    by_hand = evaluated(k=1)
    assert by_hand.source == "the recipe's eval.k"
    assert (by_hand.k.base, by_hand.k.custom, by_hand.step_ms) == (1, 1, None)
    assert by_hand.acceptance_length.custom == [1.8, 2.4]
    without_replay = evaluated(replayed=None)
    assert without_replay.k.custom == 2
    assert without_replay.source == "the recipe's speculator.depth"
    assert asked == []
    choice = evaluated()
    assert choice.k.custom == 2 and choice.k_per_batch_size.custom == [(1, 1, 2), (2, 4, 1)]
    expected = {"1": pytest.approx([10, 12, 14]), "4": pytest.approx([20, 40, 80])}
    assert choice.step_ms == {"custom": expected}
    assert choice.source == "steps of the eager engine" and choice.sequences == 3
    assert evaluated() == choice
    assert asked == [("servers", "eager", "load", [1, 2], [1, 4], ["a"], 99, "custom")]
