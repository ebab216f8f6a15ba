"""How step times follow from counters. Real servers are timed in test_evaluate.py."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from outrider.common.errors import OutriderError
from outrider.eval.bench.step_times import time_steps
from outrider.eval.results.parts import DRAFTERS
from outrider.serving.client import Sampling, SpeculationCounters
from outrider.serving.speculator import Speculator

MTP = dict.fromkeys(DRAFTERS, Speculator("mtp"))
COUNTED = SpeculationCounters(
    drafts=0, draft_tokens=0, accepted_tokens=0, accepted_per_position=(), generation_tokens=0
)


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

    def run_block(self, url, prompts, concurrency, sampling, max_tokens):
        variant, number, _ = self.asked[-1]
        self.asked[-1] = (variant, number, tuple(prompts))
        busy = 3 if len(self.asked) % 7 == 0 else 1  # some blocks share the machine
        steps = self.length * len(prompts)
        counters = replace(
            COUNTED, drafts=steps if number else 0, generation_tokens=steps + len(prompts)
        )
        request = SimpleNamespace(itl_ms=(1000 * busy * (0.01 + 0.002 * number),) * self.length)
        return SimpleNamespace(requests=[request] * len(prompts), counters=counters)


def test_every_number_answers_the_same_prompts_and_busy_rounds_are_left_out() -> None:
    simulated = Simulated()
    times = time_steps(
        servers=simulated,
        mode="eager",
        load=simulated,
        numbers={"custom": [0, 1, 2]},
        batch_sizes={"custom": [1, 4]},
        prompts=["a", "b"],
        sampling=Sampling(),
        speculators=MTP,
    )
    for row in times.seconds["custom"].values():
        assert row == pytest.approx({0: 0.01, 1: 0.012, 2: 0.014})
    rounds = [simulated.asked[place : place + 3] for place in range(0, len(simulated.asked), 3)]
    assert all(len({texts for _, _, texts in each}) == 1 for each in rounds)


def test_responses_of_one_token_have_no_steps() -> None:
    with pytest.raises(OutriderError, match=r"counted none with 1 drafts.*eval\.k"):
        simulated = Simulated(length=0)
        time_steps(
            servers=simulated,
            mode="eager",
            load=simulated,
            numbers={"custom": [1]},
            batch_sizes={"custom": [1]},
            prompts=["a"],
            sampling=Sampling(),
            speculators=MTP,
        )
