"""Open loop: saturation, figures of blocks, and resuming an interrupted measurement."""

from types import SimpleNamespace

import numpy as np
import pytest

from outrider.eval.bench.measurement_cache import Steps
from outrider.eval.bench.open_loop import (
    measure_rates,
    offered_and_achieved,
    rate_row,
    rates_done,
    saturated,
    summarise_rates,
    variant_figures,
)
from outrider.eval.bench.scenarios import Traffic
from outrider.eval.config import EvalConfig
from outrider.eval.stats.speed_ratio import BlockNoise
from outrider.serving.client import Sampling, SpeculationCounters
from outrider.serving.load_generator import BlockResult, RequestResult
from tests.eval.sample_results import EVALUATION, QUIET, queued_block


@pytest.mark.parametrize("seed", range(20))
def test_a_server_that_keeps_up_is_not_saturated_and_one_that_is_overrun_is(seed):
    # 8 seats of 2 s each serve 4 requests a second.
    assert not saturated(queued_block(1.0, 2.0, seed=seed))
    assert not saturated(queued_block(2.8, 2.0, seed=seed))
    assert saturated(queued_block(8.0, 2.0, seed=seed))
    assert saturated(queued_block(40.0, 2.0, seed=seed))


def block(arrivals, ttft_ms, latencies, **others):
    """An open-loop block whose requests take `latencies` seconds, sent on time."""
    return {
        "arrivals_s": arrivals,
        "request_start_s": arrivals,
        "ttft_ms": ttft_ms,
        "request_seconds": latencies,
    } | others


def test_neither_half_of_the_rule_is_enough():
    arrivals = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    flat, growing = [50.0] * 6, [50.0, 60.0, 90.0, 150.0, 400.0, 900.0]
    last_one_long = [1.0] * 5 + [9.0]
    assert offered_and_achieved(block(arrivals, flat, last_one_long)) == pytest.approx(
        (1.0, 5 / 13)
    )
    assert not saturated(block(arrivals, flat, last_one_long))
    assert offered_and_achieved(block(arrivals, growing, [1.0] * 6)) == pytest.approx((1.0, 1.0))
    assert not saturated(block(arrivals, growing, [1.0] * 6))
    assert saturated(block(arrivals, growing, last_one_long))
    # Requests may overtake each other: it is the last end that counts, not the last request's.
    assert offered_and_achieved(block(arrivals, flat, [7.0, 1.0, 1.0, 1.0, 1.0, 1.0]))[
        1
    ] == pytest.approx(5 / 5)


def test_figures_are_pooled_and_counted_by_hand():
    first = block(
        [0.0, 1.0],
        [100.0, 200.0],
        [1.0, 3.0],
        seconds=4.0,
        output_tokens=30,
        request_tokens=[10, 20],
        request_deliveries=[3, 10],
        tpot_ms=[100.0, 147.0],
        itl_ms=[300.0] * 3 + [280.0] * 10,
        counters={"drafts": 13, "accepted_tokens": 15, "accepted_per_position": [10, 5]},
        source="log",
    )
    second = first | {"request_start_s": [0.0, 1.02], "request_seconds": [1.0, 5.0], "seconds": 6.0}
    figures = variant_figures([first, second])
    assert figures["tokens_per_s"] == pytest.approx(60 / 10)
    assert figures["request_tokens_per_s"] == pytest.approx(60 / (1 + 3 + 1 + 5))
    assert figures["acceptance_length"] == pytest.approx(1 + 30 / 26)
    assert figures["requests"] == 4
    assert figures["itl_ms"]["p50"] == 280 and figures["ttft_ms"]["p90"] == pytest.approx(200)


def test_ratios_are_of_a_request_s_own_speed_and_paired_by_request():
    slow = queued_block(1.0, 2.0)
    fast = slow | {"request_seconds": [seconds / 1.5 for seconds in slow["request_seconds"]]}
    row = rate_row({"none": [slow], "base": [slow], "custom": [fast]}, EVALUATION, QUIET)
    assert row["custom_over_none"]["value"] == pytest.approx(1.5)
    assert row["custom_over_none"]["low"] == pytest.approx(1.5) and row["custom_over_none"][
        "high"
    ] == pytest.approx(1.5)
    assert row["custom"]["tokens_per_s"] == row["none"]["tokens_per_s"], (
        "all together are what was sent"
    )
    assert row["arrivals"] == "log"


def test_a_rate_measured_once_has_the_closed_loop_s_noise_and_one_measured_twice_its_own(tmp_path):
    steps, seen = Steps(tmp_path, {}), Traffic("chats", ["a prompt"], [0.0], 64, {})
    closed_loop = {name: BlockNoise(0.04, 6) for name in QUIET}

    def ratio(repeats, speeds):
        for repeat, speed in enumerate(speeds):
            for variant in ("none", "base", "custom"):
                block = queued_block(2.0, 2.0)
                if variant == "custom":
                    block["request_seconds"] = [
                        seconds * speed for seconds in block["request_seconds"]
                    ]
                steps.put(f"rate_eager_chats_2_{repeat}_{variant}", block)
        evaluation = EvalConfig(
            rates=[2], rate_seconds=30, rate_repeats=repeats, bootstrap_samples=50
        )
        return summarise_rates(steps, "eager", [seen], evaluation, closed_loop)["chats"]["2"][
            "custom_over_base"
        ]

    once, alike, unlike = ratio(1, [1.0]), ratio(2, [1.0, 1.0]), ratio(2, [0.8, 1.2])
    assert once["high"] == pytest.approx(np.exp(2.446912 * 0.2)) and once["low"] == pytest.approx(
        1 / once["high"]
    )
    assert alike["high"] == pytest.approx(1) and unlike["high"] > 4


class Load:
    """Answers each request after 0.5 s with 20 tokens; a fourth block fails."""

    def __init__(self, fails_at=None):
        self.sent, self.fails_at = [], fails_at

    def run_block(self, url, prompts, concurrency, sampling, max_tokens):
        return self.run_timed(
            url, prompts, [0.0] * len(prompts), sampling, max_tokens, warm_up=True
        )

    def run_timed(self, url, prompts, arrivals, sampling, max_tokens, warm_up=False):
        if not warm_up:
            if len(self.sent) == self.fails_at:
                raise KeyboardInterrupt
            self.sent.append((url, prompts, arrivals, max_tokens))
        requests = tuple(RequestResult(20, 100.0, (20.0,) * 19, arrival) for arrival in arrivals)
        counters = SpeculationCounters(0, 0, 0, (), 0)
        return BlockResult(arrivals[-1] + 0.5, requests, counters)


@pytest.mark.parametrize("groups", [(("none", "base", "custom"),), (("none",), ("base", "custom"))])
def test_variants_get_the_same_requests_and_an_interruption_keeps_whole_blocks(tmp_path, groups):
    evaluation = EvalConfig(rates=[2, 5], rate_seconds=3, rate_repeats=2, bootstrap_samples=50)
    times = np.cumsum([0, 5, 1, 1, 30, 2, 7, 4, 4, 9]) + 1.7e9
    traffic = [Traffic("chats", [f"prompt {i}" for i in range(10)], times.tolist(), 64, {})]
    fresh = set()
    fleet = SimpleNamespace(
        groups=groups,
        server=lambda variant: SimpleNamespace(url=variant),
        is_fresh=lambda variant: variant not in fresh and not fresh.add(variant),
    )
    arguments = ("eager", traffic, Sampling(), evaluation, lambda line: None)

    interrupted = Load(fails_at=4)
    with pytest.raises(KeyboardInterrupt):
        measure_rates(Steps(tmp_path, "inputs"), fleet, interrupted, *arguments)
    kept = len(list(tmp_path.glob("rate_*.json")))
    assert kept == (3 if len(groups) == 1 else 4)  # variants of one engine are kept together

    load = Load()
    steps = Steps(tmp_path, "inputs")
    assert not rates_done(steps, "eager", traffic, evaluation)
    measure_rates(steps, fleet, load, *arguments)
    assert len(load.sent) == 2 * 2 * 3 - kept and rates_done(steps, "eager", traffic, evaluation)
    measure_rates(steps, fleet, load, *arguments)
    assert len(load.sent) == 2 * 2 * 3 - kept

    sent = interrupted.sent[:kept] + load.sent
    assert {
        variant: sum(url == variant for url, *_ in sent) for variant in ("none", "base", "custom")
    } == dict.fromkeys(("none", "base", "custom"), 4)
    for count in (6, 15):
        seen = [request[1:] for request in sent if len(request[1]) == count]
        assert len(seen) == 6 and all(one == seen[0] for one in seen)
        assert seen[0][0][:10] == traffic[0].texts[:count] and seen[0][2] == 64
    table = summarise_rates(steps, "eager", traffic, evaluation, QUIET)
    assert list(table["chats"]) == ["2", "5"]
    row = table["chats"]["5"]
    assert row["base"]["requests"] == 30
    assert (
        row["base"]["request_tokens_per_s"] == pytest.approx(20 / 0.48)
        and row["base"]["acceptance_length"] == 1
    )
