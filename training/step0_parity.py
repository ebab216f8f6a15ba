"""Step-0 parity: before any update, the prepared speculator drafts what its base drafts.

    check = StepZero(base, parity)                        # base: a ChainUnroll in float32
    validation.profile(unroll, model, check.add)          # unroll, model: as prepared for training
    complaint(check.found(accelerator), parity)           # None, or why they differ

As in draft parity (eval/replay/draft_parity.py) the drafts of the two are compared token by token,
at the same anchors and after the same logged tokens, so that a difference at one depth does not
carry over to the next. Acceptance is not compared: with seven sequences, near ties of bf16 in a
handful of drafts moved one depth's acceptance by 0.087.

The limits are those of `ParityConfig`, at every depth, plus two standard errors of the number
of drafts n (`allowed`). Measured on nano R1, bf16 against float32, by depth: at most 0.3 % of the
drafts differ beyond a near tie, and log-probabilities by at most 0.02 nats on average; with a state
that is fed back before its norm, 2 to 4 % and 0.07 to 0.11 nats at depth 5.

Shapes: K depths, N anchors, M anchors of a chunk, D draft vocabulary.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from outrider.speculators.config import ParityConfig
from outrider.speculators.unroll import valid_BT
from outrider.training.batches import Batch
from outrider.training.distributed.accelerator import ChainUnroll, Drafted

if TYPE_CHECKING:
    from accelerate import Accelerator

CHUNK = 256
"""Anchors whose logits are made at a time, twice D values each."""

MOST_NATS = 1.0
"""Largest difference of a log-probability that counts. Where bf16 routes a token to another expert
a draft differs by several nats, once in some hundreds; the mean would be that of these few."""

STANDARD_ERRORS = 2.0

DESIGN_EFFECT = 2.0
"""Variance of a share of drafts against independent ones: drafts of a sequence are alike."""

DIFFERENCE_SD = 0.1
"""Standard deviation of |difference of log-probabilities|, in nats. Measured: 0.06 for single
drafts, 0.1 for what the means of whole sequences vary by."""


class StepZero:
    """Sums of the comparison with the base, over the batches of a validation."""

    def __init__(self, base: ChainUnroll, parity: ParityConfig):
        self.base, self.parity = base, parity
        self.sums_K4 = torch.zeros(base.depth, 4, dtype=torch.float64)
        """Drafts, equal ones, near ties, and the sum of the log-probabilities' differences."""

    def add(self, batch: Batch, drafted: Drafted) -> None:
        """Compares the prepared speculator's drafts of a batch with the base's."""
        base = self.base.drafted(batch)
        anchors_N = batch.anchor_BT.flatten().nonzero().squeeze(1)
        for depth in range(self.base.depth):
            inside_N = valid_BT(batch.sequence_BT, depth).flatten()[anchors_N].nonzero().squeeze(1)
            for part_M in inside_N.split(CHUNK):
                self.sums_K4[depth] += self._compared(base, drafted, depth, part_M)

    def _compared(
        self, base: Drafted, drafted: Drafted, depth: int, part_M: torch.Tensor
    ) -> torch.Tensor:
        log_q_MD, prepared_MD = (
            each.head.logits(each.u_KNH[depth, part_M]).float().log_softmax(-1)
            for each in (base, drafted)
        )
        most_M, draft_M1 = log_q_MD.max(-1, keepdim=True)
        gap_M1 = most_M - log_q_MD.gather(1, prepared_MD.argmax(-1, keepdim=True))
        near_M1 = (gap_M1 > 0) & (gap_M1 <= self.parity.near_tie_nats)
        difference_M1 = (prepared_MD.gather(1, draft_M1) - most_M).abs().clamp(max=MOST_NATS)
        counted = torch.ones_like(gap_M1), gap_M1 == 0, near_M1, difference_M1
        return torch.stack([values_M1.double().sum() for values_M1 in counted]).cpu()

    def found(self, accelerator: "Accelerator") -> dict[str, Any]:
        """The comparison over all processes: sums by depth, as `complaint` reads them."""
        sums = accelerator.reduce(self.sums_K4.to(accelerator.device), reduction="sum").cpu()
        names = ("n", "equal", "near_ties", "difference")
        return {"per_depth": [dict(zip(names, row, strict=True)) for row in sums.tolist()]}


def allowed(n: float, parity: ParityConfig) -> tuple[float, float]:
    """Largest share of other drafts and mean difference in nats, of n drafts of a depth."""
    share = 1 - parity.min_agreement
    error = math.sqrt(DESIGN_EFFECT * share * parity.min_agreement / n)
    return (
        share + STANDARD_ERRORS * error,
        parity.max_difference + STANDARD_ERRORS * DIFFERENCE_SD / math.sqrt(n),
    )


def complaint(found: Mapping[str, Any], parity: ParityConfig) -> str | None:
    """Why step-0 parity fails, in one sentence; None where it holds."""
    worst = None
    for depth, row in enumerate(found["per_depth"], start=1):
        if not row["n"]:  # no response is that long
            continue
        other = 1 - (row["equal"] + row["near_ties"]) / row["n"]
        difference = row["difference"] / row["n"]
        most_other, most_difference = allowed(row["n"], parity)
        # A NaN fails: it is not within its limit.
        if not (other <= most_other and difference <= most_difference):
            worst = (
                f"at depth {depth} {other:.2%} of {row['n']:.0f} drafts are other tokens, near"
                f" ties apart ({most_other:.2%} allowed), and log-probabilities differ by"
                f" {difference:.3f} nats on average ({most_difference:.3f} allowed)"
            )
    if worst is None:
        return None
    return (
        f"step-0 parity: before any update, the speculator prepared for training drafts otherwise"
        f" than the base in float32: {worst}. Usual causes: weights that were not loaded, a cast"
        " that rounds what must stay float32 (the routing bias), a state fed back before its norm,"
        " positions or tokens off by one; if training.compute is bf16, see whether fp32 agrees."
        " To train all the same: training.parity=warn"
    )
