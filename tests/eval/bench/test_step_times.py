"""Steps of real servers, timed for every number of drafts; and how times follow from counters."""

import itertools
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from outrider.common.errors import OutriderError
from outrider.eval.bench import step_times
from outrider.eval.bench.servers import Servers
from outrider.eval.bench.step_times import time_steps
from outrider.eval.results.parts import CURRENT, SAME_K
from outrider.serving.client import Sampling, SpeculationCounters, complete
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.server import Server
from outrider.serving.speculator import Speculator

DEPTH = 3
COUNTED = SpeculationCounters(0, 0, 0, (), 0)


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
    monkeypatch.setattr(step_times, "STEP_ROUNDS", 1)
    target = TargetConfig(model=str(short_r1))
    serving = ServingConfig(
        engine=EngineConfig(
            max_num_seqs=4, max_model_len=512, kv_cache_gb=0.25, prefix_caching=True
        )
    )
    texts = ["Where is my order?", "List the total of this receipt.", "Is this candidate a fit?"]
    sampling, logs = Sampling(0.6, 0.95), tmp_path / "logs"
    speculators = {name: Speculator.named(short_r1) for name in ("base", "custom")}
    with (
        LoadGenerator(target, logs / "load.log") as load,
        Servers(target, serving, speculators, range(DEPTH + 1), logs) as servers,
    ):
        numbers = {"custom": range(DEPTH + 1)}
        times = time_steps(servers, "eager", load, numbers, [1, 3], texts, sampling)
        speculating = servers.server("eager", "base", 1)
        # One number, another, none, and a schedule by batch size.
        plan = {"base": 1, "custom": DEPTH, SAME_K: 0, CURRENT: [(1, 1, DEPTH), (2, 4, 0)]}
        counts = {}
        for variant, drafts in plan.items():
            assert servers.server("eager", variant, drafts) is speculating
            before = speculating.counters()
            prompts = [[0, 17, 4]] * (3 if variant == CURRENT else 1)
            complete(speculating.url, speculating.model_name, prompts, sampling, 40, len(prompts))
            counts[variant] = speculating.counters() - before
        hits = [
            cached_tokens(servers.server("eager", variant, drafts), prompt_tokens=440)
            for variant, drafts in (("base", 1), ("custom", 3), ("base", 1), *[("none", None)] * 2)
        ]
    # A turn's second request finds the first one's prompt, its first one nothing of other turns.
    assert [first for first, _ in hits] == [0] * 5
    assert min(second for _, second in hits) > 100, hits
    for variant, k in (("base", 1), ("custom", DEPTH)):
        assert counts[variant].drafts > 0
        assert counts[variant].draft_tokens == k * counts[variant].drafts
    assert counts[SAME_K].drafts == 0 and counts[SAME_K].generation_tokens > 5
    # Three at once draft nothing, the last one alone DEPTH tokens.
    assert counts[CURRENT].draft_tokens == DEPTH * counts[CURRENT].drafts
    assert counts[CURRENT].drafts < counts[CURRENT].generation_tokens / 2
    assert {path.stat().st_mode & 0o777 for path in logs.glob("*.log")} == {0o600}
    assert set(times.seconds) == {"custom"} and set(times.seconds["custom"]) == {1, 3}
    for row in times.seconds["custom"].values():
        assert set(row) == set(range(DEPTH + 1)) and min(row.values()) > 0


class Simulated:
    """Servers and a load generator in which a step takes 10 ms and 2 ms for each draft."""

    def __init__(self, length: int = 40) -> None:
        self.asked: list[tuple[str, int, tuple[str, ...]]] = []
        self.length = length

    def groups(self, turns):
        return [turns]

    def server(self, mode, variant, k):
        self.asked.append((variant, k, ()))
        return SimpleNamespace(url=k)

    def run_block(self, k, texts, size, sampling, max_tokens):
        variant, number, _ = self.asked[-1]
        self.asked[-1] = (variant, number, tuple(texts))
        busy = 3 if len(self.asked) % 7 == 0 else 1  # some blocks share the machine
        steps = self.length * len(texts)
        counters = replace(COUNTED, drafts=steps if k else 0, generation_tokens=steps)
        seconds = busy * (0.01 + 0.002 * k) * steps / size
        return SimpleNamespace(seconds=seconds, counters=counters)


def test_every_number_answers_the_same_prompts_and_busy_rounds_are_left_out() -> None:
    simulated = Simulated()
    times = time_steps(
        simulated, "eager", simulated, {"custom": [0, 1, 2]}, [1, 4], ["a", "b"], Sampling()
    )
    for row in times.seconds["custom"].values():
        assert row == pytest.approx({0: 0.01, 1: 0.012, 2: 0.014})
    rounds = [simulated.asked[place : place + 3] for place in range(0, len(simulated.asked), 3)]
    assert all(len({texts for _, _, texts in each}) == 1 for each in rounds)


def test_responses_of_one_token_have_no_steps() -> None:
    with pytest.raises(OutriderError, match=r"counted none with 1 drafts.*eval\.k"):
        simulated = Simulated(length=0)
        time_steps(simulated, "eager", simulated, {"custom": [1]}, [1], ["a"], Sampling())
