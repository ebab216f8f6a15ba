"""Flex attention over the prefix against the dense one, in forward.

torch has no backward of flex attention on a CPU.
"""

import pytest
import torch
from torch import Tensor

from outrider.speculators.layers.prefix_attention import (
    BLOCK,
    DensePrefix,
    FlexPrefix,
    Span,
    _blocks,
)

HEADS, D, V = 2, 24, 16


def row(lengths: tuple[int, ...], every: int) -> tuple[Tensor, list[Span], int]:
    """Packed sequences, each with an anchor at every `every`-th token of its last two thirds."""
    places = []
    spans = []
    tokens = 0
    for length in lengths:
        mine = list(range(tokens + length // 3, tokens + length - 2, every))
        spans.append(Span(tokens, tokens + length, len(places), len(places) + len(mine)))
        places += mine
        tokens += length
    return torch.tensor(places), spans, tokens


ROWS = [
    ((300, 40, 9, 500, 131), 1),
    ((700,), 3),
    ((BLOCK, BLOCK, BLOCK), 1),
    ((5, 6, 7), 1),
    ((900, 5), 2),
]


@pytest.mark.parametrize(("lengths", "every"), ROWS)
def test_flex_is_the_dense_attention(lengths: tuple[int, ...], every: int) -> None:
    torch.manual_seed(0)
    place_N, spans, tokens = row(lengths, every)
    q_AND = torch.randn(HEADS, len(place_N), D)
    key_APD = torch.randn(HEADS, tokens, D)
    value_APV = torch.randn(HEADS, tokens, V)
    expected = DensePrefix(place_N, spans)(q_AND, key_APD, value_APV, 0.3)
    found = FlexPrefix(place_N, spans, tokens)(q_AND, key_APD, value_APV, 0.3)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("lengths", "every"), ROWS)
def test_blocks_leave_no_allowed_pair_out_and_claim_none_that_is_not(
    lengths: tuple[int, ...], every: int
) -> None:
    """The GPU kernel skips blocks that are not listed and does not apply the mask in full ones."""
    place_N, spans, tokens = row(lengths, every)
    start_N = torch.cat(
        [torch.full((s.anchor_end - s.anchor_start,), s.token_start) for s in spans]
    )
    token_P = torch.arange(tokens)
    allowed_NP = (token_P >= start_N[:, None]) & (token_P <= place_N[:, None])
    partial_QK, full_QK = _blocks(start_N, place_N, tokens)
    assert not (partial_QK & full_QK).any()
    some_QK = torch.zeros_like(full_QK)
    all_QK = torch.zeros_like(full_QK)
    for q, k in ((q, k) for q in range(full_QK.shape[0]) for k in range(full_QK.shape[1])):
        pairs = allowed_NP[q * BLOCK : (q + 1) * BLOCK, k * BLOCK : (k + 1) * BLOCK]
        some_QK[q, k] = pairs.any()
        all_QK[q, k] = pairs.all() and pairs.shape[1] == BLOCK
    assert not (some_QK & ~(partial_QK | full_QK)).any()
    assert torch.equal(full_QK, all_QK)
