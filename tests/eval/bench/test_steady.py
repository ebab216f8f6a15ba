"""Speed of a closed loop while all its requests are in flight, against a loop that never ends."""

import numpy as np
import pytest

from outrider.eval.bench.closed_loop import record_of
from outrider.eval.bench.metrics import pool_blocks
from outrider.serving.client import SpeculationCounters
from outrider.serving.load_generator import BlockResult, RequestResult

NOTHING = SpeculationCounters(
    drafts=0, draft_tokens=0, accepted_tokens=0, accepted_per_position=(), generation_tokens=0
)


def loop(tokens: list[int], slots: int, a_step: float, a_row: float, length: float) -> BlockResult:
    # A step of B requests takes `a_step` + B `a_row` seconds.
    running: dict[int, list[float]] = {}
    waiting = [*range(len(tokens))][::-1]
    found = {}
    now = 0.0
    while waiting or running:
        while waiting and len(running) < slots:
            running[waiting.pop()] = [now]
        now += a_step + a_row * len(running)
        for index, times in [*running.items()]:
            times.append(now)
            if (len(times) - 2) * length + 1 >= tokens[index]:
                start, first_ms, *itl_ms = times[0], *(1000 * np.diff(times))
                found[index] = RequestResult(tokens[index], first_ms, tuple(itl_ms), start)
                del running[index]
    return BlockResult(now, tuple(found[index] for index in range(len(tokens))), NOTHING)


def test_only_full_batches_are_counted_of_two_requests_by_hand() -> None:
    # The second ends after 2 s and no third one follows: one more delivery of the first is left.
    long = RequestResult(5, 1000.0, (1000.0, 1000.0))
    short = RequestResult(3, 500.0, (1500.0,))
    seconds = pytest.approx((0.5 + 1.0 + 0.5 + 1.5) / 2)
    assert BlockResult(3.0, (long, short), NOTHING).steady(2) == ([0.5, 1.0], seconds)


@pytest.mark.parametrize("slots", [8, 64])
def test_speculation_gains_in_short_blocks_what_it_gains_in_endless_ones(slots: int) -> None:
    # Lengths differ widely, and drafts make every row of a batch dearer.
    random = np.random.default_rng(0)
    variants = [(10.0, 0.1, 1.0), (12.0, 0.4, 2.2)]

    def gains(counts: list[int]) -> np.ndarray:
        none, custom = (loop(counts, slots, *each) for each in variants)
        steady = [pool_blocks([record_of([each], slots)]).tokens_per_s for each in (none, custom)]
        return np.array([none.seconds / custom.seconds, steady[1] / steady[0]])

    lengths = np.exp(random.normal(4, 0.8, 40 * slots)).astype(int) + 2
    blocks = random.choice(lengths, (max(240 // slots, 8), 2 * slots))
    found = np.exp(np.mean([np.log(gains([*block])) for block in blocks], axis=0))
    of_whole, of_steady = found / gains([*lengths])[1] - 1
    assert abs(of_steady) < 0.02 < 0.05 < of_whole
