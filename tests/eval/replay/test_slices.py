"""Figures of slices against sums by hand."""

import numpy as np
import pytest

from outrider.common.jackknife import LEAST_SESSIONS
from outrider.eval.replay.replay import ReplaySums
from outrider.eval.replay.slices import by_prompt_length, sliced

K = 2


def sums(steps_RK, sessions, region_tokens_RG=None, region_steps_RGK=None, regions=()):
    steps_RK = np.array(steps_RK, float)
    count = len(steps_RK)
    nothing = np.zeros((count, K, K))
    if region_tokens_RG is None:
        region_tokens_RG, region_steps_RGK = np.zeros((count, 0)), np.zeros((count, 0, K))
    return ReplaySums(
        *(
            [f"q{i}" for i in range(count)],
            sessions,
            [""] * count,
            np.arange(10.0, 10 + count),
            steps_RK,
            nothing,
        ),
        *(np.array(region_tokens_RG, float), np.array(region_steps_RGK, float)),
        regions=regions,
    )


def test_a_slice_is_a_ratio_of_its_own_sums():
    sessions = [f"s{i}" for i in range(8)]
    base = sums([[9, 6]] * 8, sessions)
    custom = sums([[9, 3]] * 4 + [[9, 8]] * 4, sessions)
    slices = {
        "tenant": {
            "gains": ["q0", "q1", "q2", "q3", "elsewhere"],
            "loses": ["q4", "q5", "q6", "q7"],
        }
    }
    gains, loses = sliced(base, custom, 2, slices)["tenant"]
    assert gains.ratio.observations == 4
    assert gains.base.value == pytest.approx(46 / 24) and gains.custom.value == pytest.approx(
        46 / 12
    )
    assert gains.ratio.value == pytest.approx(2) and loses.ratio.value == pytest.approx(6 / 8)
    assert sliced(base, custom, 1, slices)["tenant"][0].ratio.value == pytest.approx(1)


def test_an_interval_needs_sessions_and_is_over_them():
    steps = [[4, 2 + i] for i in range(10)]
    base = sums([[4, 6]] * 10, ["same"] * 5 + [f"s{i}" for i in range(5)])
    custom = sums(steps, base.sessions)
    slices = {
        "route": {
            "one session": [f"q{i}" for i in range(5)],
            "five": [f"q{i}" for i in range(5, 10)],
        }
    }
    one, five = sliced(base, custom, 2, slices)["route"]
    assert one.ratio.clusters == 1 and one.ratio.low is None
    assert (
        five.ratio.clusters == LEAST_SESSIONS
        and five.ratio.low < five.ratio.value < five.ratio.high
    )


def test_regions_within_responses_and_those_without_a_step():
    regions = [("part", "reasoning"), ("part", "answer"), ("place", "first"), ("place", "nothing")]
    tokens = [[6, 4, 10, 0], [11, 0, 11, 0]]
    base_steps = [[[3, 3], [2, 2], [5, 5], [0, 0]], [[5, 5], [0, 0], [5, 5], [0, 0]]]
    custom_steps = [[[3, 2], [2, 2], [5, 4], [0, 0]], [[5, 2], [0, 0], [5, 2], [0, 0]]]
    base = sums([[5, 5], [5, 5]], ["a", "b"], tokens, base_steps, regions)
    custom = sums([[5, 4], [5, 2]], ["a", "b"], tokens, custom_steps, regions)
    table = sliced(base, custom, 2, {})
    assert set(table) == {"part"}  # `place` has a single part with steps
    reasoning, answer = table["part"]
    assert reasoning.ratio.observations == 2 and answer.ratio.observations == 1
    assert reasoning.ratio.value == pytest.approx(8 / 4) and answer.ratio.value == pytest.approx(1)


def test_prompt_lengths_are_binned_from_the_shortest():
    table = by_prompt_length({"a": 5000, "b": 256, "c": 257, "d": 10**6})
    assert table == {
        "up to 256 tokens": ["b"],
        "up to 1,024 tokens": ["c"],
        "up to 16,384 tokens": ["a"],
        "beyond 16,384": ["d"],
    }
