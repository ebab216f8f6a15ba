"""Custom and the lookup together in the report: times, figures, and where there are none."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from outrider.eval.both_together import both_refusal, predict_both, step_time
from outrider.eval.results.parts import Drafters
from outrider.eval.results.sections import KChoice, LookupChoice
from outrider.serving.speculator import Speculator
from tests.eval.sample_results import sample_anchors, sample_replay, sample_results

CHOICE = KChoice(
    k=Drafters[int](base=1, custom=3),
    main_concurrency=8,
    step_ms={"custom": {"8": {1: 21.0, 2: 22.0, 3: 23.0}, "1": {1: 1.0}}},
    lookups={
        "ngram": LookupChoice(
            settings={}, k=2, runner="v1", step_ms={1: 20.0, 2: 20.0, 3: 20.0, 24: 25.0}
        )
    },
    lookup="ngram",
)


def figures(choice=CHOICE, **changes):
    arguments = {
        "validation": sample_anchors(0),
        "heldout": sample_anchors(1),
        "custom": sample_replay(0.8),
        "lookup": sample_replay(0.4),
    }
    return predict_both(choice=choice, **(arguments | changes))


def test_times_are_those_of_the_main_concurrency():
    time = step_time(CHOICE)
    assert time is not None
    assert (time.head_ms, time.lookup_ms, time.pass_ms) == (23.0, 20.0, 1.0)


def test_speeds_are_tokens_over_the_predicted_time():
    both = figures()
    custom, lookup = sample_replay(0.8), sample_replay(0.4)
    assert both.step_ms == {"custom": 23.0, "lookup": 20.0, "both": 21.0}
    tokens = custom.tokens_R.sum()
    steps = tokens / both.tokens_per_step.value
    milliseconds = steps * (both.lookup_share * 21 + (1 - both.lookup_share) * 23)
    assert both.over_custom.value == pytest.approx(23 * custom.steps_RK[:, 2].sum() / milliseconds)
    assert both.over_lookup.value == pytest.approx(20 * lookup.steps_RK[:, 1].sum() / milliseconds)
    assert both.over_better == both.over_custom
    assert both.over_custom.low < both.over_custom.value < both.over_custom.high
    assert both.over_custom.clusters == 60
    assert 1 < both.tokens_per_step.value <= both.upper_bound


def test_without_timed_steps_only_tokens_per_step_are_predicted():
    for changes in ({"step_ms": {}}, {"k": Drafters[int](base=1, custom=4)}):
        both = figures(CHOICE.model_copy(update=changes))
        assert both.step_ms is None and both.over_better is None
        assert both.tokens_per_step.value > 2


def test_a_lookup_without_matches_leaves_every_step_to_custom():
    anchors = sample_anchors(1)
    nothing = np.zeros_like(anchors.lookup_N)
    without = dataclasses.replace(anchors, lookup_N=nothing, length_N=nothing)
    both = figures(validation=without, heldout=without)
    assert both.lookup_share == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"no_replay": ("DFlash", "no states")}, "no exact replay of DFlash"),
        ({"speculators": {"custom": Speculator("ngram")}}, "n-gram lookup is no head"),
        ({"draft_sample_method": "probabilistic"}, "sampled drafts"),
    ],
)
def test_reasons(changes, reason):
    context = {
        "no_replay": None,
        "speculators": {"custom": Speculator("mtp")},
        "draft_sample_method": "greedy",
    }
    told = both_refusal(SimpleNamespace(**(context | changes)), CHOICE)
    assert told == reason if reason is None else told.startswith(reason)
    none_left = both_refusal(SimpleNamespace(**context), CHOICE.model_copy(update={"lookup": None}))
    assert none_left == "base is the only lookup"


def test_the_report_says_what_both_would_deliver_and_that_nothing_serves_it():
    results = sample_results()
    line = results.both_line
    both = results.both_together
    for words in (
        "custom (K = 3) or n-gram lookup (K = 2)",
        f"{both.tokens_per_step.value:.2f} [",
        f"{both.over_custom.value:.2f} [",
        "No engine serves this",
    ):
        assert words in line
    without = results.model_copy(update={"both_together": "base is the only lookup"})
    assert "not predicted (base is the only lookup)" in without.both_line
