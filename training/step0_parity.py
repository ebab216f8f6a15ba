"""Step-0 parity: before any update, the prepared speculator drafts like its base.

    check = StepZero(base, parity)                        # base: a ChainUnroll in float32
    validation.profile(unroll, model, check.add)          # unroll, model: as prepared for training
    parity_failure(check.sums_K4.tolist(), parity)             # None, or why they differ

The two are compared at the same anchors and after the same logged tokens, so that a difference at
one depth does not carry over to the next (speculators/parity.py).

Shapes: K depths, N anchors, M anchors of a chunk, D draft vocabulary.
"""

import torch
from torch import Tensor

from outrider.speculators.kinds.drafter import Batch
from outrider.speculators.parity import ParityConfig, parity_sums
from outrider.speculators.unroll import valid_BT
from outrider.training.distributed.accelerator import ChainUnroll, UnrolledDrafts

CHUNK = 256
"""Number of anchors whose logits are computed together; 2 D values per anchor."""


class StepZero:
    """Accumulates the comparison with the base over a process's validation batches."""

    def __init__(self, base: ChainUnroll, parity: ParityConfig):
        self.base = base
        self.parity = parity
        self.sums_K4 = torch.zeros(base.depth, 4, dtype=torch.float64)

    def add(self, batch: Batch, drafted: UnrolledDrafts) -> None:
        """Compares the prepared speculator's drafts of a batch with the base's."""
        base = self.base.unroll_batch(batch)
        anchors_N = batch.anchor_BT.flatten().nonzero().squeeze(1)
        for depth in range(self.base.depth):
            inside_N = valid_BT(batch.sequence_BT, depth).flatten()[anchors_N].nonzero().squeeze(1)
            for part_M in inside_N.split(CHUNK):
                log_q_MD = _log_q(base, depth, part_M)
                logprob_M, draft_M = _log_q(drafted, depth, part_M).max(-1)
                self.sums_K4[depth] += parity_sums(log_q_MD, draft_M, logprob_M, self.parity)


def _log_q(drafted: UnrolledDrafts, depth: int, part_M: Tensor) -> Tensor:
    """Log-probabilities [M, D] of the drafts of some anchors."""
    return drafted.head.logits(drafted.u_KNH[depth, part_M]).float().log_softmax(-1)
