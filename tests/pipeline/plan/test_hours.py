"""Hours by stage against sums by hand and what a run does, and the trial profile's goal."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from outrider.common.gpu_cards import CARDS
from outrider.eval.bench import servers as servers_module
from outrider.eval.bench.closed_loop import measure_closed_loop
from outrider.eval.bench.metrics import SpeedRatios
from outrider.eval.bench.outputs import planned_passes
from outrider.eval.bench.servers import Servers
from outrider.eval.config import LOOKUP_NUMBERS
from outrider.eval.results.parts import DRAFTERS
from outrider.pipeline.plan.hours import (
    Volume,
    count_swaps,
    engine_starts,
    rates_of,
    split_volume,
    stage_seconds,
    with_further_answers,
)
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.recipe.recipe import Recipe
from outrider.serving.client import Sampling
from outrider.serving.config import TargetConfig
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.speculator import Speculator
from tests.distill_configs import DISTILLS
from tests.eval.bench.test_closed_loop import PLAN, PROMPTS, mtp, sent, timed  # noqa: F401 (a fixture)
from tests.r1_config import R1

CHECKPOINT = {"mtp": 139_320_815_616}
R1_LAYER = 11_600_000_000


def recipe_for(name: str, *overrides: str) -> Recipe:
    return load_recipe(name, ["traffic.path=nano_r1/social_chat", *overrides]).recipe


def test_exact_replay_runs_on_one_gpu_unless_there_is_a_cluster() -> None:
    alone = recipe_for("r1/template", "training.processes=8")
    cluster = recipe_for("r1/template", "training.processes=8", "cluster.address=auto")
    rates = [rates_of(recipe, R1).replay_tokens_per_s for recipe in (alone, cluster)]
    assert rates[1] == pytest.approx(8 * rates[0])


def hours(name: str, *overrides: str, sequences: int = 5000, each: int = 4096) -> float:
    recipe = recipe_for(name, *overrides)
    volume = split_volume(recipe, sequences * each, sequences)._replace(response_p90=3000)
    rates = rates_of(recipe, R1)
    stages = stage_seconds(volume, recipe, R1, CHECKPOINT, rates, speculator_bytes=R1_LAYER)
    return sum(sum(parts.values()) for parts in stages.values()) / 3600


def test_a_trial_on_r1_takes_about_three_hours() -> None:
    """5,000 sequences of 4k tokens, nine in ten responses of at most 3k, from logs to a bundle.

    1.5 h of it are 13 engine starts.
    """
    assert hours("r1/template", "effort=trial") <= 3.3
    assert hours("r1/resume_screening") > 5


def test_a_stage_is_the_sum_of_its_parts() -> None:
    recipe = recipe_for("r1/resume_screening", "eval.k=3")
    rates = rates_of(recipe, R1)
    stages = stage_seconds(
        Volume(log=10**6, train=7 * 10**5, validation=10**5, heldout=2 * 10**5, counted=True),
        recipe,
        R1,
        CHECKPOINT,
        rates,
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
    # The lookup's steps are timed, verification starts both servers, the first repeat those and the
    # lookup's, four more one each, and in four repeats the other one and the lookup's start again.
    assert engine_starts(recipe) == 1 + 2 + 3 + 4 + 4 * 2
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
        parts = stage_seconds(logged, priced, R1, CHECKPOINT, rates)["evaluate"]
        return parts["24 timed blocks"] * rates.decoded_per_s(8) / (24 * 16)

    assert per_token(1000) == pytest.approx(1024)
    assert per_token(9000) == per_token(None) == pytest.approx(4096)
    assert per_token(1000, "eval.max_tokens=64") == pytest.approx(64)


def test_further_answers_are_priced_as_sampling_capture_and_training() -> None:
    """A log of 100 responses of 300 tokens, half of them prompt, gets 300 answers more."""
    recipe = recipe_for("r1/template", "effort=thorough")
    rates = rates_of(recipe, R1)
    assert recipe.capture.answers_up_to == 1000
    logged = Volume(log=50_000, train=30_000, validation=10_000, heldout=10_000, counted=True)
    volume = with_further_answers(logged, recipe, sequences=100, completion_share=0.5)
    assert (volume.further, volume.sampled) == (90_000, 45_000)
    assert (volume.trained_tokens, volume.captured_tokens) == (120_000, 140_000)
    stages, without = (
        stage_seconds(one, recipe, R1, CHECKPOINT, rates) for one in (volume, logged)
    )
    seats = recipe.serving.engine.seats
    assert stages["capture"]["further answers"] == pytest.approx(
        45_000 / rates.decoded_per_s(seats)
    )
    assert stages["capture"]["prefill"] == pytest.approx(2.8 * without["capture"]["prefill"])
    assert stages["train"]["2 epochs"] == pytest.approx(4 * without["train"]["2 epochs"])
    assert "further answers" not in without["capture"]


def test_a_large_log_and_one_that_is_not_stored_get_no_further_answers() -> None:
    logged = Volume(log=10**6, train=600_000, validation=10_000, heldout=10_000, counted=True)
    for effort, sequences, *others in (
        ("thorough", 1000),
        ("standard", 100),
        ("thorough", 100, "training.features=streamed", "cluster.address=local"),
        ("thorough", 100, "speculator.kind=suffix"),
        ("thorough", 0),
    ):
        recipe = recipe_for("r1/template", f"effort={effort}", *others)
        assert with_further_answers(logged, recipe, sequences, completion_share=0.5) == logged


def test_capacity_is_priced_where_it_is_measured() -> None:
    """Neither in trial effort nor in the recipes of the demos."""
    volume = split_volume(recipe_for("r1/template"), 10**6, 1000)

    def minutes(name: str, *overrides: str) -> float:
        recipe = recipe_for(name, *overrides)
        stages = stage_seconds(volume, recipe, R1, CHECKPOINT, rates_of(recipe, R1))
        return stages["evaluate"].get("capacity", 0.0) / 60

    assert minutes("r1/template") == minutes("r1/template", "effort=thorough") == 15
    assert minutes("r1/template", "effort=trial") == 0
    assert minutes("r1/template", "eval.capacity_minutes=4") == 4
    for demo in ("resume_screening", "social_chat", "document_extraction", "usage_scenarios"):
        assert minutes(demo) == 0
    assert minutes("smollm2/candidate_profiles") == 0


class Counted:
    """Starts, swaps and passes of an evaluation whose servers take no time."""

    def __init__(self) -> None:
        self.starts = self.swaps = 0


@pytest.fixture
def counted(
    sent: object,  # noqa: F811 (a fixture)
    monkeypatch: pytest.MonkeyPatch,
) -> Counted:
    """Counts on the played servers of test_closed_loop.py."""
    counts = Counted()
    played: Any = servers_module.Server

    class Counting(played):  # type: ignore[misc]
        def launch(self) -> None:
            counts.starts += 1

        def swap(self, directory: Path) -> None:
            counts.swaps += 1
            super().swap(directory)

    monkeypatch.setattr(servers_module, "Server", Counting)
    return counts


@pytest.mark.parametrize(
    ("side_by_side", "data_parallel"), [(True, 1), (False, 1), (True, 2), (False, 2)]
)
@pytest.mark.parametrize("concurrency", [[4], [8, 2, 16]])
@pytest.mark.parametrize("starts", [1, 3])
def test_starts_swaps_and_passes_are_those_of_an_evaluation(
    counted: Counted,
    tmp_path: Path,
    side_by_side: bool,
    data_parallel: int,
    concurrency: list[int],
    starts: int,
) -> None:
    """Step timing, verification and timed blocks in their order, on servers that are played."""
    words = (
        f"eval.side_by_side={str(side_by_side).lower()}",
        f"eval.concurrency={concurrency}",
        f"eval.starts={starts}",
        f"serving.engine.data_parallel={data_parallel}",
        "eval.repeats=4",
        "eval.measure=full",
        "eval.capacity_minutes=0",
    )
    recipe = recipe_for("r1/resume_screening", *words)
    speculators = {"base": mtp("base"), "custom": mtp("custom"), "lookup": Speculator("ngram")}
    prompts = [
        replace(prompt, text=text)
        for prompt, text in zip(timed(len(PROMPTS)), PROMPTS, strict=True)
    ]
    speeds = SpeedRatios(recipe.eval, prompts, main=recipe.eval.main)
    with Servers(
        target=TargetConfig(),
        serving=recipe.serving,
        speculators=speculators,
        numbers=dict.fromkeys(speculators, (1, 2, 3)),
        log_dir=tmp_path,
        side_by_side=side_by_side,
    ) as servers:
        timed_drafters = ["custom"] if recipe.serving.engine.changes_drafters else DRAFTERS
        depths = range(1, recipe.speculator.depth + 1)
        steps = [(name, k) for name in timed_drafters for k in depths]
        steps += [("lookup", k) for k in LOOKUP_NUMBERS]
        for group in servers.groups(steps):
            for variant, k in group:
                servers.server("eager", variant, k)
        drafts = {"none": None, "base": 3, "custom": 3}
        passes = planned_passes(servers.groups([*drafts.items()]))
        for one in passes:
            servers.server("eager", one.variant, drafts[one.variant])
        measure_closed_loop(
            servers,
            mode="eager",
            plan=PLAN | {"lookup": 3},
            load=LoadGenerator(TargetConfig(), tmp_path / "log"),
            sampling=Sampling(),
            speeds=speeds,
            say=lambda line: None,
        )
    # Side by side, servers of the largest number may still be up after step timing.
    may_be_up = 2 if data_parallel > 1 and side_by_side else 0
    assert 0 <= engine_starts(recipe) - counted.starts <= may_be_up
    assert counted.swaps <= count_swaps(recipe) <= max(2 * counted.swaps, 8)
    # `_verification_seconds` counts six passes, and a control on all prompts.
    assert [one.again for one in passes].count(False) == 6
    assert [one.variant for one in passes if one.again].count("none") == 1


@pytest.mark.parametrize(("name", "config"), [("8B", DISTILLS["Llama-8B"][0]), ("R1", R1)])
def test_a_card_that_is_slower_by_its_data_sheet_takes_longer(name: str, config: dict) -> None:
    head = ("speculator.kind=eagle3", "speculator.base=none", "target.model=org/8B")
    recipe = recipe_for("r1_distill/template", *head)
    if name == "R1":
        recipe = recipe_for("r1/template")
    cards = {card.name: card for card in CARDS}
    order = ("B200", "H200", "H100", "A100", "L40S", "A10", "L4")
    rates = [rates_of(recipe, config, cards[card]) for card in order]
    for fast, slow in pairwise(rates):
        assert fast.one_request_tokens_per_s > slow.one_request_tokens_per_s
    h100 = rates[order.index("H100")]
    l4 = rates[order.index("L4")]
    assert h100.one_request_tokens_per_s / l4.one_request_tokens_per_s == pytest.approx(3.35 / 0.3)
    assert h100.capture_tokens_per_s / l4.capture_tokens_per_s == pytest.approx(989 / 121)
    assert h100.training_tokens_per_s / l4.training_tokens_per_s == pytest.approx(989 / 121)
    assert "L4" in l4.source and "H100" not in l4.source
