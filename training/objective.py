"""Training objective of a step: the weighted loss of its rows' drafts.

    objective = Objective(config, depth, lm_head_VH, samples=..., sampling=..., probabilistic=...)
    share_K = objective.loss_weights(samples_of_the_step)            # the same in every process
    loss, judged = objective.row_loss(drafted, batch, share_K)  # a row's part of the step's loss

The teacher is the target's head `lm_head_VH` over the whole vocabulary. The draft's head comes
with the drafts and may be a different head over fewer tokens.

Shapes: K depths, N anchors of a row (and as many targets), H hidden, V vocabulary, R responses.
"""

from collections.abc import Collection, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.speculators.kinds.drafter import Batch
from outrider.training.config import DEPTH_DECAY, TrainingConfig
from outrider.training.distributed.accelerator import UnrolledDrafts
from outrider.training.distributed.spec import SequenceSampling
from outrider.training.losses import DraftLosses, distillation_loss
from outrider.training.packing import TrainingSample
from outrider.training.teacher import ServedSampling


class Objective:
    """Computes a step's loss as a sum of one part per row."""

    def __init__(
        self,
        config: TrainingConfig,
        depth: int,
        lm_head_VH: Tensor,
        *,
        samples: Sequence[TrainingSample],
        sampling: Mapping[str, SequenceSampling],
        probabilistic: bool,
        decay: float = DEPTH_DECAY,
    ):
        """Draft s has weight `decay`^s; the weights sum to 1."""
        self.config = config
        self.depth = depth
        self.lm_head_VH = lm_head_VH
        self.samples = samples
        self.sampling = sampling
        self.probabilistic = probabilistic
        self.decay = decay

    def count_targets(self, in_step: Sequence[TrainingSample]) -> Tensor:
        """Returns the number of targets at each depth, [K], at least 1."""
        count_K = torch.tensor(
            [sum(sample.targets(s) for sample in in_step) for s in range(self.depth)]
        )
        return count_K.clamp_min(1)

    def loss_weights(self, in_step: Sequence[TrainingSample]) -> Tensor:
        """Returns a draft's loss weight at each depth, [K]."""
        # Draft s counts only if drafts 0 .. s-1 were accepted, so later drafts matter less.
        weight_K = self.decay ** torch.arange(self.depth, dtype=torch.float64)
        return (weight_K / weight_K.sum()).float() / self.count_targets(in_step)

    def row_loss(
        self, drafted: UnrolledDrafts, batch: Batch, share_K: Tensor, masked: Collection[int] = ()
    ) -> tuple[Tensor, DraftLosses]:
        """Returns the row's part of the loss, and the other results.

        A row whose `share_K` is all zeros does not count; it only serves to give every process
        the same number of rows. Samples whose index is in `masked` have no loss.
        """
        anchors_N = batch.anchor_BT[0].nonzero().squeeze(1)
        u_KNH, valid_KN = align_to_targets(drafted.u_KNH, batch.sequence_BT[0, anchors_N])
        valid_KN = valid_KN & (share_K != 0)[:, None]
        # At anchor i, depth 0 predicts token i + 2; the target predicts it from its state at i + 1.
        teacher_NH = batch.hidden_BTH[0, anchors_N + 1].to(u_KNH.dtype)
        token_N = batch.token_ids_BT[0, anchors_N + 2]
        anchors_R = torch.tensor([self.samples[index].targets(0) for index in batch.row])
        if masked:
            counted_R = torch.tensor([index not in masked for index in batch.row])
            valid_KN = valid_KN & counted_R.repeat_interleave(anchors_R).to(u_KNH.device)
        served = self._served(batch, anchors_N + 2, anchors_R)
        loss_KN, judged = distillation_loss(
            u_KNH=u_KNH,
            teacher_NH=teacher_NH,
            token_N=token_N,
            valid_KN=valid_KN,
            lm_head_VH=self.lm_head_VH,
            served=served,
            kind=self.config.loss,
            head=drafted.head,
        )
        auxiliary_KN = drafted.head.auxiliary_loss(u_KNH, judged.acceptance_KN)
        if auxiliary_KN is not None:
            loss_KN = loss_KN + auxiliary_KN
        return (loss_KN * valid_KN * share_K[:, None]).sum(), judged

    def _served(self, batch: Batch, target_N: Tensor, anchors_R: Tensor) -> ServedSampling:
        """Returns the sampling of the row's targets, at slots `target_N`."""
        device = target_N.device
        requests = [self.sampling[self.samples[index].sequence_id][:4] for index in batch.row]
        sampled_N4 = torch.tensor(requests).repeat_interleave(anchors_R, dim=0).to(device)
        temperature_N, top_p_N, top_k_N, hard_N = sampled_N4.unbind(-1)
        served = ServedSampling(
            temperature_N=temperature_N,
            top_p_N=top_p_N,
            probabilistic=self.probabilistic,
            top_k_N=top_k_N,
            hard_N=hard_N > 0,
        )
        if batch.mask_BT is None:
            return served
        mask_N = batch.mask_BT[0, target_N]
        is_hard_N = (hard_N > 0) & (mask_N < 0)
        return served._replace(hard_N=is_hard_N, masks_MW=batch.masks_MW, mask_N=mask_N)


def align_to_targets(u_KNH: Tensor, sequence_N: Tensor) -> tuple[Tensor, Tensor]:
    """Shifts depth s by s anchors, aligning row n to its target.

    Row n then predicts the token two positions after anchor n. The second result [K, N] is True if
    the row's chain started in the same sequence. The anchors of a sequence are consecutive.
    """
    depth, anchors, _ = u_KNH.shape
    shifted = []
    valid = []
    for s in range(depth):
        reach = min(s, anchors)
        # u[s] of anchor n - s predicts the token of row n; zeros fill the rows that no anchor
        # reaches.
        shifted.append(F.pad(u_KNH[s, : anchors - reach], (0, 0, reach, 0)))
        valid.append(F.pad(sequence_N[reach:] == sequence_N[: anchors - reach], (reach, 0)))
    return torch.stack(shifted), torch.stack(valid)
