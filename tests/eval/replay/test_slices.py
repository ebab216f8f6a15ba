"""Figures of slices against sums by hand."""

import numpy as np
import pytest
import torch

from outrider.eval.replay.regions import NAMES, Regions
from outrider.eval.replay.slices import by_prompt_length, slice_results
from outrider.eval.replay.sums import ReplaySums

K = 2
THINK, END, NEWLINE = 100, 101, 7
REGIONS = Regions(THINK, END)


def sums(steps_RK, sessions, region_tokens_RG=None, region_steps_RGK=None, regions=()):
    steps_RK = np.array(steps_RK, float)
    count = len(steps_RK)
    nothing = np.zeros((count, K, K))
    if region_tokens_RG is None:
        region_tokens_RG = np.zeros((count, 0))
        region_steps_RGK = np.zeros((count, 0, K))
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
    gains, loses = slice_results(base, custom, 2, slices)["tenant"]
    assert gains.ratio.observations == 4
    assert gains.base.value == pytest.approx(46 / 24) and gains.custom.value == pytest.approx(
        46 / 12
    )
    assert gains.ratio.value == pytest.approx(2) and loses.ratio.value == pytest.approx(6 / 8)
    assert slice_results(base, custom, 1, slices)["tenant"][0].ratio.value == pytest.approx(1)


def test_regions_within_responses_and_those_without_a_step():
    regions = [("part", "reasoning"), ("part", "answer"), ("place", "first"), ("place", "nothing")]
    tokens = [[6, 4, 10, 0], [11, 0, 11, 0]]
    base_steps = [[[3, 3], [2, 2], [5, 5], [0, 0]], [[5, 5], [0, 0], [5, 5], [0, 0]]]
    custom_steps = [[[3, 2], [2, 2], [5, 4], [0, 0]], [[5, 2], [0, 0], [5, 2], [0, 0]]]
    base = sums([[5, 5], [5, 5]], ["a", "b"], tokens, base_steps, regions)
    custom = sums([[5, 4], [5, 2]], ["a", "b"], tokens, custom_steps, regions)
    table = slice_results(base, custom, 2, {})
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


def reasoning(prompt, response):
    """The response's tokens that are counted as reasoning, by the anchor before each."""
    members_AG = REGIONS.members(torch.tensor(prompt + response), len(prompt))
    assert members_AG.shape == (max(len(response) - 1, 0), len(NAMES))
    assert members_AG[:, :2].sum(dim=1).eq(1).all() and members_AG[:, 2:].sum(dim=1).eq(1).all()
    return [
        token
        for token, is_reasoning in zip(response[1:], members_AG[:, 0].tolist(), strict=True)
        if is_reasoning
    ]


@pytest.mark.parametrize(
    ("prompt", "response", "found"),
    [
        ([1, 2, THINK, NEWLINE], [3, 4, END, 5, 6], [4, END]),
        # A response that was cut while reasoning is all reasoning.
        ([1, 2, THINK, NEWLINE], [3, 4, 5], [4, 5]),
        ([1, 2], [THINK, 4, 5], [4, 5]),
        # Without reasoning, or with one that the prompt closes, it is an answer only.
        ([1, 2], [3, 4, 5], []),
        ([1, THINK, NEWLINE, END], [3, 4, 5], []),
        ([THINK, 1, 1, 1, 1, 1], [3, 4, 5], []),  # a customer's text far back in the prompt
    ],
)
def test_reasoning_ends_with_its_closing_token(prompt, response, found):
    assert reasoning(prompt, response) == found


def test_positions_count_tokens_of_the_response():
    members_AG = REGIONS.members(torch.zeros(3 + 3000, dtype=torch.long), 3)
    # The first token comes from the prefill.
    assert members_AG.sum(dim=0).tolist()[2:] == [127, 384, 1536, 952]
    assert members_AG[126, 2] and members_AG[127, 3] and members_AG[510, 3] and members_AG[511, 4]


def test_a_target_names_its_tokens(nano_r1):
    regions = Regions.of_target(nano_r1)
    assert (
        regions.think is not None
        and regions.end_think is not None
        and regions.think != regions.end_think
    )
