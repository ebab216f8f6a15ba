"""The DSpark head as a module (vLLM 0.32: qwen3_dspark.py, dspark/speculator.py).

    slot 0 at anchor i        token t_{i+1}, position i + 1
    slot s = 1 .. K-1         the mask token, position i + 1 + s
    u_{i,s}                   DFlash's layer over K slots, all of which draft
    m_{i,s} = W1 t            t: the token before the draft, so t_{i+1} for s = 0, else draft s - 1
    q_{i+2+s} = softmax(W_D u_{i,s} + W2 m_{i,s})
    c_{i,s} = sigmoid(w [u_{i,s} ; m_{i,s}] + b)      the draft's probability of being accepted

W_D u + W2 m is one product of [W_D ; W2] and the state [u ; m], so the loss, replay and parity
treat a DSpark head like any other. All three read the logged token before a draft, whereas the
engine reads its own draft. The two tokens are equal as long as drafts are accepted, and drafts
after a rejected one do not count, so replay accepts the same drafts as the engine.

Parameters are named as in the checkpoint. Shapes: as in eagle3/layer.py; K = depth, R rank of the
bias.
"""

import dataclasses
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider.speculators.heads import DraftHead, TargetEnds
from outrider.speculators.kinds.dflash.layer import DFlashHead
from outrider.speculators.kinds.eagle3.shape import EagleShape
from outrider.speculators.unroll import Slots


class DSparkHead(DFlashHead):
    """A DFlash head whose first slot drafts, plus Markov and confidence heads."""

    first = 0
    of_draft_tokens = ("lm_head.weight", "markov_head.markov_w2.weight")

    def __init__(self, shape: EagleShape, target_ids_D: Tensor | None):
        super().__init__(shape, target_ids_D)
        self.width = shape.hidden + shape.markov_rank
        self.markov_head = MarkovHead(shape)
        self.confidence_head = ConfidenceHead(self.width)

    def unroll(self, ends: TargetEnds, slots: Slots, depth: int) -> tuple[Tensor, list[Tensor]]:
        """States [u ; m]; past a sequence's end, m is arbitrary."""
        anchors_N, states = super().unroll(ends, slots, depth)
        token_P = slots.token_ids_BT.flatten()
        embed = self.markov_head.markov_w1
        before = [(anchors_N + 1 + s).clamp(max=len(token_P) - 1) for s in range(depth)]
        return anchors_N, [
            torch.cat([u_NH, embed(token_P[place_N])], dim=-1)
            for u_NH, place_N in zip(states, before, strict=True)
        ]

    def head(self, ends: TargetEnds) -> DraftHead:
        """Rows [W_D ; W2], and [w ; b] of the confidence head."""
        # dim=-1 also works for ZeRO-3's parameters, which are empty vectors outside of forward.
        proj = self.confidence_head.proj
        return ConfidentHead(
            weight_DH=torch.cat([self.lm_head.weight, self.markov_head.markov_w2.weight], dim=-1),
            target_ids_D=self.target_ids_D,
            confidence_1H=torch.cat([proj.weight, proj.bias[:, None]], dim=-1),
        )


@dataclasses.dataclass(frozen=True)
class ConfidentHead(DraftHead):
    """A head that also estimates whether a draft is accepted."""

    confidence_1H: Tensor = dataclasses.field(kw_only=True)
    """Weights and bias of the confidence head."""
    trained_fields: ClassVar[tuple[str, ...]] = ("weight_DH", "confidence_1H")

    def confidence(self, state: Tensor) -> Tensor:
        """Logit [...] of a draft's acceptance, given that earlier drafts are accepted."""
        return F.linear(state, self.confidence_1H[:, :-1], self.confidence_1H[:, -1])[..., 0]

    def auxiliary_loss(self, state: Tensor, acceptance: Tensor) -> Tensor:
        """Cross-entropy of the confidence against the acceptance probability.

        Every depth reads the tokens of an accepted chain, so both values assume that all earlier
        drafts are accepted. The states are detached, so the confidence does not change the drafts.
        """
        logit = self.confidence(state.detach()).to(acceptance.dtype)
        return F.binary_cross_entropy_with_logits(logit, acceptance, reduction="none")


class MarkovHead(nn.Module):
    """Logit bias W2 W1 t for the token t before a draft."""

    def __init__(self, shape: EagleShape):
        super().__init__()
        self.markov_w1 = nn.Embedding(shape.vocab, shape.markov_rank)
        self.markov_w2 = nn.Linear(shape.markov_rank, shape.drafts, bias=False)


class ConfidenceHead(nn.Module):
    """Acceptance logit w [u ; m] + b; b starts at 0."""

    def __init__(self, width: int):
        super().__init__()
        self.proj = nn.Linear(width, 1)
        nn.init.zeros_(self.proj.bias)
