"""What a swap loads, by name."""

import torch
from torch import nn

from outrider.serving.vllm_hooks.swap_extension import load


class Head(nn.Module):
    """Returns no names, as vLLM's models with an EAGLE-3 head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Linear(2, 2, bias=False)
        self.lm_head = nn.Linear(2, 3, bias=False)

    def load_weights(self, weights):
        from vllm.model_executor.models.utils import AutoWeightsLoader

        AutoWeightsLoader(self).load_weights(weights)


def test_every_loaded_parameter_is_named() -> None:
    head = Head()
    weights = {"norm.weight": torch.ones(2, 2), "lm_head.weight": torch.ones(3, 2)}
    assert load(head, weights.items()) == set(weights)
    assert load(head, [("lm_head.weight", torch.zeros(3, 2))]) == {"lm_head.weight"}
