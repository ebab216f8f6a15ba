"""The sums of a tensor on an accelerator change with every bit and every exchange of places."""

import pytest
import torch

from outrider.serving.vllm_hooks import drafter_digest
from outrider.serving.vllm_hooks.drafter_swap import byte_sums

MODULUS = 2**64


@pytest.mark.parametrize("size", [64, 61])
def test_sums_are_those_of_the_definition_in_any_number_of_pieces(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = torch.randint(0, 256, (size,), dtype=torch.uint8)
    width = 8 if size % 8 == 0 else 1
    data = flat.numpy().tobytes()
    words = [
        int.from_bytes(data[i : i + width], "little", signed=width == 8)
        for i in range(0, size, width)
    ]
    expected = [
        sum(words) % MODULUS,
        sum(word * (place * 2654435761 | 1) for place, word in enumerate(words)) % MODULUS,
    ]
    for piece in (2**24, 3):
        monkeypatch.setattr(drafter_digest, "_PIECE", piece)
        assert [value % MODULUS for value in byte_sums(flat).tolist()] == expected


@pytest.mark.parametrize("size", [64, 61])
def test_any_changed_bit_and_any_two_words_that_trade_places_change_them(size: int) -> None:
    flat = torch.randint(0, 256, (size,), dtype=torch.uint8)
    own = byte_sums(flat).tolist()
    for index in range(size):
        for bit in range(8):
            other = flat.clone()
            other[index] ^= 1 << bit
            assert byte_sums(other).tolist() != own
    width = 8 if size % 8 == 0 else 1
    words = flat.view(-1, width)
    for one in range(len(words)):
        for two in range(one):
            if not torch.equal(words[one], words[two]):
                other = words.clone()
                other[[one, two]] = other[[two, one]]
                assert byte_sums(other.view(-1)).tolist() != own
