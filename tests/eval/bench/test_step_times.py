"""Steps of real servers, timed while they serve; and what is computed from recorded steps.

How long a step takes depends on the machine; which steps are timed does not.
"""

import itertools
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.eval.bench import step_times
from outrider.eval.bench.server_pool import ServerPool
from outrider.eval.bench.step_times import drafts_of, summarise_steps, time_steps
from outrider.eval.results.parts import CURRENT, SAME_K
from outrider.serving.client import Sampling, complete
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.server import Server
from outrider.serving.vllm_hooks.step_recorder import RUN, Step

DEPTH = 3
ENOUGH = 4
"""Rounds of every number of drafts at a batch size, in place of ROUNDS."""


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
    monkeypatch.setattr(step_times, "ROUNDS", ENOUGH)
    target = TargetConfig(model=str(short_r1))
    serving = ServingConfig(
        engine=EngineConfig(
            max_num_seqs=4, max_model_len=512, kv_cache_gb=0.25, prefix_caching=True
        )
    )
    texts = ["Where is my order?", "List the total of this receipt.", "Is this candidate a fit?"]
    sampling, logs = Sampling(0.6, 0.95), tmp_path / "logs"
    speculators = {"base": short_r1, "custom": short_r1}
    with (
        ServerPool(target, serving, speculators, DEPTH, logs) as pool,
        LoadGenerator(target, logs / "load.log") as load,
    ):
        numbers = range(1, DEPTH + 1)
        times = time_steps(pool, "eager", load, numbers, [1, 3], texts, sampling, 36)
        fleet = pool.fleet("eager")
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
    assert {path.stat().st_mode & 0o777 for path in logs.glob("*.log")} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in logs.glob("*.jsonl")} == {0o600}
    assert set(times.plain_s) == set(times.rounds) == {1, 3}
    for size, rows in times.rounds.items():
        assert rows and all(len(row) == DEPTH and min(row) > 0 for row in rows)
        assert min(times.fit(size, 50, 0).step_s) > 0


def recorded(size: int, depth: int, seconds: Callable[[int, int], float]) -> list[Step]:
    """A closed loop of `size` requests of 37 steps each, as the recorder writes it."""
    steps, verified, waiting = [], min(depth, 1), size
    for count in range(3000):
        drafts = 1 + (count // RUN) % depth if depth else 0
        new = waiting if count % 40 == 0 else 0
        tokens = size * (verified + 1) + new * 200
        ending = count % 37 == 36
        spent = seconds(drafts, size) + new * 0.02
        steps.append(Step(spent, size, drafts, tokens, new, new * 200, not ending))
        verified, waiting = drafts, 1
    return steps


def test_step_times_come_from_steps_that_only_decode() -> None:
    def seconds(k: int, size: int) -> float:
        return 0.010 + 0.003 * k + 0.002 * size * (k + 1)

    plain = {size: recorded(size, 0, seconds) for size in (1, 4)}
    drafting = {size: recorded(size, 3, seconds) for size in (1, 4)}
    times = summarise_steps(plain, drafting, [1, 2, 3])

    def expected(size: int) -> list[float]:
        return [seconds(k, size) for k in range(1, 4)]

    for size in (1, 4):
        assert times.plain_s[size] == pytest.approx(seconds(0, size))
        assert times.fit(size, 10, 0).step_s == pytest.approx(expected(size))
    # Occasional stalls, and steps between two numbers of drafts, do not change them.
    drafting[1][50::97] = [step._replace(seconds=1.0) for step in drafting[1][50::97]]
    stalled = summarise_steps(plain, drafting, [1, 2, 3])
    assert stalled.fit(1, 10, 0).step_s == pytest.approx(expected(1))


def test_drafts_are_summed_over_steps_without_prompts() -> None:
    steps = recorded(4, 1, lambda k, size: 0.01)
    without = [step for step in steps if not step.prompt_tokens]
    assert 0 < len(without) < len(steps)
    for size, (count, drafts) in drafts_of(steps).items():
        own = [step.drafts for step in without if step.requests == int(size)]
        assert (count, drafts) == (len(own), sum(own))


def test_responses_too_short_to_time_are_an_error() -> None:
    decoding = [Step(0.03, 1, 0, 1, 0, 0, True)] * 10
    prompts_only = [Step(0.03, 1, 1, 100, 1, 100, False)] * 10
    with pytest.raises(OutriderError, match=r"at 1 requests at once there are no steps .*eval\.k"):
        summarise_steps({1: decoding}, {1: prompts_only}, [1])
