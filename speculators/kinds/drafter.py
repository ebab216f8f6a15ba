"""The module of a drafter: what training, replay and draft parity call on it.

    drafter = kind.load(directory, target_dir, dtype, device)
    anchors_N, states = drafter.unroll(ends, token_ids_BT, inputs_BTX, sequence_BT, position_BT,
                                       anchor_BT, depth=4)
    drafter.head(ends).logits(states[0])

A kind whose drafts follow one another (MTP, EAGLE-3) implements `speculators.unroll.Chain` and
calls `unroll_anchors`. A kind that drafts all tokens in one pass (P-EAGLE) writes its own unroll.

Shapes: B rows, T slots of a row, X values that the drafter reads of a token, N anchors, H width
of the state that the head reads, K depths.
"""

from torch import Tensor, nn

from outrider.speculators.heads import DraftHead, TargetEnds


class Drafter(nn.Module):
    """Base class of a drafter's module. Its parameters are what is trained."""

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
        """The head that the states are read by: the target's, or the drafter's own."""
        raise NotImplementedError
