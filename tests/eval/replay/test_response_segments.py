"""Which tokens are reasoning, in every shape in which R1's responses come."""

from pathlib import Path

import torch

from outrider.eval.replay.response_segments import NAMES, Regions

THINK, END, NEWLINE = 100, 101, 7
REGIONS = Regions(THINK, END)


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


def test_reasoning_ends_with_its_closing_token():
    assert reasoning([1, 2, THINK, NEWLINE], [3, 4, END, 5, 6]) == [4, END]


def test_a_response_cut_while_reasoning_is_all_reasoning():
    assert reasoning([1, 2, THINK, NEWLINE], [3, 4, 5]) == [4, 5]
    assert reasoning([1, 2], [THINK, 4, 5]) == [4, 5]


def test_a_prompt_without_reasoning_or_with_a_closed_one_has_an_answer_only():
    assert reasoning([1, 2], [3, 4, 5]) == []
    assert reasoning([1, THINK, NEWLINE, END], [3, 4, 5]) == []
    assert (
        reasoning([THINK, 1, 1, 1, 1, 1], [3, 4, 5]) == []
    )  # a customer's text far back in the prompt


def test_positions_count_tokens_of_the_response():
    members_AG = REGIONS.members(torch.zeros(3 + 700, dtype=torch.long), 3)
    assert members_AG.sum(dim=0).tolist()[2:] == [
        127,
        384,
        188,
    ]  # the first token comes from the prefill
    assert members_AG[126, 2] and members_AG[127, 3] and members_AG[510, 3] and members_AG[511, 4]


def test_a_target_names_its_tokens(nano_r1: Path):
    regions = Regions.of_target(nano_r1)
    assert (
        regions.think is not None
        and regions.end_think is not None
        and regions.think != regions.end_think
    )
