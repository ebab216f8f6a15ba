"""Rounds of a server's turn. tests/eval/bench/test_step_timing.py times real servers in turn."""

import pytest

from outrider.eval.bench.kind_steps import rounds
from outrider.serving.vllm_hooks.step_recorder import RUN, Step


def steps(*drafts: int, seconds: float = 0.01) -> list[Step]:
    """Steps of two requests that only decode."""
    return [Step(seconds + 0.001 * n, 2, k, 2 * (k + 1), 0, 0, True) for n, k in enumerate(drafts)]


def test_a_server_with_one_number_of_drafts_has_a_round_every_few_steps() -> None:
    found = rounds(steps(*[4] * (2 * RUN + 3)), 2, [4])
    assert len(found) == 2 and all(len(row) == 1 for row in found)
    # The first step follows none like it, so rounds begin with the second.
    times = [0.01 + 0.001 * n for n in range(1, 2 * RUN + 3)]
    assert found[0][0] == pytest.approx((times[3] + times[4]) / 2)
    assert rounds(steps(*[4] * RUN), 2, [4]) == []  # too few
    assert rounds(steps(*[4] * 20), 3, [4]) == []  # of another number of requests


def test_a_rotating_server_has_a_round_for_each_rotation() -> None:
    found = rounds(steps(*([1] * RUN + [2] * RUN) * 2), 2, [1, 2])
    assert len(found) == 2 and all(None not in row for row in found)
    assert found[0][0] < found[0][1] < found[1][0]
