"""Steps of real servers, timed while they serve.

How long a step takes depends on the machine; which steps are timed does not.
"""

import itertools
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from outrider.eval.bench import kind_steps, step_timing
from outrider.eval.bench.kind_steps import KindSteps, time_kinds
from outrider.eval.bench.server_pool import ServerPool
from outrider.eval.bench.step_timing import time_steps
from outrider.eval.prediction.paired_steps import fit_paired
from outrider.eval.results.parts import CURRENT, SAME_K
from outrider.serving import step_times
from outrider.serving.client import Sampling, complete
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.server import Server
from outrider.serving.step_times import StepTimes

DEPTH = 3
FURTHER = 4
"""Further rounds until the second look."""
ENOUGH = 4
"""Rounds of every number of drafts at a batch size, in place of ROUNDS."""
LEAST_TURNS, MOST_TURNS = 2, 4
"""In place of those of kind_steps.py."""


def enough_rows(rows: list[list[float | None]]) -> bool:
    """Whether every number of drafts has a time in some round."""
    return all(any(row[k] is not None for row in rows) for k in range(DEPTH))


def cached_tokens(server: Server, prompt_tokens: int) -> list[float]:
    """Prompt tokens that two equal requests, one after the other, found in the prefix cache."""
    counts = []
    for _ in range(3):
        with urllib.request.urlopen(server.url + "/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        hits = [line for line in lines if line.startswith("vllm:prefix_cache_hits_total")]
        counts.append(sum(float(line.split()[-1]) for line in hits))
        if len(counts) < 3:
            prompt = [0, *range(10, 9 + prompt_tokens)]
            complete(server.url, server.model_name, [prompt], Sampling(0.0, 1.0), 4, 1)
    return [after - before for before, after in itertools.pairwise(counts)]


@pytest.mark.engine
def test_steps_are_timed_for_every_k_and_the_same_server_then_drafts_what_each_variant_does(
    short_r1: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_timing, "FURTHER_ROUNDS", (FURTHER, FURTHER, FURTHER))
    for module in (step_times, kind_steps):
        monkeypatch.setattr(module, "ROUNDS", ENOUGH)
    monkeypatch.setattr(kind_steps, "LEAST_TURNS", LEAST_TURNS)
    monkeypatch.setattr(kind_steps, "MOST_TURNS", MOST_TURNS)
    target = TargetConfig(model=str(short_r1))
    serving = ServingConfig(
        engine=EngineConfig(
            max_num_seqs=4, max_model_len=512, kv_cache_gb=0.25, prefix_caching=True
        )
    )
    texts = ["Where is my order?", "List the total of this receipt.", "Is this candidate a fit?"]
    sampling, logs = Sampling(0.6, 0.95), tmp_path / "logs"
    seen: list[StepTimes] = []

    def undecided(times: StepTimes) -> dict[int, list[int]]:
        """At the first look two numbers at 3 requests, at the second none."""
        seen.append(times)
        return {3: [1, DEPTH]} if len(seen) == 1 else {}

    speculators = {"base": short_r1, "custom": short_r1}
    with (
        ServerPool(target, serving, speculators, DEPTH, logs) as pool,
        LoadGenerator(target, logs / "load.log") as load,
    ):
        fleet = pool.fleet("eager")
        times = time_steps(
            fleet, load, DEPTH, [1, 3], texts, sampling, 24, undecided=undecided, seconds=600
        )
        # Servers in turn, as they are timed for several kinds of drafter.
        in_turn = time_kinds(
            fleet, load, {"none": [0], "custom": [1, DEPTH]}, [1, 3], texts, sampling, 36, [3]
        )
        speculating = fleet.server("base")
        # One number, another, none, and a schedule by batch size.
        plan = {"base": 1, "custom": DEPTH, SAME_K: 0, CURRENT: [(1, 1, DEPTH), (2, 4, 0)]}
        assert pool.fleet("eager", plan) is fleet and fleet.server("base") is speculating
        steps, counts = {}, {}
        for variant in plan:
            assert fleet.server(variant) is speculating
            fleet.new_steps(variant)
            before = speculating.counters()
            prompts = [[0, 17, 4]] * (3 if variant == CURRENT else 1)
            complete(speculating.url, speculating.model_name, prompts, sampling, 40, len(prompts))
            counts[variant] = speculating.counters() - before
            steps[variant] = fleet.new_steps(variant)[1:]  # the first is of an earlier block
        hits = [
            cached_tokens(fleet.server(variant), prompt_tokens=440)
            for variant in ("base", "custom", "base", "none", "none")
        ]
    # A turn's second request finds the first one's prompt, its first one nothing of other turns.
    assert [first for first, _ in hits] == [0] * 5
    assert min(second for _, second in hits) > 100, hits
    for variant, k in (("base", 1), ("custom", DEPTH), (SAME_K, 0)):
        assert len(steps[variant]) > 5 and {step.drafts for step in steps[variant]} == {k}
        assert counts[variant].draft_tokens == k * counts[variant].drafts
    assert counts["base"].drafts > 0 and counts[SAME_K].drafts == 0
    assert counts[SAME_K].generation_tokens > 5
    by_size = {(step.requests, step.drafts) for step in steps[CURRENT]}
    assert (3, 0) in by_size and by_size <= {(1, DEPTH), (2, 0), (3, 0)}
    assert set(times.step_s) == {1, 3}
    assert all(len(row) == DEPTH + 1 and min(row) > 0 for row in times.step_s.values())
    assert all(0 <= seconds < 1 for seconds in times.prompt_token_s)
    assert {path.stat().st_mode & 0o777 for path in logs.glob("*.log")} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in logs.glob("*.jsonl")} == {0o600}
    assert all(enough_rows(rows) for rows in times.rounds.values())
    assert [each.looks for each in seen] == [1, 2] and times is seen[1]
    assert set(times.further) == {3} and times.further[3] >= FURTHER
    assert times.rounds[1] == seen[0].rounds[1]
    # The drafts change while a block begins: its first round may still be of all numbers.
    further = times.rounds[3][len(seen[0].rounds[3]) :]
    assert len(further) == times.further[3]
    assert all(row[1] is None for row in further[1:])
    assert StepTimes.from_dict(times.as_dict()) == times
    assert in_turn.shared and KindSteps.model_validate_json(in_turn.model_dump_json()) == in_turn
    assert {len(in_turn.tables(name)[1]) for name in in_turn.turns} == {LEAST_TURNS}
    turns = {name: in_turn.tables(name)[3] for name in ("none", "custom")}
    assert LEAST_TURNS <= len(turns["none"]) == len(turns["custom"]) <= MOST_TURNS
    for name, own in turns.items():
        timed = np.concatenate(own)
        assert timed.shape[1] == len(in_turn.numbers[name])
        assert (np.isfinite(timed).sum(axis=0) > 3).all() and np.nanmin(timed) > 0
    for fit in fit_paired({name: {3: own} for name, own in turns.items()}, 50, 0).values():
        assert min(fit.step_s[3]) > 0 and np.isfinite(fit.draws_S[3]).all()
