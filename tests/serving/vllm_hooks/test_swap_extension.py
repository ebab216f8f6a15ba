"""What a swap loads, by name."""

from types import SimpleNamespace

import torch
from torch import nn

from outrider.serving.vllm_hooks.swap_extension import load_drafter_weights, renew_draft_vocabulary


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
    assert load_drafter_weights(head, weights.items()) == set(weights)
    assert load_drafter_weights(head, [("lm_head.weight", torch.zeros(3, 2))]) == {"lm_head.weight"}


def test_sampled_drafts_of_a_new_vocabulary_are_at_its_tokens():
    """By vLLM's own code, which copies d2t when the engine starts."""
    from vllm.v1.worker.gpu.spec_decode.dspark.speculator import DSparkSpeculator

    d2t = nn.Parameter(torch.tensor([0, 1, 2]), requires_grad=False)  # tokens 0, 2 and 4
    proposer = object.__new__(DSparkSpeculator)
    proposer.model = SimpleNamespace(draft_id_to_target_id=d2t)
    proposer._d2t_scatter_index = torch.arange(3) + d2t
    proposer._draft_scatter_buf = torch.full((2, 8), float("-inf"))
    proposer.draft_logits = torch.zeros(2, 1, 8)
    proposer._step_cols = torch.arange(1)
    proposer.acceptance_estimator = None
    proposer.temperature = proposer.seeds = None
    proposer.use_fp64_gumbel = False
    proposer.draft_watermarker = SimpleNamespace(sample=lambda logits, *_, **__: logits.clone())
    index = proposer._d2t_scatter_index

    def tokens() -> list[int]:
        """Where the logits of the three draft tokens are."""
        at_tokens = proposer._sample_logits(torch.tensor([[1.0, 2.0, 3.0]]), None, torch.ones(1), 0)
        return at_tokens[0].isfinite().nonzero()[:, 0].tolist()

    assert tokens() == [0, 2, 4]
    d2t.data.copy_(torch.tensor([1, 2, 5]))  # tokens 1, 3 and 7, as loading writes them
    renew_draft_vocabulary(proposer)
    assert tokens() == [1, 3, 7]
    assert proposer._d2t_scatter_index is index  # CUDA graphs hold its address
