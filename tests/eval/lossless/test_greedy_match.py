import numpy as np
import pytest

from outrider.eval.lossless.greedy_match import (
    compare_greedy,
    first_difference,
    task_accuracy,
    text_statistics,
)
from outrider.eval.results.verification import Difference


def test_first_difference():
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_only_differences_without_a_near_tie_are_unexplained():
    asked = []

    def gap(response, index, token, other):
        asked.append((response, index, token, other))
        return {1: 0.02, 2: 3.0}[response]

    result = compare_greedy(
        [[1, 2], [1, 2], [1, 2], [1]], [[1, 2], [1, 5], [7, 2], [1, 4]], gap, near_tie_nats=0.5
    )
    assert asked == [(1, 1, 2, 5), (2, 0, 1, 7)]
    assert (result.responses, result.equal, result.near_ties, result.unexplained) == (4, 1, 1, 2)
    assert result.differences[2] == Difference(response=3, token=1, gap_nats=None, near_tie=False)


def test_text_statistics_find_the_tail():
    logprobs = [np.log([0.5, 0.5, 1e-5]), np.log([0.25])]
    result = text_statistics(logprobs)
    assert result.tokens == 4 and result.tail_share == 0.25
    assert result.mean_logprob == pytest.approx(np.mean(np.concatenate(logprobs)))


def test_task_accuracy_is_paired():
    marks = [True, False] * 20
    turned = [not mark for mark in marks]
    for custom, value, equivalent in (
        (marks, 0.0, True),
        (turned, 0.0, False),
        ([True] * 40, 0.5, False),
    ):
        result = task_accuracy(
            {"none": marks, "base": marks, "custom": custom},
            [str(i) for i in range(40)],
            margin=0.1,
        )
        assert result.none.accuracy == 0.5
        difference = result.custom_minus_none
        assert (difference.value, difference.equivalent) == (value, equivalent)
