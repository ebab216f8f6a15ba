"""Decoding token by token with an explicit cache, which every unroll must equal.

    differences(drafter, engine)

Shapes: K depths, T tokens, H hidden, X values that the drafter reads of a token.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds.drafter import Drafter
from outrider.speculators.unroll import Slots, valid_BT
from tests.tiny import HIDDEN, VOCAB

DEPTH = 4
LENGTHS = (9, 14, 3)

Row = tuple[Tensor, Tensor, Tensor, Tensor]


class CachedEngine:
    """Decodes with a key-value cache, one token at a time, and rolls chains back afterwards."""

    ends: TargetEnds

    def first(self, read_X: Tensor) -> Tensor:
        """The state that a chain starts from."""
        return read_X

    def step(
        self, token: int, state: Tensor, position: int, cache: DynamicCache
    ) -> tuple[Tensor, Tensor]:
        """The state that the next step reads, and the state that the head reads."""
        raise NotImplementedError

    def states(self, tokens: list[int], read_TX: Tensor) -> dict[tuple[int, int], Tensor]:
        """u of every (depth, anchor) whose predicted token exists."""
        cache = DynamicCache()
        found = {}
        for i in range(len(tokens) - 2):
            state, u = self.step(tokens[i + 1], self.first(read_TX[i]), i, cache)
            found[0, i] = u
            for s in range(1, DEPTH):
                if i + 2 + s < len(tokens):
                    state, u = self.step(tokens[i + 1 + s], state, i + s, cache)
                    found[s, i] = u
            cache.crop(i + 1)
        return found


def packed_row(width: int = HIDDEN, slots: int = 30) -> Row:
    """Two padded rows: three packed sequences, and the middle one alone.

    Tokens, what is read of them [2, slots, width], sequences and positions.
    """
    torch.manual_seed(3)
    token_BT = torch.randint(0, VOCAB, (2, slots))
    read_BTX = torch.randn(2, slots, width)
    sequence_BT = torch.full((2, slots), -1)
    position_BT = torch.zeros(2, slots, dtype=torch.long)
    start = 0
    for number, length in enumerate(LENGTHS):
        sequence_BT[0, start : start + length] = number
        position_BT[0, start : start + length] = torch.arange(length)
        start += length
    first = LENGTHS[0]
    second = LENGTHS[0] + LENGTHS[1]
    position_BT[1, : LENGTHS[1]] = torch.arange(LENGTHS[1])
    sequence_BT[1, : LENGTHS[1]] = 1
    token_BT[1, : LENGTHS[1]] = token_BT[0, first:second]
    read_BTX[1, : LENGTHS[1]] = read_BTX[0, first:second]
    return token_BT, read_BTX, sequence_BT, position_BT


@torch.no_grad()
def differences(drafter: Drafter, engine: Any, width: int = 2 * HIDDEN) -> Tensor:
    """Largest difference of the states by depth, [K], from `engine.states` of each sequence."""
    row = packed_row(width)
    token_BT, read_BTX, sequence_BT, _ = row
    anchors_N, states = drafter.unroll(engine.ends, Slots(*row, valid_BT(sequence_BT, 0)), DEPTH)
    place = {slot: n for n, slot in enumerate(anchors_N.tolist())}
    worst_K = torch.zeros(DEPTH)
    compared = 0
    for number in range(len(LENGTHS)):
        slots = (sequence_BT[0] == number).nonzero().squeeze(1)
        expected = engine.states(token_BT[0, slots].tolist(), read_BTX[0, slots])
        for (s, i), u in expected.items():
            difference = (states[s][place[int(slots[i])]] - u).abs().max()
            worst_K[s] = torch.maximum(worst_K[s], difference)
            compared += 1
    assert compared == sum(int(valid_BT(sequence_BT, s)[0].sum()) for s in range(DEPTH))
    return worst_K
