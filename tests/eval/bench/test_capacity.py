"""The search for the highest rate within limits, on simulated queues."""

from types import SimpleNamespace

import numpy as np
import pytest

from outrider.eval.bench import capacity as module
from outrider.eval.bench.capacity import (
    BLOCK_SECONDS,
    CLOSE,
    LEAST_SENT,
    LatencyLimits,
    limits_of,
    measure_capacity,
    summarise_capacity,
)
from outrider.eval.bench.prompts import HeldoutRequests, ScenarioRequests
from outrider.eval.config import CostConfig, EvalConfig, SloConfig
from outrider.eval.results.parts import VARIANTS
from outrider.eval.summary import price_capacity
from outrider.serving.client import Sampling
from tests.eval.sample_results import queued_block, sample_blocks

SECONDS_EACH = {"none": 2.0, "base": 1.6, "custom": 1.0}
"""Service times: 8 seats serve 4, 5 and 8 requests a second."""
LIMITS = LatencyLimits(ttft_ms=400.0, tpot_ms=1000.0, source="eval.slo")


class Endpoint:
    """Servers, clock and load generator in one; blocks take as long as the queue does."""

    def __init__(self, monkeypatch, minutes: float, apart: bool = False) -> None:
        self.now = 0.0
        self.sent: list[tuple[str, float, int]] = []
        self.apart = apart
        self.settings = EvalConfig(
            capacity_minutes=minutes, slo=SloConfig(ttft_ms=400, tpot_ms=1000), concurrency=[1, 8]
        )
        monkeypatch.setattr(module, "timed_block", self.block)
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)

    def groups(self, turns):
        return [[turn] for turn in turns] if self.apart else [turns]

    def server(self, mode, variant, drafts):
        return SimpleNamespace(url=variant)

    def block(self, url, load, scenario, rate, count, sampling):
        self.sent.append((url, rate, count))
        block = queued_block(rate, SECONDS_EACH[url], count=count, seed=len(self.sent))
        self.now += block["seconds"]
        return block

    def measure(self):
        everything = ScenarioRequests("all", ["a"], [None], 64, {})
        closed = [{**block, "output_tokens": 80 * len(block["request_tokens"])} for block in CLOSED]
        blocks = measure_capacity(
            context=SimpleNamespace(settings=self.settings, say=lambda line: None),
            servers=self,
            mode="eager",
            plan={"none": None, "base": 2, "custom": 3},
            load=None,
            requests=HeldoutRequests(Sampling(), [], [], everything=everything),
            closed=closed,
        )
        return summarise_capacity(blocks, limits_of(self.settings, closed))


CLOSED = sample_blocks(1.4)


@pytest.mark.parametrize("apart", [False, True])
def test_each_variant_s_capacity_lies_between_its_ends(monkeypatch, apart) -> None:
    endpoint = Endpoint(monkeypatch, minutes=60, apart=apart)
    found = endpoint.measure()
    for variant, seconds in SECONDS_EACH.items():
        own = found.of(variant)
        full = 8 / seconds  # of all seats; bursts need some of them to be free
        assert own.within < own.beyond <= CLOSE * own.within
        assert 0.5 * full < own.within < full
        # Below saturation, an endpoint delivers what is asked of it: 60 to 119 tokens a request.
        assert own.tokens_per_s == pytest.approx(90 * own.within, rel=0.25)
        assert own.saturated is None or own.saturated > own.within
    assert all(
        count >= max(LEAST_SENT, rate * BLOCK_SECONDS - 1) for _, rate, count in endpoint.sent
    )
    if not apart:
        assert [variant for variant, *_ in endpoint.sent[:6]] == [*VARIANTS, *VARIANTS[1:], "none"]


@pytest.mark.parametrize("minutes", [0.5, 2, 5])
def test_the_search_ends_when_its_time_is_used(monkeypatch, minutes) -> None:
    endpoint = Endpoint(monkeypatch, minutes)
    found = endpoint.measure()
    longest = max(count / rate for _, rate, count in endpoint.sent) if endpoint.sent else 0
    assert endpoint.now <= 60 * minutes + 3 * longest  # one block, and the queue that it leaves
    assert sum(found.of(variant).blocks for variant in VARIANTS) == len(endpoint.sent)


def test_nothing_is_claimed_of_rates_that_were_not_measured() -> None:
    fast = {**queued_block(1.0, 2.0), "rate": 1.0}
    slow = {**queued_block(40.0, 2.0), "rate": 40.0}
    found = summarise_capacity({"none": [], "base": [fast], "custom": [slow]}, LIMITS)
    ends = {variant: (found.of(variant).within, found.of(variant).beyond) for variant in VARIANTS}
    assert ends == {"none": (None, None), "base": (1.0, None), "custom": (None, 40.0)}
    assert found.custom.saturated == 40 and found.custom.tokens_per_s is None
    prices = price_capacity(found, CostConfig(gpu_hour_price=3.6), gpus=8).per_million_tokens
    assert (prices.none, prices.custom) == (None, None)
    assert prices.base == pytest.approx(8000 / found.base.tokens_per_s)
    # A rate above one that failed does not count, however it went.
    lucky = {**fast, "rate": 50.0}
    found = summarise_capacity({"none": [], "base": [], "custom": [fast, slow, lucky]}, LIMITS)
    assert (found.custom.within, found.custom.beyond) == (1.0, 40.0)


def test_limits_that_are_not_set_are_those_without_speculation() -> None:
    settings = EvalConfig(concurrency=[1, 8])
    none = [block for block in CLOSED if block["variant"] == "none" and block["concurrency"] == 1]
    found = limits_of(settings, CLOSED)
    expected = np.percentile(np.concatenate([block["ttft_ms"] for block in none]), 95)
    assert found.ttft_ms == pytest.approx(expected)
    assert found.source == "no speculation, concurrency 1"
    tight = settings.model_copy(update={"slo": SloConfig(tpot_ms=20)})
    assert limits_of(tight, CLOSED) == LatencyLimits(
        found.ttft_ms, 20, "eval.slo.tpot_ms, else no speculation, concurrency 1"
    )
    assert not LatencyLimits(1e9, 1.0, "").hold(none[0]) and not LatencyLimits(0.1, 1e9, "").hold(
        none[0]
    )
    assert LatencyLimits(1e9, 1e9, "").hold(none[0])
