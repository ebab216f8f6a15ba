"""Speculators without exact replay are judged by the engine's counters; the report says so."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.eval.bench.counted import (
    CountedPass,
    _by_response,
    counted_acceptance,
    counted_passes,
)
from outrider.eval.bench.prompts import Prompt
from outrider.eval.context import (
    Backends,
    EvaluationContext,
    EvaluationData,
    EvaluationFolders,
)
from outrider.eval.evaluate import run_evaluation
from outrider.eval.results.parts import DRAFTERS, Drafters
from outrider.eval.results.report import Report
from outrider.eval.stats.clusters import INDEPENDENT
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.speculator import Speculator
from tests.eagle3_head import write_eagle3_head
from tests.eval.sample_results import EVALUATION, sample_blocks, served_measurements
from tests.tiny import write_tiny_target


def counters(tokens, drafts=0, accepted=(0, 0)):
    return {
        "drafts": drafts,
        "draft_tokens": 2 * drafts,
        "accepted_tokens": sum(accepted),
        "accepted_per_position": list(accepted) if drafts else [],
        "generation_tokens": tokens,
    }


def prompts(*sessions):
    return [
        Prompt(sequence_id=session, session=session, user="", token_ids=[], text="")
        for session in sessions
    ]


def simulated(script):
    """Counters of steps, given by accepted drafts; None is a step without a draft."""
    drafted = [accepted for accepted in script if accepted is not None]
    tokens = 1 + sum(1 + (accepted or 0) for accepted in script)
    reached = [sum(accepted > position for accepted in drafted) for position in range(2)]
    return counters(tokens, len(drafted), reached)


def test_steps_without_a_draft_are_steps():
    def counted(kind, custom):
        passes = [
            CountedPass(prompts(f"{n}"), {"base": simulated([1, 0, 2]), "custom": custom})
            for n in range(2)
        ]
        speculators = {"base": Speculator("mtp"), "custom": Speculator(kind)}
        return counted_acceptance(passes, speculators, Drafters[int](base=2, custom=2))

    found = counted("ngram", simulated([2, None, 0, None, 1, 2, None, None]))
    assert found.custom.acceptance_length == pytest.approx((8 + 5) / 8)
    assert found.custom.steps == 16
    assert found.base.acceptance_length == pytest.approx(6 / 3)
    assert found.ratio.value == pytest.approx(13 / 8 / 2)
    assert found.custom.cumulative == pytest.approx([3 / 8, 2 / 8])
    found = counted("none", counters(9))
    assert found.custom.acceptance_length == 1.0 and found.custom.cumulative == [0.0, 0.0]


def test_counters_are_pooled_before_they_are_divided():
    both = {"base": counters(161, 100, (50, 10)), "custom": counters(181, 80, (60, 40))}
    more = {"base": counters(661, 300, (240, 120)), "custom": counters(471, 200, (180, 90))}
    passes = [CountedPass(prompts("a"), both), CountedPass(prompts("b"), more)]
    k = Drafters[int](base=2, custom=2)
    mtp = dict.fromkeys(DRAFTERS, Speculator("mtp"))
    counted = counted_acceptance(passes, mtp, k)
    assert counted.base.acceptance_length == pytest.approx((160 + 660) / 400)
    assert counted.base.cumulative == pytest.approx([290 / 400, 130 / 400])
    assert counted.ratio.value == pytest.approx((650 / 280) / (820 / 400))
    assert counted.ratio.undecided() == "undecided: 2 sessions, at least 5 needed"
    with pytest.raises(OutriderError, match="no draft of the base speculator"):
        counted_acceptance(
            [CountedPass(prompts("a"), dict.fromkeys(DRAFTERS, counters(1)))], mtp, k
        )


STEPS = 60
"""Steps of a response."""


def recycled_blocks(
    random: np.random.Generator,
    sessions: int,
    spread: float,
    repeats: int = 8,
    concurrency: Sequence[int] = (1, 4),
    user: Callable[[int], int] | None = None,
) -> tuple[list[dict[str, Any]], list[Prompt]]:
    """Blocks of base and custom that accept alike on average, and their prompts.

    Custom's acceptance length differs from base's by a factor of each session (log-normal with that
    standard deviation and mean 1), and every response by 5 %. With `user` (of a session) it
    is each user's.
    """
    whose = [number if user is None else user(number) for number in range(sessions)]
    prompts_P = [
        Prompt(
            sequence_id=f"q{number}",
            session=f"s{number // 2}",
            user=f"u{whose[number // 2]}" if user else "",
            token_ids=[],
            text="",
        )
        for number in range(2 * sessions)
    ]
    factor_G = np.exp(spread * random.standard_normal(sessions) - spread**2 / 2)
    factor_P = factor_G[whose].repeat(2)
    blocks: list[dict[str, Any]] = []
    supply = 0
    for repeat in range(repeats):
        for size in concurrency:
            count = max(5, 2 * size)
            prompts = [(supply + place) % len(prompts_P) for place in range(count)]
            supply += count
            for variant in ("base", "custom"):
                length_R = 2.5 * np.exp(0.05 * random.standard_normal(count))
                if variant == "custom":
                    length_R *= factor_P[prompts]
                later_R = np.round(STEPS * length_R).astype(int)
                accepted = int(later_R.sum()) - STEPS * count
                counters = {
                    "drafts": STEPS * count,
                    "draft_tokens": 4 * STEPS * count,
                    "accepted_tokens": accepted,
                    "accepted_per_position": [accepted, 0, 0, 0],
                    "generation_tokens": int(later_R.sum()) + count,
                }
                blocks.append(
                    {
                        "repeat": repeat,
                        "concurrency": size,
                        "variant": variant,
                        "prompts": prompts,
                        "request_tokens": (later_R + 1).tolist(),
                        "request_deliveries": [STEPS] * count,
                        "counters": counters,
                    }
                )
    return blocks, prompts_P


@pytest.mark.parametrize("custom", ["mtp", "ngram"])
def test_prompts_that_are_used_again_are_no_further_evidence(custom):
    """Five sessions whose acceptance differs by 10 %, forty requests at one and 64 at four."""
    random = np.random.default_rng(0)
    k = Drafters[int](base=4, custom=4)
    speculators = {"base": Speculator("mtp"), "custom": Speculator(custom)}
    wrong, trials = 0, 400
    for _ in range(trials):
        blocks, sessions = recycled_blocks(random, 5, 0.1)
        found = counted_acceptance(counted_passes(blocks, sessions), speculators, k).ratio
        assert (found.clusters, found.observations) == (5, 8 * (5 + 8))
        wrong += found.low > 1
    assert wrong / trials < 0.06  # 2.5 % are expected; 22 % with turns as clusters
    few, sessions = recycled_blocks(random, 4, 0.1)
    found = counted_acceptance(counted_passes(few, sessions), speculators, k).ratio
    assert found.low is None and "4 sessions, at least 5" in found.undecided()


def test_the_interval_is_over_users_where_that_is_wider():
    """How often each is wrong: tests/eval/stats/test_clusters.py."""
    random = np.random.default_rng(0)
    k = Drafters[int](base=4, custom=4)
    blocks, asked = recycled_blocks(random, 40, 0.1, repeats=12, user=lambda s: s % 8)
    mtp = {drafter: Speculator("mtp") for drafter in DRAFTERS}
    of_users, plain = (
        counted_acceptance(counted_passes(blocks, own), mtp, k).ratio
        for own in (asked, [replace(each, user=INDEPENDENT) for each in asked])
    )
    assert of_users.over == "40 sessions of 8 users, with the wider interval over users"
    assert plain.over == "40 sessions" and of_users.low < plain.low


def test_a_response_s_share_of_a_block_is_its_share_of_the_deliveries():
    """The session with the longer acceptance length is told from the other in one block."""
    block = counters(32 + 2, drafts=16, accepted=(10, 6))
    one = CountedPass(
        prompts("a", "b"),
        dict.fromkeys(DRAFTERS, block),
        {name: [(25, 8), (9, 8)] for name in DRAFTERS},
    )
    found = _by_response(one, "custom", Speculator("mtp"))
    assert found.tolist() == [[24, 8], [8, 8]]
    # Where nothing was streamed, the responses share alike.
    one = CountedPass(
        prompts("a", "b"),
        dict.fromkeys(DRAFTERS, block),
        {name: [(1, 0), (1, 0)] for name in DRAFTERS},
    )
    assert _by_response(one, "custom", Speculator("mtp")).tolist() == [[16, 8], [16, 8]]


@pytest.fixture
def case(tmp_path):
    """An evaluation of six held-out requests that must start nothing."""
    from datasets import Dataset

    target = write_tiny_target(tmp_path / "target")
    rows = [
        {
            "sequence_id": f"q{n}",
            "session": f"s{n}",
            "user": "",
            "tenant": "",
            "time": None,
            "token_ids": [*range(2, 8 + n), 9, 9],
            "completion_start": 6 + n,
            "temperature": 0.6,
            "top_p": 0.95,
            "top_k": 0,
            "constraint": "",
            "grammar": "",
            "prompt_text": f"prompt {n}",
        }
        for n in range(6)
    ]
    Dataset.from_list(rows).save_to_disk(tmp_path / "sequences")
    return EvaluationContext(
        recipe="a_test",
        target=TargetConfig(model=str(target)),
        serving=ServingConfig(engine=EngineConfig(max_num_seqs=8)),
        settings=EVALUATION.model_copy(update={"engine_modes": ["eager"]}),
        depth=3,
        speculators={"base": Speculator.from_name(target), "custom": Speculator("ngram")},
        data=EvaluationData(
            tmp_path / "sequences",
            {"validation": ["q0"], "heldout": [row["sequence_id"] for row in rows]},
        ),
        folders=EvaluationFolders(tmp_path, tmp_path / "out", tmp_path / "out", tmp_path),
        backends=Backends(servers=lambda **_: pytest.fail("started")),
    )


def served(kinds, speed):
    """Served measurements: custom is `speed` times as fast, and both accept as their kinds can."""
    blocks = sample_blocks(speed)
    for block in blocks:
        if kinds.get(block["variant"]) == "none":
            block["counters"] |= {"drafts": 0, "accepted_tokens": 0, "accepted_per_position": []}
    measured = served_measurements(speed, blocks, prompts=6)
    measured["verification_eager"] |= {"replay_vs_engine": None}
    return measured


@pytest.mark.parametrize(
    ("base", "kind", "speed", "verdict", "reason"),
    [
        ("mtp", "eagle3", 1.4, "ship", "counted by the engine; tokens/s"),
        ("mtp", "eagle3", 0.8, "do not ship", "tokens/s, custom / base, eager"),
        ("mtp", "ngram", 1.4, "ship", "tokens/s, custom / base, eager"),
        ("mtp", "none", 1.4, "do not ship", "acceptance length, custom / base, both at K = 3: 0."),
        ("none", "eagle3", 1.4, "ship", "counted by the engine; tokens/s"),
        ("ngram", "eagle3", 1.4, "ship", "counted by the engine; tokens/s"),
    ],
)
def test_the_verdict_rests_on_counts_and_clock_and_names_what_is_missing(
    case, tmp_path, base, kind, speed, verdict, reason
):
    head = write_eagle3_head(tmp_path / "target", tmp_path / "head") if kind == "eagle3" else None
    own = case.speculators["base"] if base == "mtp" else Speculator(base)
    both = {"base": own, "custom": Speculator(kind, head)}
    context = replace(case, speculators=both, backends=Backends())
    for name, measured in served({"base": base, "custom": kind}, speed).items():
        context.cached_result(name).put(measured)
    line = run_evaluation(context)
    assert line["verdict"] == verdict and reason in line["reason"], line["reason"]
    assert "Not checked: exact replay, general traffic, replay against engine" in line["reason"]
    assert line["replay_vs_engine"] is None and line["k"] == {"base": 3, "custom": 3}
    report = Report.model_validate(read_json(tmp_path / "out" / "report.json"))
    assert report.replay is None and report.speculator.kind == kind
    words = {"eagle3": "an EAGLE-3 head", "ngram": "n-gram lookup", "none": "no speculation"}[kind]
    missing = f"no exact replay of {words}"
    assert report.not_measured["exact replay"].startswith(missing)
    page, text = ((tmp_path / "out" / name).read_text() for name in ("report.html", "report.md"))
    assert missing in page and missing in text


def test_a_head_of_another_target_is_refused_before_anything_starts(case, tmp_path):
    head = write_eagle3_head(tmp_path / "target", tmp_path / "head")
    config = json.loads((head / "config.json").read_text())
    (head / "config.json").write_text(json.dumps(config | {"vocab_size": 96}))
    with pytest.raises(OutriderError, match="a stale vocabulary"):
        custom = {"custom": Speculator.from_name(head)}
        run_evaluation(replace(case, speculators=case.speculators | custom))


def test_a_base_that_changes_in_place_is_measured_again(case, tmp_path):
    own = case.target.directory()
    for name in ("base", "custom"):
        shutil.copytree(own, tmp_path / name)
    both = {name: Speculator("mtp", tmp_path / name) for name in ("base", "custom")}
    context = replace(case, speculators=both)
    context.cached_result("measured").put({"seconds": 1.0})
    assert replace(context).cached_result("measured").done()
    (tmp_path / "base" / "model.safetensors").write_bytes(b"second")
    assert not replace(context).cached_result("measured").done()
