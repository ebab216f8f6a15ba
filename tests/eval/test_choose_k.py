"""K of base and custom: the fewest drafts with the most tokens/s."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

from outrider.common.errors import OutriderError
from outrider.data.features.feature_writer import FeatureWriter
from outrider.eval import choose_k as module
from outrider.eval.bench.prompts import HeldoutRequests, Prompt
from outrider.eval.bench.step_times import StepTimes
from outrider.eval.choose_k import batch_ranges, best_k, choose_by_step_time, choose_k, draft_plan
from outrider.eval.config import EvalConfig
from outrider.eval.context import (
    EvaluationContext,
    EvaluationData,
    EvaluationFolders,
)
from outrider.eval.evaluate import check_evaluation, replayed_steps
from outrider.eval.results.parts import CURRENT, DRAFTERS, ClusteredEstimate, Drafters
from outrider.eval.results.sections import KChoice, KindSpeed
from outrider.serving.client import Sampling
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.runner import VARIABLE
from outrider.serving.speculator import Speculator
from outrider.speculators.features import FeatureSpec, FeatureStream, layer_name
from tests.dflash_head import write_dflash_head
from tests.eagle3_head import write_eagle3_head
from tests.tiny import HIDDEN, write_tiny_target

LENGTHS = [1.8, 2.4, 2.8, 3.0]
DEPTH = 2
SUMS = SimpleNamespace(
    is_timed=False,
    acceptance_length=lambda: [1.8, 2.4],
    sequence_ids=["a", "b", "c"],
    sessions=["a", "b", "c"],
    users=["", "", ""],
    tokens_R=np.full(3, 12.0),
    steps_RK=np.array([[12 / 1.8, 5.0]] * 3),
    steps_at=lambda k: np.full(3, [12.0, 12 / 1.8, 5.0][k]),
)


LOOKED_UP = SimpleNamespace(
    acceptance_length=lambda: [1.4, 1.6, 1.8, 2.0, 2.3, 2.6, 2.8, *[2.9] * 17],
    tokens_R=SUMS.tokens_R,
)


def chosen(step_s, lengths=LENGTHS, base=LENGTHS, main=1, base_s=None) -> KChoice:
    """From steps of 1..K drafts, or of 0..K where there are more than LENGTHS."""
    first = 0 if len(step_s[1]) > len(LENGTHS) else 1

    def numbered(steps):
        return {size: dict(enumerate(row, first)) for size, row in steps.items()}

    steps = {"base": numbered(base_s or step_s), "custom": numbered(step_s)}
    lengths_of = {"base": base, "custom": lengths}
    return choose_k(lengths_of, steps, main, {}, prefill={"base": {}, "custom": {}})


def test_an_engine_of_its_own_has_its_own_steps() -> None:
    found = chosen({1: [0.010, 0.011, 0.012, 0.013]}, base_s={1: [0.010, 0.03, 0.05, 0.07]})
    assert (found.k.base, found.k.custom) == (1, 3)
    assert found.step_ms["base"] == {"1": pytest.approx({1: 10, 2: 30, 3: 50, 4: 70})}


FLAT = [0.02] * 4
STEEP = [0.02, 0.04, 0.06, 0.08]
SIZES = {1: FLAT, 2: FLAT, 8: STEEP, 4: [0.02, 0.02, 0.04, 0.06]}
WITH_NONE = {1: [0.01, 0.012, 0.014, 0.03, 0.04], 8: [0.01, 0.03, 0.05, 0.07, 0.09]}


@pytest.mark.parametrize(
    ("step_s", "base", "main", "k", "schedule"),
    [
        (
            {1: [0.01, 0.012, 0.0135, 0.016]},
            [1.6, 1.8, 1.85, 1.86],
            1,
            (1, 3),
            [(1, 1, 3), (2, 2, 0)],
        ),
        # Ranges of batch sizes end at what was measured.
        (SIZES, LENGTHS, 1, (4, 4), [(1, 2, 4), (3, 4, 2), (5, 8, 1), (9, 9, 0)]),
        (SIZES, LENGTHS, 8, (1, 1), [(1, 2, 4), (3, 4, 2), (5, 8, 1), (9, 9, 0)]),
        # Drafting is turned off where it does not pay, but not at the main concurrency.
        (WITH_NONE, LENGTHS, 1, (2, 2), [(1, 1, 2), (2, 8, 0), (9, 9, 0)]),
        (WITH_NONE, LENGTHS, 8, (1, 1), [(1, 1, 2), (2, 8, 1), (9, 9, 0)]),
    ],
)
def test_each_speculator_and_batch_size_has_its_own_k(step_s, base, main, k, schedule) -> None:
    found = chosen(step_s, base=base, main=main)
    assert (found.k.base, found.k.custom) == k
    assert found.k_per_batch_size.custom == schedule


@pytest.mark.parametrize(("gain", "k"), [(0.05, 2), (-0.05, 1), (0.009, 1), (0.0, 1)])
def test_a_larger_k_needs_a_gain_of_one_percent(gain: float, k: int) -> None:
    assert best_k({1: 180.0, 2: 180.0 * (1 + gain)}) == k
    assert best_k({0: 1000.0, 1: 180.0}, least=1) == 1


@pytest.mark.parametrize(
    ("base", "custom", "current_k", "by_batch_size", "plan"),
    [
        (3, 3, None, False, {"base": 3, "custom": 3}),
        (2, 5, 1, False, {"base": 2, "custom": 5, CURRENT: 1}),
        (2, 5, 2, False, {"base": 2, "custom": 5}),
        (2, 5, 5, False, {"base": 2, "custom": 5, CURRENT: 5}),
        (2, 5, None, True, {"base": [(1, 8, 2)], "custom": [(1, 4, 5), (5, 8, 0)]}),
    ],
)
def test_base_is_measured_at_other_numbers_only_where_they_differ(
    base, custom, current_k, by_batch_size, plan
) -> None:
    k = Drafters[int](base=base, custom=custom)
    schedules = Drafters(base=[(1, 8, base)], custom=[(1, 4, custom), (5, 8, 0)])
    choice = KChoice(k=k, k_per_batch_size=schedules, main_concurrency=1)
    assert draft_plan(choice, current_k, by_batch_size) == plan


def head(target, directory):
    write_eagle3_head(target, directory, layers=[1, 2], pard_token=2)
    return Speculator("p_eagle", directory)


@pytest.fixture
def case(tmp_path, monkeypatch):
    """A context of two MTP layers, and what was timed."""
    target = write_tiny_target(tmp_path / "target")
    timed = []
    streams = tuple(FeatureStream(layer_name(index), HIDDEN) for index in (1, 2))
    with FeatureWriter(tmp_path / "features", FeatureSpec(streams).stored(HIDDEN), {}):
        pass

    def measured(servers, mode, load, numbers, batch_sizes, prompts, sampling, speculators):
        timed.append((mode, dict(numbers), dict(batch_sizes), prompts))
        row = {1: 0.012, 2: 0.03} if "base" in numbers else {1: 0.012, 2: 0.014}
        seconds = {
            name: {size: row if size == 1 else {1: 0.04, 2: 0.08} for size in sizes}
            for name, sizes in batch_sizes.items()
        }
        if "ngram" in numbers:
            seconds["ngram"] = {1: {2: 0.011, 4: 0.012, 8: 0.018, 24: 0.018}}
        return StepTimes(seconds=seconds)

    monkeypatch.setattr(module, "time_steps", measured)
    monkeypatch.setattr(module, "step_prompts", lambda *_: "prompts")
    monkeypatch.setattr(EvaluationData, "rows", lambda *_: "rows")
    context = EvaluationContext(
        recipe="a_test",
        target=TargetConfig(model=str(target)),
        serving=ServingConfig(engine=EngineConfig(mode="compiled")),
        settings=EvalConfig(concurrency=[1, 4], engine_modes=["eager"], side_by_side=False),
        depth=DEPTH,
        speculators={
            "base": Speculator("mtp", target),
            "custom": Speculator("mtp", tmp_path / "custom"),
        },
        lookups={"ngram": Speculator("ngram")},
        data=EvaluationData(
            tmp_path, {"validation": ["a"], "heldout": ["b"]}, tmp_path / "features"
        ),
        folders=EvaluationFolders(*[tmp_path] * 4),
    )
    return context, timed


def chosen_for(context, replayed=True, **settings):
    context = dataclasses.replace(context, settings=context.settings.model_copy(update=settings))
    requests = HeldoutRequests(
        Sampling(), [], [Prompt(sequence_id="q", session="s", user="", token_ids=[1], text="a")]
    )
    validation = {"base": SUMS, "custom": SUMS, "ngram": LOOKED_UP} if replayed else None
    return choose_by_step_time(
        context=context,
        servers="servers",
        load="load",
        requests=requests,
        validation=validation,
        mode="eager",
    )


def test_lookups_have_the_model_runner_of_the_engine(case) -> None:
    context, _ = case
    assert chosen_for(context).lookups["ngram"].runner == "v1"
    engine = EngineConfig(environment={VARIABLE: "1"})
    elsewhere = dataclasses.replace(context, serving=ServingConfig(engine=engine))
    assert chosen_for(elsewhere).lookups["ngram"].runner == "v2"
    assert elsewhere.runner(Speculator("none")) == "v2"
    assert elsewhere.digest != context.digest


def test_steps_are_timed_once_and_only_where_the_recipe_leaves_it_to_them(case) -> None:
    context, timed = case
    by_hand = chosen_for(context, k=1)
    assert (by_hand.k.custom, by_hand.step_ms) == (1, {})
    assert by_hand.acceptance_length.custom == [1.8, 2.4]
    without_replay = chosen_for(context, replayed=False)
    assert without_replay.k.custom == 2 and without_replay.lookup_k is None
    choice = chosen_for(context)
    assert choice.k.custom == 2 and choice.k_per_batch_size.custom == [
        (1, 1, 2),
        (2, 4, 1),
        (5, 5, 0),
    ]
    # Lookup has numbers of its own: 2.0 tokens in 12 ms beat 1.6 in 11 and 2.9 in 18.
    assert choice.lookup == "ngram" and draft_plan(choice, None, False)["lookup"] == 4
    assert choice.lookups["ngram"].acceptance_length[3] == 2.0
    assert chosen_for(context) == choice
    numbers = {"custom": [1, 2], "ngram": [2, 4, 8, 24]}
    assert timed[1:] == [("eager", numbers, {"custom": [1, 4], "ngram": (1,)}, "prompts")]
    # With K set by hand, only lookup is timed.
    assert by_hand.lookup_k == 4
    lookup_numbers = {"ngram": [1, 2, 4, 8, 24]}
    assert timed[:1] == [("eager", lookup_numbers, {"ngram": (1,)}, "prompts")]
    assert chosen_for(dataclasses.replace(context, kinds=[speed_of("ngram")])).lookup_k == 1


def speed_of(kind: str, **fields) -> KindSpeed:
    length = ClusteredEstimate(value=1.5, low=None, high=None, observations=3, clusters=3, over="")
    return KindSpeed(kind=kind, k=1, acceptance_length=length, step_ms=1, runner="v1", **fields)


@pytest.mark.parametrize("concurrency", [[1], [1, 4]])
def test_steps_that_the_choice_of_the_kind_has_timed_are_not_timed_again(case, concurrency) -> None:
    context, timed = case
    # Custom is an MTP layer: 1.8 tokens in 20 ms, 2.4 in 40.
    heads = {1: 20.0, 2: 40.0}
    kinds = [
        speed_of("mtp", step_ms_by_k=heads),
        speed_of("ngram", step_ms_by_k={2: 11.0, 24: 11.0}),
        speed_of("base", step_ms_by_k=heads),
    ]
    choice = chosen_for(dataclasses.replace(context, kinds=kinds), concurrency=concurrency)
    if concurrency == [1]:
        assert not timed and choice.k.custom == 1
        assert choice.step_ms["custom"]["1"] == pytest.approx(heads)
    else:
        assert len(timed) == 1 and choice.k.custom == 2


def with_heads(context, folder, *names):
    """The context where these speculators draft one number only."""
    heads = {name: head(context.target.directory(), folder / name) for name in names}
    return dataclasses.replace(context, speculators=context.speculators | heads)


@pytest.mark.parametrize(
    ("of_one_number", "k", "numbers"),
    [
        # Base: 1.8 tokens in 12 ms beat 2.4 in 30.
        (["custom"], (1, 2), [["base"]]),
        # At custom's depth alone, a base whose drafts do not pay would look slower than it is.
        (["base"], (1, 1), [["base", "custom"]]),
        (["base", "custom"], (2, 2), [[]]),
    ],
)
def test_speculators_of_one_number_are_timed_where_they_start_for_another(
    case, tmp_path, of_one_number, k, numbers
):
    context, timed = case
    choice = chosen_for(with_heads(context, tmp_path, *of_one_number))
    assert (choice.k.base, choice.k.custom) == k
    assert [[name for name in each if name != "ngram"] for _, each, _, _ in timed] == numbers
    lookup = {"lookup": choice.lookup_k}
    assert draft_plan(choice, None, False) == {"base": k[0], "custom": k[1]} | lookup


def check_only_files_are_missing(context) -> None:
    """`check_evaluation` accepts the case, apart from the files of its custom speculator."""
    with pytest.raises(OutriderError, match=r"config\.json: no such file"):
        check_evaluation(context)


def test_a_base_of_one_number_is_started_for_today_s(case, tmp_path):
    context, timed = case
    context = with_heads(context, tmp_path, "base")
    settings = context.settings.model_copy(update={"current_k": 1, "max_tokens": 99})
    today = dataclasses.replace(context, settings=settings)
    check_only_files_are_missing(today)
    assert chosen_for(today).k.base == 1
    assert list(timed[-1][1]) == ["custom", "ngram"]


def test_two_of_one_number_have_no_other_and_no_schedule(case, tmp_path):
    context = with_heads(case[0], tmp_path, "base", "custom")
    assert context.one_engine
    plan = draft_plan(chosen_for(context), 2, False, fixed=True)
    assert plan == {"base": 2, "custom": 2, "lookup": 4}
    settings = context.settings.model_copy(update={"current_k": 1})
    with pytest.raises(OutriderError, match=r"eval\.current_k = 1: a P-EAGLE head always drafts"):
        check_evaluation(dataclasses.replace(context, settings=settings))
    with pytest.raises(OutriderError, match=r"export\.k_per_batch_size: true, but a P-EAGLE head"):
        check_evaluation(dataclasses.replace(context, k_per_batch_size=True))


def on_v2(context, **engine):
    """The context with a GPU's model runner, and a custom speculator whose files exist."""
    return dataclasses.replace(
        context,
        serving=ServingConfig(engine=EngineConfig(environment={VARIABLE: "1"}, **engine)),
        speculators=dict.fromkeys(DRAFTERS, context.speculators["base"]),
        k_per_batch_size="auto",
    )


def test_a_schedule_is_served_where_the_engine_follows_it_without_loss(case) -> None:
    context, _ = case
    by_default = on_v2(context)
    assert by_default.by_batch_size
    assert by_default.draft_numbers(context.speculators["custom"]) == [0, 1, 2]
    assert not dataclasses.replace(context, k_per_batch_size="auto").by_batch_size  # V1
    digest = dataclasses.replace(context, k_per_batch_size="auto").digest
    assert digest == context.digest != by_default.digest
    assert not on_v2(context, data_parallel=2).by_batch_size
    for settings in ({"k": 2}, {"concurrency": [4]}):
        update = context.settings.model_copy(update=settings)
        assert not dataclasses.replace(by_default, settings=update).by_batch_size
    without = by_default.speculators | {"base": Speculator("none")}
    assert not dataclasses.replace(by_default, speculators=without).by_batch_size
    assert not dataclasses.replace(by_default, k_per_batch_size=False).by_batch_size
    check_evaluation(by_default)


def test_no_schedule_by_default_for_drafts_of_one_number(case, tmp_path) -> None:
    assert not with_heads(on_v2(case[0]), tmp_path, "custom").by_batch_size


def test_no_schedule_by_default_without_replay(case) -> None:
    no_states = dataclasses.replace(case[0].data, features=None)
    assert not dataclasses.replace(on_v2(case[0]), data=no_states).by_batch_size


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        (2, [5.0] * 3),
        ([(1, 8, 1), (9, 9, 0)], [12 / 1.8] * 3),
        ([(1, 8, 0), (9, 9, 0)], [12.0] * 3),
        ([(1, 4, 2), (5, 8, 1), (9, 9, 0)], None),
    ],
)
def test_replay_is_a_control_where_all_measured_sizes_draft_as_many(schedule, steps) -> None:
    part = {"base": SUMS, "custom": SUMS}
    replays = {"validation": part, "heldout": part}
    times = dict.fromkeys(SUMS.sequence_ids)
    found = replayed_steps(replays, {"custom": schedule}, None, times)
    expected = {} if steps is None else {"custom": pytest.approx(steps)}
    assert found.steps == expected


@pytest.mark.parametrize("sizes", [[1], [8], [1, 4, 8], [2, 3, 64], [1, 32, 256]])
@pytest.mark.parametrize("most", [8, 64, 1000])
def test_vllm_drafts_nothing_above_the_largest_measured_size(sizes, most) -> None:
    """By vLLM's own table, whatever was best at the measured sizes."""
    for best in itertools.product((0, 1, 3), repeat=len(sizes)):
        rows = batch_ranges(dict(zip(sizes, best, strict=True)))
        table = build_dynamic_sd_schedule_lookup([*map(list, rows)], most, 3)
        assert not any(table[max(sizes) + 1 :])
        for size, k in zip(sizes, best, strict=True):
            assert size > most or table[size] == k


def test_drafts_that_depend_on_their_number_are_measured_at_the_trained_one(case, tmp_path):
    context, _ = case
    target = context.target.directory()

    def checked(speculator, k):
        both = context.speculators | {"custom": speculator}
        settings = context.settings.model_copy(update={"k": k})
        check_evaluation(dataclasses.replace(context, speculators=both, settings=settings))

    custom = Speculator("dflash", write_dflash_head(target, tmp_path / "dflash"))
    for k in ("auto", DEPTH):
        checked(custom, k)
    with pytest.raises(OutriderError, match=r"eval\.k = 1: the drafts of a DFlash head depend on"):
        checked(custom, 1)
    checked(head(target, tmp_path / "head"), 1)  # a P-EAGLE head's drafts are the same ones
