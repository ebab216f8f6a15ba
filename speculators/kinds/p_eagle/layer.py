"""The P-EAGLE head as a module (vLLM 0.32: `parallel_drafting`).

    slot 0 at anchor i     fc(a_i) and token t_{i+1}, position i, as EAGLE-3's first draft
    slot s = 1 .. K-1      fc(mask_hidden) and the mask token, position i + s
    u_{i,s}                one layer over all slots, causal: slot s sees the states up to i and the
                           slots before it; q_{i+2+s} = softmax(W_D u_{i,s})

All slots are computed in one pass. No draft is read, so the drafts depend only on the anchor, and
the unroll matches the engine whichever drafts are accepted. Shapes: as in eagle3/layer.py.
"""

import torch
from torch import Tensor, nn

from outrider.speculators.kinds.eagle3.layer import EagleHead
from outrider.speculators.kinds.eagle3.shape import EagleShape


class ParallelHead(EagleHead):
    """An EAGLE-3 head with a learned state for mask slots."""

    def __init__(self, shape: EagleShape, target_ids_D: Tensor | None):
        super().__init__(shape, target_ids_D)
        self.mask_hidden = nn.Parameter(torch.empty(1, 1, shape.states))
        self.mask_token = shape.mask_token

    def finish_layer(self, x_NX: Tensor, attended_ANV: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the next slot's state [1, H] and the head's input."""
        _, u_NH = super().finish_layer(x_NX, attended_ANV)
        # The stored state holds all auxiliary states and goes through `fc` (vLLM 0.32:
        # v1/spec_decode/llm_base_proposer.py:1411).
        return self.first_state(self.mask_hidden[0]), u_NH
