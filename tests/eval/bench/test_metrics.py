"""Figures of timed blocks and counters."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

from outrider.eval.bench.metrics import ReplayedSteps
from outrider.eval.bench.prompts import Prompt
from outrider.eval.context import EvaluationData
from outrider.eval.stats.clusters import INDEPENDENT
from tests.eval.sample_results import BURSTS, EVALUATION, SPEEDS, sample_blocks

UNITS = replace(
    SPEEDS,
    prompts=[
        Prompt(sequence_id="q", session=name, user="", token_ids=[], text="") for name in "abcdab"
    ],
)
"""Sessions too few for an interval over them."""
IDS = [f"q{number}" for number in range(60)]
"""Of replayed responses; those of the timed prompts are the first six."""


def test_tokens_per_second_are_pooled_and_ratios_paired():
    blocks = sample_blocks(custom_speed=1.4)
    speed = UNITS.summarise(blocks)
    assert list(speed) == ["1", "4", "8"]
    own = [b for b in blocks if b["concurrency"] == 4 and b["variant"] == "base"]
    assert speed["4"].base.tokens_per_s == pytest.approx(
        sum(b["output_tokens"] for b in own) / sum(b["seconds"] for b in own)
    )
    row = speed["4"]
    ratio = row.custom_over_base
    assert ratio.value == pytest.approx(row.custom.tokens_per_s / row.base.tokens_per_s)
    assert ratio.low < 1.4 < ratio.high and row.starts is None
    # Speeds drift by 20 % between repeats; the paired ratio does not care.
    assert ratio.high - ratio.low < 0.15
    assert ratio.observations == 3 * EVALUATION.block_requests(4) and ratio.clusters == 3
    # None has an engine of its own, so starts are units.
    assert row.none_starts == row.custom_over_none.clusters == 3
    # A block twice as long where the machine was slow widens what it is part of.
    slow = [
        b | {"seconds": 2 * b["seconds"]} if (b["repeat"], b["concurrency"]) == (0, 4) else b
        for b in blocks
        if b["variant"] != "base"
    ] + [b for b in blocks if b["variant"] == "base"]
    widest = UNITS.summarise(slow)["4"].custom_over_base
    assert widest.high / widest.low > 1.3 * ratio.high / ratio.low
    # Sessions recur in the blocks; here their interval is the wider one.
    by_session = SPEEDS.summarise(blocks)["4"].custom_over_base
    assert by_session.low < ratio.low and by_session.clusters == 6


def test_pairs_of_requests_in_one_engine_are_units_and_starts_of_two_are():
    blocks = [
        b | {"alternated": b["concurrency"] == 1 and b["variant"] != "none"}
        for b in sample_blocks()
    ]
    row = UNITS.summarise(blocks)["1"]
    pairs = 3 * EVALUATION.block_requests(1)
    assert row.custom_over_base.clusters == row.custom_over_base.observations == pairs
    apart = [b | {"alternated": True, "engine": b["variant"], "start": b["repeat"]} for b in blocks]
    row = UNITS.summarise(apart)["1"]
    assert row.starts == row.custom_over_base.clusters == 3
    once = [b | {"start": 0} for b in apart]
    assert SPEEDS.summarise(once)["1"].starts == 1


def test_replay_s_acceptance_takes_the_place_of_the_counted_one():
    blocks = sample_blocks()
    steps_R = np.full(60, 50.0)
    lengths = {"none": 1.0, "base": BURSTS["base"], "custom": BURSTS["custom"]}

    def estimator(**wrong):
        steps = {name: steps_R / length for name, length in (lengths | wrong).items()}
        for own in steps.values():
            own *= np.random.default_rng(0).normal(1, 0.01, 60)
        replayed = ReplayedSteps(steps, IDS, IDS, [""] * 60)
        rows = replace(SPEEDS, replayed=replayed).summarise(blocks)
        return rows["8"].custom_over_base

    plain = SPEEDS.summarise(blocks)["8"].custom_over_base
    found = estimator()
    assert found.estimator == "replay" and plain.low < found.value < plain.high and found.agrees
    assert found.measured.value == plain.value and plain.estimator == "measured"
    # If they disagree, both figures are there, and the demand is undecided.
    wrong = estimator(custom=6.0)
    assert not wrong.agrees and wrong.value > 1.5 * plain.value == 1.5 * wrong.measured.value
    # A speculator that follows a schedule has no replayed steps.
    other = replace(SPEEDS, replayed=ReplayedSteps({"none": steps_R}, IDS, IDS, [""] * 60))
    assert other.summarise(blocks)["8"].custom_over_base == plain


def test_the_ratio_is_that_of_whole_responses_although_they_are_cut():
    """A gain of 1.3 in the tokens that are served and of 1.05 later; steps take as long."""
    blocks = sample_blocks()
    random = np.random.default_rng(0)
    cut_R = random.normal(50, 1, 60)
    later_R = random.normal(200, 4, 60)
    cut = {"none": cut_R * 2.2, "base": cut_R, "custom": cut_R * BURSTS["base"] / BURSTS["custom"]}
    whole = {"none": cut["none"] + later_R * 2.2, "base": cut_R + later_R}
    whole["custom"] = cut["custom"] + later_R / 1.05
    replayed = ReplayedSteps(whole, IDS, IDS, ["(independent)"] * 60, cut_steps=cut)
    found = replace(SPEEDS, replayed=replayed).summarise(blocks)["8"].custom_over_base
    assert found.agrees and found.measured.value == pytest.approx(found.expected, rel=0.05)
    # The served gain times the ratio of lengths, whole over cut.
    lengths = (whole["base"].sum() / whole["custom"].sum()) / (cut_R.sum() / cut["custom"].sum())
    assert found.value / found.expected == pytest.approx(lengths, rel=0.03)
    assert found.value < found.measured.low


def test_the_trend_is_that_of_validation_and_heldout_time():
    """Gains of 1.2 before and 1.1 in the held-out part fall by log(1.2 / 1.1) per span."""
    random = np.random.default_rng(0)

    def part(name: str, gain: float, begin: float) -> ReplayedSteps:
        base_R = random.normal(50, 1, 30)
        ids = [f"{name}{number}" for number in range(30)]
        return ReplayedSteps(
            steps={"base": base_R, "custom": base_R / gain},
            sequence_ids=ids,
            sessions=ids,
            users=["(independent)"] * 30,
            times=[begin + 10 * number / 29 for number in range(30)],
        )

    heldout = part("h", 1.1, 10.0)
    assert heldout.lengths("custom", "base", 0.95).trend.slope == pytest.approx(0)
    both = replace(heldout, earlier=part("v", 1.2, 0.0))
    # The line through a step in the middle of two spans falls by 1.5 times the step over both.
    slope = both.lengths("custom", "base", 0.95).trend.slope
    assert slope == pytest.approx(-0.75 * np.log(1.2 / 1.1), rel=0.05)
    unknown = replace(heldout, times=[None] * 30)
    assert unknown.lengths("custom", "base", 0.95).trend is None


def test_users_are_independent_if_the_recipe_says_so(monkeypatch):
    def sequences(users):
        table = Dataset.from_dict({"sequence_id": ["a", "b"], "user": users})
        monkeypatch.setattr("outrider.eval.context.load_sequences", lambda *_: table)

    for key, users, expected in [
        ("one", ["", ""], [INDEPENDENT] * 2),
        ("many", ["app", "app"], [INDEPENDENT] * 2),
        ("unknown", ["", ""], ["", ""]),
        ("one", ["u", "v"], ["u", "v"]),
    ]:
        sequences(users)
        data = EvaluationData(sequences=Path("unread"), parts={}, users=key)
        assert data.rows(["a", "b"])["user"][:] == expected
