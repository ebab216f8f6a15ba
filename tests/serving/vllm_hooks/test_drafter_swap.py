"""What a swap loads, by name, and the digest of it."""

import pytest
import torch
from torch import nn

from outrider.serving.vllm_hooks import drafter_swap
from outrider.serving.vllm_hooks.drafter_swap import byte_sums, load

MODULUS = 2**64


class Inner(nn.Module):
    """A layer that loads itself, as vLLM's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Linear(2, 2, bias=False)

    def load_weights(self, weights):
        from vllm.model_executor.models.utils import AutoWeightsLoader

        return AutoWeightsLoader(self).load_weights(weights)


class Head(nn.Module):
    def __init__(self, returns: bool) -> None:
        super().__init__()
        self.model, self.lm_head = Inner(), nn.Linear(2, 3, bias=False)
        self.returns = returns

    def load_weights(self, weights):
        from vllm.model_executor.models.utils import AutoWeightsLoader

        names = AutoWeightsLoader(self).load_weights(weights)
        return names if self.returns else None


def test_every_loaded_parameter_is_named() -> None:
    from vllm.model_executor.models.utils import AutoWeightsLoader

    original = AutoWeightsLoader.load_weights
    for returns in (True, False):
        head = Head(returns)
        weights = {"model.norm.weight": torch.ones(2, 2), "lm_head.weight": torch.ones(3, 2)}
        assert load(head, weights.items()) == set(weights)
        assert torch.equal(head.lm_head.weight, torch.ones(3, 2))
        assert load(head, [("lm_head.weight", torch.zeros(3, 2))]) == {"lm_head.weight"}
    assert AutoWeightsLoader.load_weights is original


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
        monkeypatch.setattr(drafter_swap, "_PIECE", piece)
        assert [value % MODULUS for value in byte_sums(flat).tolist()] == expected


@pytest.mark.parametrize("size", [64, 61])
def test_any_changed_bit_changes_them(size: int) -> None:
    flat = torch.randint(0, 256, (size,), dtype=torch.uint8)
    own = byte_sums(flat).tolist()
    for index in range(size):
        for bit in range(8):
            other = flat.clone()
            other[index] ^= 1 << bit
            assert byte_sums(other).tolist() != own
