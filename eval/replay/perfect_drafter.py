"""The upper bound for drafters: the target's own logits.

It is replayed like a speculator with greedy drafts (`replay(CEILING, ...)`). It delivers fewer than
k + 1 tokens per step because the target samples: no drafter knows which token will be drawn.

Shapes: B rows, T slots, N anchors, H hidden.
"""

from torch import Tensor

from outrider.speculators.heads import DraftHead, TargetEnds
from outrider.speculators.kinds.drafter import Drafter


class PerfectDrafter(Drafter):
    """A drafter whose state at every depth is the target's."""

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
        """The target's states [N, H] that predict the drafts of each anchor.

        For anchor i the drafts are tokens i + 2, i + 3, ... `inputs_BTX` are the target's states
        after the final norm. A chain that would read past the end of the row repeats the last
        state; drafts past the response's end are never accepted.
        """
        states_NH = inputs_BTX.flatten(0, 1)
        flat_N = anchor_BT.flatten().nonzero()[:, 0]
        last = len(states_NH) - 1
        return flat_N, [states_NH[(flat_N + 1 + s).clamp(max=last)] for s in range(depth)]

    def head(self, ends: TargetEnds) -> DraftHead:
        """The target's head."""
        return DraftHead(ends.lm_head_VH)
