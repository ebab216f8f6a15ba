"""The upper bound for drafters: the target's own logits.

It is replayed like a speculator with greedy drafts (`replay(CEILING, ...)`). It delivers fewer than
k + 1 tokens per step because the target samples: no drafter knows which token will be drawn. It
ignores grammars and penalties, so it is no upper bound on responses with hard labels.

Shapes: B rows, T slots, N anchors, H hidden.
"""

from torch import Tensor

from outrider.speculators.heads import DraftHead, TargetEnds
from outrider.speculators.kinds.drafter import Drafter
from outrider.speculators.unroll import Slots


class PerfectDrafter(Drafter):
    """A drafter whose state at every depth is the target's."""

    def unroll(self, ends: TargetEnds, slots: Slots, depth: int) -> tuple[Tensor, list[Tensor]]:
        """The target's states [N, H] that predict the drafts of each anchor.

        For anchor i the drafts are tokens i + 2, i + 3, ... The drafter's inputs are the target's
        states after the final norm. A chain that would read past the end of the row repeats the
        last state; drafts past the response's end are never accepted.
        """
        # The target's state at i + 1 + s predicts the token at i + 2 + s.
        states_NH = slots.inputs_BTX.flatten(0, 1)
        flat_N = slots.anchor_BT.flatten().nonzero()[:, 0]
        last = len(states_NH) - 1
        return flat_N, [states_NH[(flat_N + 1 + s).clamp(max=last)] for s in range(depth)]

    def head(self, ends: TargetEnds) -> DraftHead:
        """The target's head."""
        return DraftHead(ends.lm_head_VH)
