"""Speed of a closed loop while all its requests are in flight, against a loop that never ends."""

import numpy as np
import pytest

from outrider.eval.bench.closed_loop import record_of
from outrider.eval.bench.metrics import pooled
from outrider.serving.client import SpeculationCounters
from outrider.serving.load_generator import BlockResult, RequestResult

NOTHING = SpeculationCounters(0, 0, 0, (), 0)


def loop(tokens: list[int], slots: int, a_step: float, a_row: float, length: float) -> BlockResult:
    """Serves one request after another in `slots` slots.

    A step of B requests takes `a_step` + B `a_row` seconds and gives each `length` tokens.
    """
    waiting = [*enumerate(tokens)][::-1]
    running: dict[int, list[float]] = {}
    found, now = {}, 0.0
    while waiting or running:
        while waiting and len(running) < slots:
            running[waiting[-1][0]] = [now]
            waiting.pop()
        now += a_step + a_row * len(running)
        for index, times in [*running.items()]:
            times.append(now)
            if (len(times) - 2) * length + 1 >= tokens[index]:
                start, first, *_ = times
                itl_ms = tuple(1000 * np.diff(times[1:]))
                found[index] = RequestResult(tokens[index], 1000 * (first - start), itl_ms, start)
                del running[index]
    return BlockResult(now, tuple(found[index] for index in range(len(tokens))), NOTHING)


def test_only_full_batches_are_counted_of_two_requests_by_hand() -> None:
    # The second ends after 2 s and no third one follows: one more delivery of the first is left.
    long, short = RequestResult(5, 1000.0, (1000.0, 1000.0)), RequestResult(3, 500.0, (1500.0,))
    block = BlockResult(3.0, (long, short), NOTHING)
    assert block.steady(2) == ([0.5, 1.0], pytest.approx((0.5 + 1.0 + 0.5 + 1.5) / 2))
    # One at a time, all of them are.
    turns = BlockResult(5.0, (long, RequestResult(3, 500.0, (1500.0,), 3.0)), NOTHING)
    assert turns.steady(1) == ([1.0, 1.0], pytest.approx(5.0))


@pytest.mark.parametrize("slots", [8, 64])
def test_speculation_gains_in_short_blocks_what_it_gains_in_endless_ones(slots: int) -> None:
    """Lengths differ widely, and drafts make every row of a batch dearer."""
    random = np.random.default_rng(0)
    variants = {"none": (10.0, 0.1, 1.0), "custom": (12.0, 0.4, 2.2)}

    def tokens_per_s(variant: str, counts: list[int]) -> tuple[float, float]:
        block = loop(counts, slots, *variants[variant])
        whole = sum(counts) / block.seconds
        return whole, pooled([record_of([block], slots)]).tokens_per_s

    lengths = np.exp(random.normal(4, 0.8, 40 * slots)).astype(int) + 2
    _, endless = np.array([tokens_per_s(name, [*lengths]) for name in variants]).T
    logs = []
    for _ in range(max(240 // slots, 8)):
        counts = [*random.choice(lengths, 2 * slots)]
        both = np.array([tokens_per_s(name, counts) for name in variants])
        logs.append(np.log(both[1] / both[0]))
    of_whole, of_steady = np.exp(np.mean(logs, axis=0)) * endless[0] / endless[1] - 1
    assert abs(of_steady) < 0.02 < 0.05 < of_whole
