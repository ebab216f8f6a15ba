"""The training objective of a step: the recipe's loss over the drafts of its rows, weighted.

    objective = Objective(config, depth, lm_head_VH, samples, sampling, probabilistic)
    share_K = objective.share(samples_of_the_step)            # the same in every process
    loss, sums = objective.of_row(drafted, batch, share_K)    # a row's part of the step's loss

The teacher is the target's head `lm_head_VH` over the whole vocabulary. The draft's head comes
with the drafts and may be another one, over fewer tokens.

Shapes: K depths, N anchors of a row (and as many targets), H hidden, V vocabulary.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.speculators.heads import DraftHead
from outrider.training.batches import Batch
from outrider.training.config import DEPTH_DECAY, TrainingConfig
from outrider.training.depth_weights import fixed_weights, visited_weights
from outrider.training.distributed.accelerator import Drafted
from outrider.training.distributed.spec import Sampling
from outrider.training.losses import distillation_loss
from outrider.training.packing import Sample
from outrider.training.teacher import Served


class RowSums(NamedTuple):
    """Sums over the targets of a row, by depth; divide by the step's count of targets."""

    kl_K: Tensor
    acceptance_K: Tensor
    """Sums of the expected acceptance (`losses.Judged`)."""


class Objective:
    """The loss of a row as its part of the step's loss; the rows of all processes add up."""

    def __init__(
        self,
        config: TrainingConfig,
        depth: int,
        lm_head_VH: Tensor,
        samples: Sequence[Sample],
        sampling: Mapping[str, Sampling],
        probabilistic: bool,
        decay: float = DEPTH_DECAY,
    ):
        """`decay`: base of `training.depth_weights: decay`."""
        self.config, self.depth, self.lm_head_VH = config, depth, lm_head_VH
        self.decay = decay
        self.samples, self.sampling, self.probabilistic = samples, sampling, probabilistic

    def targets(self, in_step: Sequence[Sample]) -> Tensor:
        """Targets of each depth in these samples, [K], at least 1."""
        count_K = torch.tensor(
            [sum(sample.targets(s) for sample in in_step) for s in range(self.depth)]
        )
        return count_K.clamp_min(1)

    def share(self, in_step: Sequence[Sample]) -> Tensor:
        """Weight of one draft of each depth in the step's loss, [K]; `visited` multiplies it."""
        count_K = self.targets(in_step)
        if self.config.depth_weights == "visited":
            return (1 / count_K[:1]).expand(self.depth)
        return fixed_weights(self.config.depth_weights, self.depth, self.decay) / count_K

    def of_row(
        self,
        drafted: Drafted,
        batch: Batch,
        share_K: Tensor,
        base: Drafted | None = None,
        masked: Collection[int] = (),
    ) -> tuple[Tensor, RowSums]:
        """The row's part of the loss and its sums.

        With a `share_K` of zeros the row fills a process's turn and does not count. `base`: the
        base speculator's drafts of the same chains, for `training.base_kl`. Samples whose index is
        in `masked` have no loss.
        """
        anchors_N = batch.anchor_BT[0].nonzero().squeeze(1)
        u_KNH, valid_KN = align_to_targets(drafted.u_KNH, batch.sequence_BT[0, anchors_N])
        valid_KN = valid_KN & (share_K != 0)[:, None]
        # Anchor i of depth 0 predicts the token at i + 2; the target predicts it from its state at
        # i + 1.
        teacher_NH = batch.hidden_BTH[0, anchors_N + 1].to(u_KNH.dtype)
        token_N = batch.token_ids_BT[0, anchors_N + 2]
        anchors_R = torch.tensor([self.samples[index].targets(0) for index in batch.row])
        if masked:
            counted_R = torch.tensor([index not in masked for index in batch.row])
            valid_KN = valid_KN & counted_R.repeat_interleave(anchors_R).to(u_KNH.device)
        served = self._served(batch, anchors_R, u_KNH.device)
        loss_KN, judged = distillation_loss(
            u_KNH,
            teacher_NH,
            token_N,
            valid_KN,
            self.lm_head_VH,
            served,
            self.config.loss,
            drafted.head,
        )
        weight_KN = valid_KN * share_K[:, None]
        if self.config.depth_weights == "visited":
            weight_KN = weight_KN * visited_weights(judged.accepted_KN, anchors_R)
        loss = (loss_KN * weight_KN).sum()
        if base is not None:
            base_KNH, _ = align_to_targets(base.u_KNH, batch.sequence_BT[0, anchors_N])
            aligned, of_base = Drafted(u_KNH, drafted.head), Drafted(base_KNH, base.head)
            loss = loss + self.config.base_kl * self._from_base(
                aligned, of_base, valid_KN, weight_KN
            )
        return loss, RowSums(judged.kl_KN.sum(-1), judged.acceptance_KN.sum(-1))

    def _from_base(
        self, drafted: Drafted, base: Drafted, valid_KN: Tensor, weight_KN: Tensor
    ) -> Tensor:
        """KL(base||custom) of the drafts at temperature 1, weighted as the loss is.

        Both draft over one vocabulary, so the base's head is the teacher of the custom one.
        """
        u_KNH = drafted.u_KNH
        once_N = torch.ones(u_KNH.shape[1], device=u_KNH.device)
        plain = Served(once_N, once_N, probabilistic=False)
        any_token_N = torch.zeros(u_KNH.shape[1], dtype=torch.long, device=u_KNH.device)
        same_rows = DraftHead(drafted.head.weight_DH)
        total = u_KNH.new_zeros((), dtype=torch.float32)
        for s in range(self.depth):
            depth = slice(s, s + 1)
            kl_KN, _ = distillation_loss(
                u_KNH[depth],
                base.u_KNH[s],
                any_token_N,
                valid_KN[depth],
                base.head.weight_DH,
                plain,
                "kl",
                same_rows,
            )
            total = total + (kl_KN * weight_KN[depth]).sum()
        return total

    def _served(self, batch: Batch, anchors_R: Tensor, device: torch.device) -> Served:
        requests = [self.sampling[self.samples[index].sequence_id] for index in batch.row]
        sampled_R3 = torch.tensor([[one.temperature, one.top_p, one.top_k] for one in requests])
        sampled_N3 = sampled_R3.repeat_interleave(anchors_R, dim=0).to(device)
        temperature_N, top_p_N, top_k_N = sampled_N3.unbind(-1)
        return Served(temperature_N, top_p_N, self.probabilistic, top_k_N)


def align_to_targets(u_KNH: Tensor, sequence_N: Tensor) -> tuple[Tensor, Tensor]:
    """Shifts depth s by s anchors, so that row n predicts the token two after anchor n.

    Also returns [K, N] where that row exists: its chain must have started in the same sequence.
    The anchors of a sequence are consecutive.
    """
    depth, anchors, _ = u_KNH.shape
    shifted, valid = [], []
    for s in range(depth):
        reach = min(s, anchors)
        shifted.append(F.pad(u_KNH[s, : anchors - reach], (0, 0, reach, 0)))
        valid.append(F.pad(sequence_N[reach:] == sequence_N[: anchors - reach], (reach, 0)))
    return torch.stack(shifted), torch.stack(valid)
