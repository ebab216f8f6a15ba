"""Hours by stage against sums by hand, and the trial profile's goal."""

import pytest

from outrider.pipeline.plan.hours import (
    Volume,
    engine_starts,
    rates_of,
    split_volume,
    stage_seconds,
)
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.recipe.recipe import Recipe
from tests.r1_config import R1

CHECKPOINT = {"mtp": 162_540_951_552}


def recipe_for(name: str, *overrides: str) -> Recipe:
    return load_recipe(name, ["traffic.path=nano_r1/social_chat", *overrides]).recipe


def hours(name: str, *overrides: str, sequences: int = 5000, each: int = 4096) -> float:
    recipe = recipe_for(name, *overrides)
    volume = split_volume(recipe, sequences * each, sequences)._replace(response_p90=3000)
    stages = stage_seconds(volume, recipe, R1, CHECKPOINT)
    return sum(sum(parts.values()) for parts in stages.values()) / 3600


def test_a_trial_on_r1_takes_at_most_three_hours() -> None:
    """5,000 sequences of 4k tokens, nine in ten responses of at most 3k, from logs to a bundle."""
    assert hours("r1/template", "effort=trial") <= 3
    assert hours("r1/resume_screening") > 5


def test_a_stage_is_the_sum_of_its_parts() -> None:
    recipe = recipe_for("r1/resume_screening", "eval.k=3")
    rates = rates_of(recipe, R1)
    stages = stage_seconds(
        Volume(log=10**6, train=7 * 10**5, validation=10**5, heldout=2 * 10**5, counted=True),
        recipe,
        R1,
        CHECKPOINT,
    )
    assert stages["capture"] == {
        "engine start": rates.engine_start_s,
        "prefill": pytest.approx(1e6 / 15_000),
    }
    train = stages["train"]
    assert train["2 epochs"] == pytest.approx(14e5 / rates.training_tokens_per_s)
    assert train["1 checkpoint"] == pytest.approx(CHECKPOINT["mtp"] / rates.disk_bytes_per_s)
    timed = sum(
        max(16, 2 * size) * 4096 / rates.decoded_per_s(size) for size in recipe.eval.concurrency
    )
    assert stages["evaluate"]["60 timed blocks"] == pytest.approx(15 * timed)
    # Verification starts both servers, the first repeat those and lookup's, four more one each,
    # and in four repeats the other one and lookup's start again.
    assert engine_starts(recipe) == 2 + 3 + 4 + 4 * 2
    # A server for each speculator and number, in each of five repeats; lookup is the base.
    words = ("eval.k=3", "serving.engine.data_parallel=8", "speculator.base=ngram")
    apart = recipe_for("r1/resume_screening", *words)
    assert engine_starts(apart) == 3 + 3 * apart.eval.repeats


def test_timed_responses_are_priced_at_the_logs_length() -> None:
    recipe = recipe_for("r1/template")
    rates = rates_of(recipe, R1)
    volume = split_volume(recipe, 10**6, 1000)

    def per_token(response_p90: int | None, *overrides: str) -> float:
        priced = recipe_for("r1/template", *overrides)
        logged = volume._replace(response_p90=response_p90)
        parts = stage_seconds(logged, priced, R1, CHECKPOINT)["evaluate"]
        return parts["24 timed blocks"] * rates.decoded_per_s(8) / (24 * 16)

    assert per_token(1000) == pytest.approx(1024)
    assert per_token(9000) == per_token(None) == pytest.approx(4096)
    assert per_token(1000, "eval.max_tokens=64") == pytest.approx(64)


def test_capacity_is_priced_where_it_is_measured() -> None:
    """Neither in trial effort nor in the recipes of the demos."""
    volume = split_volume(recipe_for("r1/template"), 10**6, 1000)

    def minutes(name: str, *overrides: str) -> float:
        stages = stage_seconds(volume, recipe_for(name, *overrides), R1, CHECKPOINT)
        return stages["evaluate"].get("capacity", 0.0) / 60

    assert minutes("r1/template") == minutes("r1/template", "effort=thorough") == 15
    assert minutes("r1/template", "effort=trial") == 0
    assert minutes("r1/template", "eval.capacity_minutes=4") == 4
    for demo in ("resume_screening", "social_chat", "document_extraction", "usage_scenarios"):
        assert minutes(demo) == 0
    assert minutes("smollm2/candidate_profiles") == 0
