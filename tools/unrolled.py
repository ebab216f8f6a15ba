"""The unroll at every position as tensors [B, T, H], for tests."""

from torch import Tensor

from outrider.speculators.heads import TargetEnds
from outrider.speculators.unroll import Chain, Slots, unroll_anchors, valid_BT


def unroll(
    chain: Chain,
    ends: TargetEnds,
    *,
    token_ids_BT: Tensor,
    inputs_BTX: Tensor,
    sequence_BT: Tensor,
    position_BT: Tensor,
    depth: int,
) -> list[Tensor]:
    """States u[s] [B, T, H] for s < depth; zero at invalid slots.

    `sequence_BT` contains the number of each slot's sequence, contiguous within a row, and -1 for
    padding; `position_BT` counts from 0 in each sequence.
    """
    anchor_BT = valid_BT(sequence_BT, 0)
    anchors_N, states = unroll_anchors(
        chain,
        ends,
        Slots(
            token_ids_BT=token_ids_BT,
            inputs_BTX=inputs_BTX,
            sequence_BT=sequence_BT,
            position_BT=position_BT,
            anchor_BT=anchor_BT,
        ),
        depth,
    )
    spread = []
    for s, u_NH in enumerate(states):
        keep_N = valid_BT(sequence_BT, s).flatten()[anchors_N]
        out = u_NH.new_zeros(sequence_BT.numel(), u_NH.shape[-1])
        spread.append(
            out.index_copy(0, anchors_N[keep_N], u_NH[keep_N]).view(*sequence_BT.shape, -1)
        )
    return spread
