"""What a swap loads, by name."""

import torch
from torch import nn

from outrider.serving.vllm_hooks.swap_extension import load


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
