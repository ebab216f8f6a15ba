"""Swaps of weights take a bounded share of the time."""

import pytest

from outrider.eval.bench.alternation import SHARE_OF_SWAPS, alternation


@pytest.mark.parametrize("swap", [0.001, 0.03, 0.5, 12.0, 60.0])
@pytest.mark.parametrize("request_s", [0.5, 2.0, 30.0])
def test_a_turn_is_the_shortest_whose_swaps_take_a_tenth(swap: float, request_s: float) -> None:
    def share(requests: int) -> float:
        return swap / (swap + requests * request_s)

    turn = alternation(swap, request_s)
    assert share(turn) <= SHARE_OF_SWAPS + 1e-9
    assert turn == 1 or share(turn - 1) > SHARE_OF_SWAPS
