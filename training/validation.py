"""Acceptance of a speculator on the validation part, by exact replay: what the engine would count, without the engine.

profile = Validation(...).profile(model)
profile["acceptance_length"]     # for k = 1..K drafts, pooled: tokens / expected steps
"""

from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from outrider.common.errors import OutriderError
from outrider.speculators.acceptance import accept_matrix, pad_anchors, replay_chain
from outrider.training.batches import Prefetch, Store
from outrider.training.distributed.accelerator import ChainUnroll, run_unroll
from outrider.training.distributed.spec import Sampling
from outrider.training.packing import Sample, pack


class Validation:
    """The validation part, packed once; every process replays its share of the rows."""

    def __init__(
        self,
        accelerator: Accelerator,
        store: Store,
        samples: list[Sample],
        sampling: dict[str, Sampling],
        row_tokens: int,
        probabilistic: bool,
    ):
        self.accelerator, self.store, self.samples, self.sampling = (
            accelerator,
            store,
            samples,
            sampling,
        )
        self.row_tokens, self.probabilistic = row_tokens, probabilistic
        self.rows = pack(
            [(index, sample.length) for index, sample in enumerate(samples)], row_tokens
        )

    @torch.no_grad()
    def profile(self, model: nn.Module, ends_and_depth: ChainUnroll) -> dict[str, Any]:
        """Acceptance by position and acceptance length for k = 1..K; `model` runs, `ends_and_depth` tells E, W and K."""
        depth, world, rank = (
            ends_and_depth.depth,
            self.accelerator.num_processes,
            self.accelerator.process_index,
        )
        # Every process runs as many rows as the others (ZeRO-3 gathers weights together); the surplus is not counted.
        rounds = -(-len(self.rows) // world)
        mine = [self.rows[(turn * world + rank) % len(self.rows)] for turn in range(rounds)]
        sums = torch.zeros(1 + 3 * depth, dtype=torch.float64)
        with Prefetch(self.store, self.samples, mine, self.row_tokens) as batches:
            for turn, batch in enumerate(batches):
                batch = batch.to(self.accelerator.device)
                u_KNH = run_unroll(model, batch)
                if turn * world + rank < len(self.rows):
                    sums += self._row_sums(u_KNH, batch, ends_and_depth)
        sums = self.accelerator.reduce(sums.to(self.accelerator.device), reduction="sum").cpu()
        tokens, steps_K, accepted_K, offered_K = sums[0], *sums[1:].view(3, depth)
        return {
            "sequences": len(self.samples),
            "tokens": tokens.item(),
            "acceptance_length": (tokens / steps_K).tolist(),
            "acceptance": (accepted_K / offered_K.clamp_min(1e-9)).tolist(),
        }

    def _row_sums(
        self, u_KNH: torch.Tensor, batch: Any, ends_and_depth: ChainUnroll
    ) -> torch.Tensor:
        samples = [self.samples[index] for index in batch.row]
        anchors_R = torch.tensor([sample.targets(0) for sample in samples])
        start_R = torch.tensor([0, *[sample.length for sample in samples]]).cumsum(0)[:-1]
        length_R = torch.tensor([sample.length for sample in samples])
        sampling = [self.sampling[sample.sequence_id] for sample in samples]
        temperature_R = torch.tensor([each.temperature for each in sampling])
        top_p_R = torch.tensor([each.top_p for each in sampling])
        device = u_KNH.device
        # An anchor in the engine's sense is the last known token, one after the state that the chain starts from.
        anchor_N = batch.anchor_BT[0].nonzero().squeeze(1) + 1

        def of_anchor(values_R: torch.Tensor) -> torch.Tensor:
            return values_R.repeat_interleave(anchors_R).to(device)

        a_NK = accept_matrix(
            list(u_KNH),
            ends_and_depth.ends.lm_head_VH,
            batch.token_ids_BT,
            batch.hidden_BTH,
            torch.zeros_like(anchor_N),
            anchor_N,
            of_anchor(start_R + length_R - 1),
            of_anchor(temperature_R),
            of_anchor(top_p_R),
            probabilistic=self.probabilistic,
        )
        chain = replay_chain(pad_anchors(a_NK.cpu(), anchors_R), anchors_R)
        parts = [
            chain.tokens_R.sum()[None],
            chain.steps_RK.sum(0),
            chain.accepted_RKK.sum(0)[-1],
            chain.offered_RKK.sum(0)[-1],
        ]
        return torch.cat(parts)


def check_parity(base: dict[str, Any], prepared: dict[str, Any], tolerance: float) -> None:
    """Before the first update the prepared speculator must accept as the base one does; else nothing measured later counts."""
    difference = max(
        abs(a - b) for a, b in zip(base["acceptance"], prepared["acceptance"], strict=True)
    )
    if difference > tolerance:

        def rates(profile: dict[str, Any]) -> str:
            return " ".join(f"{rate:.3f}" for rate in profile["acceptance"])

        raise OutriderError(
            f"step-0 parity: before any update, acceptance by position is {rates(prepared)} as prepared for training and"
            f" {rates(base)} for the base speculator in float32; they differ by {difference:.3f}, more than"
            f" training.parity_tolerance={tolerance}. Usual causes: weights that were not loaded, a cast that rounds what must"
            " stay float32 (the routing bias), a state fed back before its norm, positions or tokens off by one; if"
            " training.compute is bf16, see whether fp32 agrees"
        )
