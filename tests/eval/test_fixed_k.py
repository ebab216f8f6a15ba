"""A speculator that drafts one number: K is the trained depth, and only the other one is timed."""

import dataclasses
from types import SimpleNamespace

import pytest

from outrider.common.errors import OutriderError
from outrider.data.features.feature_writer import FeatureWriter
from outrider.eval.bench.server_pool import Fleet
from outrider.eval.bench.step_times import StepTimes
from outrider.eval.choose_k import choose, draft_plan
from outrider.eval.config import EvalConfig
from outrider.eval.context import (
    Backends,
    EvaluationContext,
    EvaluationData,
    EvaluationFolders,
    HeldoutRequests,
)
from outrider.eval.evaluate import check
from outrider.serving.client import Sampling
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.speculator import Speculator
from outrider.speculators.features import FeatureStream, layer_name
from tests.dflash_head import write_dflash_head
from tests.eagle3_head import write_eagle3_head
from tests.tiny import HIDDEN, write_tiny_target

DEPTH = 2
SUMS = SimpleNamespace(acceptance_length=lambda: [1.8, 2.4], sequence_ids=["a", "b"])


def head(target, directory):
    write_eagle3_head(target, directory, layers=[1, 2], pard_token=2)
    return Speculator("p_eagle", directory)


@pytest.fixture
def context(tmp_path):
    """Base drafts any number, custom always two; both replayed."""
    target = write_tiny_target(tmp_path / "target")
    streams = [FeatureStream(layer_name(index), HIDDEN) for index in (1, 2)]
    with FeatureWriter(tmp_path / "features", HIDDEN, {}, auxiliary=streams):
        pass
    timed = []

    def measured(servers, mode, load, numbers, sizes, texts, sampling, longest, drafter):
        timed.append(drafter)
        return StepTimes(numbers=[1, 2], plain_s={1: 0.01}, rounds={1: [[0.012, 0.03]] * 3})

    context = EvaluationContext(
        recipe="a_test",
        target=TargetConfig(model=str(target)),
        serving=ServingConfig(engine=EngineConfig(mode="eager")),
        settings=EvalConfig(concurrency=[1], engine_modes=["eager"], side_by_side=False),
        depth=DEPTH,
        speculators={
            "base": Speculator("mtp", target),
            "custom": head(target, tmp_path / "custom"),
        },
        data=EvaluationData(tmp_path, {}, tmp_path / "features"),
        folders=EvaluationFolders(*[tmp_path] * 4),
        backends=Backends(step_times=measured),
    )
    return context, timed


def chosen(context, **settings):
    settings = context.settings.model_copy(update=settings)
    context = dataclasses.replace(context, settings=settings)
    requests = HeldoutRequests(Sampling(), [], [])
    return choose(context, "servers", "load", requests, {"base": SUMS, "custom": SUMS})


def test_only_the_speculator_that_can_draft_other_numbers_is_timed(context):
    context, timed = context
    choice = chosen(context)
    # Base: 1.8 tokens in 12 ms beat 2.4 in 30.
    assert (choice.k.base, choice.k.custom, timed) == (1, 2, ["base"])
    assert choice.source == (
        "steps of the eager engine; a P-EAGLE head always drafts speculator.depth"
    )
    assert draft_plan(choice, None, False) == {"base": 1, "custom": 2, "base_same_k": 2}
    by_hand = chosen(context, k=1)
    assert (by_hand.k.base, by_hand.k.custom, by_hand.source) == (1, 1, "the recipe's eval.k")


def test_two_of_them_are_not_timed_and_base_has_one_number(context, tmp_path):
    context, timed = context
    custom = context.speculators["custom"]
    both = {"base": head(context.target.directory(), tmp_path / "base"), "custom": custom}
    context = dataclasses.replace(context, speculators=both)
    assert context.one_engine
    choice = chosen(context)
    assert (choice.k.base, choice.k.custom, timed) == (2, 2, [])
    assert draft_plan(choice, 2, False, fixed=True) == {"base": 2, "custom": 2}
    context.data.parts.update(validation=["a"], heldout=["b"])
    settings = context.settings.model_copy(update={"current_k": 1})
    with pytest.raises(OutriderError, match=r"eval\.current_k = 1: a P-EAGLE head drafts as many"):
        check(dataclasses.replace(context, settings=settings))
    with pytest.raises(OutriderError, match=r"export\.k_per_batch_size: true, but a P-EAGLE head"):
        check(dataclasses.replace(context, by_batch_size=True))


def test_its_server_starts_without_a_schedule(context, tmp_path):
    context, _ = context
    fleet = Fleet(
        context.target, context.serving, context.speculators, None, tmp_path, False, DEPTH
    )
    numbers = {name: fleet._numbers(name) for name in fleet.server_names}
    assert sorted(numbers.values()) == [(), (1, 2), (2,)]


def test_drafts_that_depend_on_their_number_are_measured_at_the_trained_one(context, tmp_path):
    context, _ = context
    context.data.parts.update(validation=["a"], heldout=["b"])
    target = context.target.directory()
    custom = Speculator("dflash", write_dflash_head(target, tmp_path / "dflash"))

    def checked(speculator, k):
        both = context.speculators | {"custom": speculator}
        settings = context.settings.model_copy(update={"k": k})
        check(dataclasses.replace(context, speculators=both, settings=settings))

    for k in ("auto", DEPTH):
        checked(custom, k)
    with pytest.raises(OutriderError, match=r"eval\.k = 1: the drafts of a DFlash head depend on"):
        checked(custom, 1)
    checked(context.speculators["custom"], 1)  # a P-EAGLE head's drafts are the same ones
