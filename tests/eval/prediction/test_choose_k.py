from types import SimpleNamespace

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
from outrider.eval.prediction.choose_k import choose, choose_k, recipe_times
from outrider.serving.client import Sampling
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.speculator import Speculator
from outrider.serving.step_times import StepTimes
from tests.tiny import write_tiny_target

LENGTHS = [1.8, 2.4, 2.8, 3.0]


def test_dear_drafts_shorten_k_and_cheap_ones_lengthen_it():
    dear = recipe_times(ServingConfig(target_step_ms=8, draft_step_ms=8, fixed_step_ms=1), 4)
    cheap = recipe_times(ServingConfig(target_step_ms=80, draft_step_ms=1, fixed_step_ms=1), 4)
    assert choose_k(LENGTHS, dear).k == 1
    assert choose_k(LENGTHS, cheap).k == 4
    assert choose_k(LENGTHS, dear).tokens_per_s["1"][1] == pytest.approx(
        2.4 / (0.008 + 0.001 + 2 * 0.008)
    )
    assert recipe_times(ServingConfig(target_step_ms=8), 4) is None


def test_every_batch_size_has_its_own_and_ranges_end_at_what_was_measured():
    flat, steep = [0.02] * 5, [0.01, 0.02, 0.04, 0.06, 0.08]
    chosen = choose_k(LENGTHS, {1: flat, 2: flat, 8: steep, 4: [0.01, 0.02, 0.02, 0.04, 0.06]})
    assert chosen.k == 4
    assert chosen.k_per_batch_size == [(1, 2, 4), (3, 4, 2), (5, 8, 1)]
    assert chosen.tokens_per_s["8"][0] == pytest.approx(8 * 1.8 / 0.02)


def test_a_tie_takes_the_smaller_k():
    assert choose_k([2.0, 2.0], {1: [0.01, 0.01, 0.01]}).k == 1


def test_steps_are_timed_once_and_only_where_the_recipe_leaves_it_to_them(tmp_path):
    asked = []

    def measured(fleet, load, depth, sizes, texts, sampling, longest):
        asked.append((fleet, load, depth, sizes, texts, longest))
        return StepTimes({1: [0.01, 0.012, 0.014], 4: [0.02, 0.04, 0.08]}, (1e-4, 2e-4))

    target = write_tiny_target(tmp_path / "target")
    speculators = {
        "base": Speculator("mtp", target),
        "custom": Speculator("mtp", tmp_path / "custom"),
    }
    requests = HeldoutRequests(Sampling(), [], [Prompt("q", "s", [1], "a")])
    validation = SimpleNamespace(acceptance_length=lambda: [1.8, 2.4], sequence_ids=["a", "b", "c"])

    def chosen(serving=None, replayed=validation, **settings):
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

    by_hand, nothing = chosen(k=1)
    assert nothing is None and by_hand.source == "the recipe's eval.k"
    assert (by_hand.k, by_hand.step_ms, by_hand.acceptance_length) == (1, None, [1.8, 2.4])
    without_replay, nothing = chosen(replayed=None)
    assert (without_replay.k, without_replay.source, nothing) == (
        2,
        "the recipe's speculator.depth",
        None,
    )
    named, nothing = chosen(ServingConfig(target_step_ms=80, draft_step_ms=1, fixed_step_ms=1))
    assert named.k == 2 and named.source == "the recipe's times"
    assert nothing is None and asked == []
    choice, times = chosen()
    assert choice.k == 2 and choice.k_per_batch_size == [(1, 1, 2), (2, 4, 1)]
    assert choice.source == "steps of the eager engine, timed" and choice.sequences == 3
    assert choice.prompt_token_ms.drafting == 0.2
    assert chosen() == (choice, times)
    assert asked == [("servers, eager", "load", 2, [1, 4], ["a"], 99)]
