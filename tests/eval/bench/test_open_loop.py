"""Open loop: saturation, and figures of blocks."""

import itertools
from collections import Counter
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from outrider.eval.bench.open_loop import (
    customers_arrivals,
    is_saturated,
    measure_rates,
    rate_figures,
    rate_row,
    summarise_rates,
)
from outrider.eval.bench.prompts import HeldoutRequests, ScenarioRequests
from outrider.eval.config import EvalConfig
from outrider.serving.client import Sampling, SpeculationCounters
from outrider.serving.load_generator import BlockResult, RequestResult
from tests.eval.sample_results import queued_block


@pytest.mark.parametrize("seed", range(20))
def test_a_server_that_keeps_up_is_not_saturated_and_one_that_is_overrun_is(seed):
    # 8 seats of 2 s each serve 4 requests a second.
    assert not is_saturated(queued_block(1.0, 2.0, seed=seed))
    assert not is_saturated(queued_block(2.8, 2.0, seed=seed))
    assert is_saturated(queued_block(8.0, 2.0, seed=seed))
    assert is_saturated(queued_block(40.0, 2.0, seed=seed))


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
    flat = [50.0] * 6
    growing = [50.0, 60.0, 90.0, 150.0, 400.0, 900.0]
    last_one_long = [1.0] * 5 + [9.0]
    assert not is_saturated(block(arrivals, flat, last_one_long))
    assert not is_saturated(block(arrivals, growing, [1.0] * 6))
    assert is_saturated(block(arrivals, growing, last_one_long))
    # Requests may overtake each other: it is the last end that counts, not the last request's.
    assert not is_saturated(block(arrivals, growing, [7.0, 1.0, 1.0, 1.0, 1.0, 1.0]))


def test_figures_are_counted_by_hand():
    first = block(
        [0.0, 1.0],
        [100.0, 200.0],
        [1.0, 3.0],
        request_start_s=[0.0, 1.02],
        seconds=4.0,
        output_tokens=30,
        request_tokens=[10, 20],
        request_shares=[1.0, 1.0],
        request_deliveries=[3, 10],
        tpot_ms=[100.0, 147.0],
        itl_ms=[300.0] * 3 + [280.0] * 10,
        counters={"drafts": 13, "accepted_tokens": 15},
    )
    figures = rate_figures(first)
    assert figures.tokens_per_s == pytest.approx(30 / 4) and figures.requests == 2
    assert figures.request_tokens_per_s == pytest.approx(30 / (1 + 3))
    assert figures.acceptance_length == pytest.approx(1 + 15 / 13)
    assert figures.itl_ms.p50 == 280 and figures.ttft_ms.p90 == pytest.approx(190)


def test_ratios_are_of_a_request_s_own_speed_and_paired_by_request():
    slow = queued_block(1.0, 2.0)
    fast = slow | {"request_seconds": [seconds / 1.5 for seconds in slow["request_seconds"]]}
    blocks = {"none": slow, "base": slow, "custom": fast}
    row = rate_row(blocks)
    assert row.custom_over_none == pytest.approx(1.5) and row.base_over_none == 1
    assert row.custom.tokens_per_s == pytest.approx(row.none.tokens_per_s)  # as it was sent
    assert row.arrivals == "log"


@pytest.mark.parametrize("apart", [False, True])
def test_variants_get_the_same_requests_at_the_same_times(apart):
    times = np.cumsum([0, 5, 1, 1, 30, 2, 7, 4, 4, 9]) + 1.7e9
    sent = []
    traffic = [
        ScenarioRequests("chats", [f"prompt {i}" for i in range(10)], times.tolist(), 64, {})
    ]

    def run_block(url, prompts, concurrency, sampling, max_tokens, arrivals):
        """Each request is answered after 0.5 s with 20 tokens."""
        sent.append((url, prompts, arrivals, max_tokens))
        requests = tuple(RequestResult(20, 100.0, (20.0,) * 19, arrival) for arrival in arrivals)
        return BlockResult(
            arrivals[-1] + 0.5,
            requests,
            SpeculationCounters(
                drafts=0,
                draft_tokens=0,
                accepted_tokens=0,
                accepted_per_position=(),
                generation_tokens=0,
            ),
        )

    context = SimpleNamespace(
        settings=EvalConfig(rates=[2, 5], rate_seconds=3), say=lambda line: None
    )
    servers = SimpleNamespace(
        groups=lambda turns: [turns[:1], turns[1:]] if apart else [turns],
        server=lambda mode, variant, drafts: SimpleNamespace(url=variant),
    )
    requests = HeldoutRequests(Sampling(), [], [], traffic)
    plan = {"none": None, "base": 2, "custom": 3}
    load = SimpleNamespace(run_block=run_block)
    blocks = measure_rates(
        context=context, servers=servers, mode="eager", plan=plan, load=load, requests=requests
    )
    assert Counter(url for url, *_ in sent) == dict.fromkeys(("none", "base", "custom"), 2)
    for count in (6, 15):
        seen = [request[1:] for request in sent if len(request[1]) == count]
        assert len(seen) == 3 and all(one == seen[0] for one in seen)
        assert seen[0][0][:10] == traffic[0].texts[:count] and seen[0][2] == 64
    table = summarise_rates(blocks)
    assert list(table["chats"]) == ["2", "5"] and table["chats"]["5"].base.requests == 15


def scaled_literally(times: list[int], count: int, rate: Fraction) -> list[Fraction]:
    """The log's gaps, repeated a mean gap after its end, times one factor, in exact numbers."""
    gaps = [Fraction(b - a) for a, b in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    chosen = []
    while len(chosen) < count - 1:
        place = len(chosen) % (len(gaps) + 1)
        chosen.append(gaps[place] if place < len(gaps) else mean)
    factor = Fraction(count - 1) / rate / sum(chosen)
    return list(itertools.accumulate((gap * factor for gap in chosen), initial=Fraction(0)))


@pytest.mark.parametrize("count", [2, 7, 40, 41, 97])
def test_the_log_s_gaps_are_kept_in_proportion(count):
    random = np.random.default_rng(count)
    rate = Fraction(16, 3)
    times = (1_700_000_000 + np.cumsum(random.integers(0, 5000, 40))).tolist()
    times[5] = times[4]  # two at once
    seconds, source = customers_arrivals(times, count, float(rate), seed=0)
    assert source == "log"
    literal = [float(t) for t in scaled_literally(times, count, rate)]
    assert seconds == pytest.approx(literal, rel=1e-9, abs=1e-9)
    assert (count - 1) / seconds[-1] == pytest.approx(float(rate))


def test_without_times_requests_come_as_a_poisson_process_of_the_seed():
    without = [None] * 50
    for times in (without, [1.7e9, *without], [1.7e9] * 50, [1.7e9], []):
        assert customers_arrivals(times, 30, 2.0, seed=3)[1] == "poisson"
    one, same, other = (customers_arrivals(without, 4000, 2.0, seed=seed)[0] for seed in (3, 3, 4))
    assert one == same != other and one[-1] == pytest.approx(3999 / 2.0)
    gaps = np.diff(one) * 2.0
    assert gaps.min() >= 0 and gaps.std() == pytest.approx(1, abs=0.06)
    assert (gaps > 1).mean() == pytest.approx(np.exp(-1), abs=0.03)
