"""The price of the choice of the kind, against what a choice on played servers does."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.eval import choose_kind as module
from outrider.eval.bench import servers as servers_module
from outrider.eval.bench.step_times import StepPrompts
from outrider.eval.choose_kind import _time_kinds
from outrider.eval.config import STEP_ROUNDS, STEP_TOKENS, step_requests
from outrider.eval.context import Backends, EvaluationContext, EvaluationData, EvaluationFolders
from outrider.eval.replay.sums import ReplaySums
from outrider.pipeline.plan.hours import Volume, rates_of, stage_seconds
from outrider.pipeline.plan.kind_choice import PlannedSpeculator, choice_of_kind
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.recipe.recipe import Recipe
from outrider.serving import runner
from outrider.serving.client import Sampling
from outrider.serving.config import TargetConfig
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.speculator import Speculator
from outrider.speculators.kinds import kind_named
from tests.distill_configs import DISTILLS
from tests.eval.bench.test_closed_loop import sent, timed  # noqa: F401 (a fixture)
from tests.r1_config import R1

LLAMA_8B = DISTILLS["Llama-8B"][0]
CHOICES = {
    "mtp": (R1, "r1/template", "speculator.kind=[mtp,ngram]", "speculator.depth=2"),
    "several": (R1, "r1/template", "speculator.kind=[mtp,eagle3,p_eagle,ngram,suffix]"),
    "scratch": (LLAMA_8B, "r1_distill/template", "speculator.kind=[eagle3,dflash,suffix]"),
    "no base": (LLAMA_8B, "r1_distill/template", "speculator.kind=[eagle3,ngram]"),
}


class Rows(EvaluationData):
    """No rows: what is made of them is played."""

    def rows(self, ids: list[str]) -> Any:
        return []


def recipe_of(choice: str, *overrides: str) -> Recipe:
    _, name, *words = CHOICES[choice]
    words += ["traffic.path=nano_r1/social_chat", *overrides]
    if choice == "no base":
        words.append("speculator.base=none")
    return load_recipe(name, words).recipe


def replayed(depth: int, growth: float) -> ReplaySums:
    """One response of 24 tokens whose acceptance grows with each draft."""
    lengths_RK = (1 + growth * np.arange(1, depth + 1))[None]
    return ReplaySums(
        sequence_ids=["a"],
        sessions=["a"],
        users=[""],
        tokens_R=np.array([24.0]),
        steps_RK=24 / lengths_RK,
        accepted_RKK=np.zeros((1, depth, depth)),
        region_tokens_RG=np.zeros((1, 0)),
        region_steps_RGK=np.zeros((1, 0, depth)),
    )


@pytest.fixture
def started(
    sent: object,  # noqa: F811 (a fixture)
    monkeypatch: pytest.MonkeyPatch,
) -> list[str]:
    """The drafters of all servers that were started; servers and load are played."""
    launched: list[str] = []
    played: Any = servers_module.Server

    class Counting(played):  # type: ignore[misc]
        def __init__(self, target: Any, engine: Any, drafting: Any, log_path: Path) -> None:
            super().__init__(target, engine, drafting)
            self.log_path = log_path

        def launch(self) -> None:
            launched.append(self.log_path.stem)

    monkeypatch.setattr(servers_module, "Server", Counting)
    prompts = StepPrompts(texts=["t"], contexts=[4], prompt_share=0.5)
    monkeypatch.setattr(module, "step_prompts", lambda *_: prompts)
    monkeypatch.setattr(module, "evaluation_prompts", lambda *_: ([], timed(1)))
    monkeypatch.setattr(module, "customers_sampling", lambda *_: Sampling())
    monkeypatch.setattr(module, "request_fields", lambda *_, **__: {})
    return launched


def contexts_of(recipe: Recipe, config: Any, folder: Path) -> dict[str, EvaluationContext]:
    """The contexts of a choice whose kinds are trained."""
    base = recipe.speculator.base or "mtp"
    weights = folder if kind_named(base).has_weights else None
    return {
        kind: EvaluationContext(
            recipe=recipe.name,
            target=TargetConfig(),
            serving=recipe.serving,
            settings=recipe.eval,
            depth=recipe.speculator.depth,
            speculators={
                "base": Speculator(base, weights),
                "custom": Speculator(kind, folder if kind_named(kind).has_weights else None),
            },
            data=Rows(sequences=folder, parts={"validation": []}),
            folders=EvaluationFolders(folder, folder, folder, folder),
            backends=Backends(load=lambda target, log, *_: played_load(target, log)),
        )
        for kind in recipe.speculator.candidates
    }


@contextlib.contextmanager
def played_load(target: TargetConfig, log: Path) -> Any:
    yield LoadGenerator(target, log)


@pytest.mark.parametrize("two_runners", [False, True])
@pytest.mark.parametrize(
    ("side_by_side", "data_parallel"), [(True, 1), (False, 1), (True, 2), (False, 2)]
)
@pytest.mark.parametrize("choice", CHOICES)
def test_starts_and_turns_are_those_of_a_choice(
    sent: list[tuple[str, int, tuple[str, ...]]],  # noqa: F811 (a fixture)
    started: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    choice: str,
    side_by_side: bool,
    data_parallel: int,
    two_runners: bool,
) -> None:
    """`_time_kinds` itself, with servers, load and prompts that are played."""
    monkeypatch.setattr(runner, "compiles_triton", lambda: two_runners)
    words = (
        f"eval.side_by_side={str(side_by_side).lower()}",
        f"serving.engine.data_parallel={data_parallel}",
        "eval.concurrency=[4,1]",
    )
    recipe = recipe_of(choice, *words)
    config = CHOICES[choice][0]
    planned = choice_of_kind(recipe, config)
    for growth, all_numbers in ((1.0, True), (0.0, False)):
        started.clear()
        sent.clear()
        contexts = contexts_of(recipe, config, tmp_path)
        replays = {kind: replayed(24, growth) for kind in (*contexts, "base", "none")}
        _time_kinds(contexts, replays)
        # Each server warms up with a block at the largest concurrency.
        blocks = len(sent) - len(started)
        requests = [len(texts) for _, _, texts in sent]
        assert requests.count(step_requests(4)) == blocks
        if all_numbers:
            assert planned.starts == len(started)
            assert planned.turns * STEP_ROUNDS == blocks
        else:
            assert planned.starts >= len(started)
            assert planned.turns * STEP_ROUNDS > blocks
    weights = {kind for kind in contexts if kind_named(kind).has_weights}
    assert planned.replays == len(weights) + (recipe.speculator.base in (None, "mtp"))


def test_a_choice_starts_base_apart_from_the_kinds_that_it_cannot_swap_with() -> None:
    """The layer and base share a server; none, EAGLE-3 and lookup have one each."""
    shares = recipe_of("several", "speculator.kind=[mtp,eagle3,ngram]")
    assert choice_of_kind(shares, R1).starts == 4
    apart = recipe_of("several", "speculator.kind=[eagle3,ngram]")
    assert choice_of_kind(apart, R1).starts == 4
    # Lookups of one model runner share one: none runs a model.
    lookups = recipe_of("several", "speculator.kind=[mtp,ngram,suffix]")
    assert choice_of_kind(lookups, R1).starts == 3
    assert PlannedSpeculator("mtp").swaps_with(Speculator("mtp", Path("x")))
    assert not PlannedSpeculator("ngram").swaps_with(Speculator("ngram"))


def test_the_seconds_of_a_choice_are_its_counts_at_the_rates() -> None:
    recipe = recipe_of("mtp", "eval.concurrency=[8,1]")
    rates = rates_of(recipe, R1)
    assert rates is not None
    volume = Volume(log=10**6, train=10**5, validation=60_000, heldout=10**5, counted=True)
    parts = stage_seconds(volume, recipe, R1, {"mtp": 0}, rates)["choose_kind"]
    # Servers of the layer with base, of lookup, and without speculation.
    assert parts["3 engine starts"] == pytest.approx(3 * 420)
    assert parts["exact replay"] == pytest.approx(2 * 60_000 / rates.replay_tokens_per_s)
    # 2 numbers of drafts for the layer, 4 for lookup, 1 without.
    tokens = 7 * STEP_ROUNDS * 16 * STEP_TOKENS
    assert parts["step timing"] == pytest.approx(tokens / rates.decoded_per_s(8))
