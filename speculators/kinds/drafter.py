"""The module of a drafter: what training, replay and draft parity call on it.

    drafter = kind.load(directory, target_dir, dtype, device)
    anchors_N, states = drafter.unroll(ends, token_ids_BT, inputs_BTX, sequence_BT, position_BT,
                                       anchor_BT, depth=4)
    drafter.head(ends).logits(states[0])

A kind whose drafts share one attention over prefix and drafts (MTP, EAGLE-3, P-EAGLE) is a
`ChainDrafter` and implements `speculators.unroll.Chain`. Any other kind writes its own unroll.

Shapes: B rows, T slots of a row, X values that the drafter reads of a token, N anchors, H width
of the state that the head reads, K depths.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from outrider.speculators.heads import DraftHead, TargetEnds
from outrider.speculators.unroll import Chain, unroll_anchors


@dataclass(frozen=True)
class Batch:
    """One row, as `Drafter.unroll` takes it (B = 1)."""

    row: tuple[int, ...]
    """Indices of its samples."""
    token_ids_BT: Tensor
    hidden_BTH: Tensor
    """What the teacher reads: the target's states after the final norm."""
    inputs_BTX: Tensor
    """What the drafter reads; the same tensor as `hidden_BTH` where that is all it reads."""
    sequence_BT: Tensor
    """Number of the slot's sequence in the row, from 0; -1 is padding."""
    position_BT: Tensor
    anchor_BT: Tensor

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> "Batch":
        """The batch in page-locked memory, from which copies to a GPU overlap with its work."""
        return self._mapped(Tensor.pin_memory)

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        tensors = {name: value for name, value in vars(self).items() if name != "row"}
        changed = {id(tensor): change(tensor) for tensor in tensors.values()}
        return Batch(self.row, **{name: changed[id(tensor)] for name, tensor in tensors.items()})


class Drafter(nn.Module):
    """Base class of a drafter's module. Its parameters are what is trained."""

    width: int
    """Values of a state that the head reads."""
    recompute = False
    """Whether backward computes every depth again instead of keeping what it reads."""
    used_experts = 1.0
    """Share of the routed experts that a token uses."""

    def unroll(
        self,
        ends: TargetEnds,
        token_ids_BT: Tensor,
        inputs_BTX: Tensor,
        sequence_BT: Tensor,
        position_BT: Tensor,
        anchor_BT: Tensor,
        depth: int,
    ) -> tuple[Tensor, list[Tensor]]:
        """Drafts `depth` tokens at every anchor, as the serving engine computes them.

        Returns the flat indices [N] of the anchors in B*T and, for each depth s, the states u[s]
        [N, H] that the head reads. The chain at slot i knows the tokens up to i + 1; u[s] predicts
        the token at i + 2 + s. Tokens are the logged ones (teacher forcing). `sequence_BT` numbers
        the sequence of a slot, -1 for padding; `position_BT` counts from 0 in each sequence.
        """
        raise NotImplementedError

    def head(self, ends: TargetEnds) -> DraftHead:
        """The head that reads the states: the target's or the drafter's own."""
        raise NotImplementedError

    def input_values(self) -> int:
        """Values of one anchor from which a depth is computed again; 0 if it cannot be."""
        return 0


class ChainDrafter(Drafter):
    """A drafter that implements `Chain`: one attention over the prefix and its own drafts."""

    mask_token: int | None = None
    """Token at every depth but the first, for a parallel drafter; None: the token before."""

    def input_values(self) -> int:
        """A state, x, query, key and value."""
        chain = cast(Chain, self)
        weight = next(self.parameters())
        state = torch.empty(1, chain.width, dtype=weight.dtype, device=weight.device)
        position = torch.zeros(1, dtype=torch.long, device=weight.device)
        x = chain.inputs(state, state, position)
        return sum(each.numel() for each in (state, x, *chain.project(x, position)))

    def unroll(
        self,
        ends: TargetEnds,
        token_ids_BT: Tensor,
        inputs_BTX: Tensor,
        sequence_BT: Tensor,
        position_BT: Tensor,
        anchor_BT: Tensor,
        depth: int,
    ) -> tuple[Tensor, list[Tensor]]:
        """One depth after the other, all anchors at once (speculators/unroll.py)."""
        return unroll_anchors(
            cast(Chain, self),
            ends,
            token_ids_BT,
            inputs_BTX,
            sequence_BT,
            position_BT,
            anchor_BT,
            depth,
            self.mask_token,
            self.recompute,
        )
