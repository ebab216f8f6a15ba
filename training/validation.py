"""Measures acceptance on the validation part by exact replay, without an engine.

profile = Validation(plan, accelerator).profile(unroll, model)
profile["acceptance_length"]     # for k = 1..K drafts: total tokens / total expected steps
"""

from collections.abc import Callable

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from outrider.speculators.acceptance import accept_matrix, pad_anchors, replay_chain
from outrider.speculators.kinds.drafter import Batch
from outrider.training.batches import Prefetch
from outrider.training.distributed.accelerator import ChainUnroll, UnrolledDrafts
from outrider.training.packing import pack
from outrider.training.plan import TrainingPlan
from outrider.training.results import Profile


class Validation:
    """The validation part, packed once; each process replays its share."""

    def __init__(self, plan: TrainingPlan, accelerator: Accelerator):
        self.plan = plan
        self.accelerator = accelerator
        self.samples = plan.validation_samples
        lengths = [(index, sample.length) for index, sample in enumerate(self.samples)]
        self.rows = pack(lengths, plan.settings.row_tokens)

    @torch.no_grad()
    def profile(
        self,
        unroll: ChainUnroll,
        wrapped: nn.Module | None = None,
        observe: Callable[[Batch, UnrolledDrafts], None] | None = None,
    ) -> Profile:
        """Returns acceptance by position and acceptance length for k = 1..K.

        `wrapped` is `unroll` as prepared by DeepSpeed; None: `unroll` itself runs. `observe` is
        called with every row's drafts.
        """
        world = self.accelerator.num_processes
        rank = self.accelerator.process_index
        # Every process runs the same number of rows, since ZeRO-3 gathers weights collectively;
        # surplus rows are not counted.
        rounds = -(-len(self.rows) // world)
        mine = [self.rows[(turn * world + rank) % len(self.rows)] for turn in range(rounds)]
        sums = torch.zeros(1 + 3 * unroll.depth, dtype=torch.float64)
        with Prefetch(
            store=self.plan.source,
            samples=self.samples,
            rows=mine,
            row_tokens=self.plan.settings.row_tokens,
            spec=self.plan.features,
        ) as batches:
            for turn, batch in enumerate(batches):
                batch = batch.to(self.accelerator.device)
                drafted = unroll.unroll_batch(batch, wrapped)
                if turn * world + rank < len(self.rows):
                    sums += self._row_sums(drafted, batch, unroll.ends.lm_head_VH)
                    if observe is not None:
                        observe(batch, drafted)
        sums = self.accelerator.reduce(sums.to(self.accelerator.device), reduction="sum").cpu()
        tokens = sums[0]
        steps_K, accepted_K, offered_K = sums[1:].view(3, unroll.depth).unbind()
        return {
            "sequences": len(self.samples),
            "tokens": tokens.item(),
            "acceptance_length": (tokens / steps_K).tolist(),
            # A position past every response is never offered; 0 / 1e-9 is 0.
            "acceptance": (accepted_K / offered_K.clamp_min(1e-9)).tolist(),
        }

    def _row_sums(self, drafted: UnrolledDrafts, batch: Batch, lm_head_VH: Tensor) -> Tensor:
        samples = [self.samples[index] for index in batch.row]
        anchors_R = torch.tensor([sample.targets(0) for sample in samples])
        start_R = torch.tensor([0, *[sample.length for sample in samples]]).cumsum(0)[:-1]
        length_R = torch.tensor([sample.length for sample in samples])
        sampling = self.plan.spec.sampling
        sampled_R3 = torch.tensor([sampling[sample.sequence_id][:3] for sample in samples])
        device = drafted.u_KNH.device
        # The engine's anchor is the last known token, one position after the state that the
        # chain reads.
        anchor_N = batch.anchor_BT[0].nonzero().squeeze(1) + 1

        def of_anchor(values_R: Tensor) -> Tensor:
            return values_R.repeat_interleave(anchors_R, dim=0).to(device)

        temperature_N, top_p_N, top_k_N = of_anchor(sampled_R3).unbind(-1)
        a_NK = accept_matrix(
            states=list(drafted.u_KNH),
            head=drafted.head,
            lm_head_VH=lm_head_VH,
            token_ids_BT=batch.token_ids_BT,
            hidden_BTH=batch.hidden_BTH,
            row_N=torch.zeros_like(anchor_N),
            anchor_N=anchor_N,
            last_N=of_anchor(start_R + length_R - 1),
            temperature_N=temperature_N,
            top_p_N=top_p_N,
            top_k_N=top_k_N,
            probabilistic=self.plan.probabilistic,
        )
        # On the CPU: the recursion has one small step per token, and a kernel launch would cost
        # more.
        chain = replay_chain(pad_anchors(a_NK.cpu(), anchors_R), anchors_R)
        # As `profile` splits them. The rows of RKK are counts with k = 1..K drafts.
        parts = [
            chain.tokens_R.sum()[None],
            chain.steps_RK.sum(0),
            chain.accepted_RKK.sum(0)[-1],
            chain.offered_RKK.sum(0)[-1],
        ]
        return torch.cat(parts)
