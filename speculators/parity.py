"""Draft parity: two computations of a speculator draft the same tokens.

    sums_K4[depth] += parity_sums(log_q_ND, draft_N, logprob_N, parity)
    parity_failure(sums_K4.tolist(), parity)     # None if they agree

A reference's log-probabilities are compared with another computation's drafts and their
log-probabilities after the same tokens. The other computation is the engine
(eval/replay/draft_parity.py) or the speculator as prepared for training
(training/step0_parity.py). Acceptance is not compared, since with seven sequences, bf16 near
ties in a handful of drafts changed it by 0.087 at one depth.

At every depth, the limits are those of `ParityConfig` plus two standard errors for n drafts
(`parity_limits`). On nano R1 in bf16 against float32, at most 0.3 % of the drafts at a depth differ
beyond near ties, and log-probabilities differ by at most 0.02 nats on average. If a state is fed
back before its norm, these figures are 2 to 4 % and 0.07 to 0.11 nats at
depth 5.

Shapes: K depths, N drafts, D draft vocabulary.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

MOST_NATS = 1.0
"""Log-probability differences are clamped to this, in nats.
Otherwise, the few drafts for which bf16 selects different experts (and which differ by several
nats) would dominate the mean."""

STANDARD_ERRORS = 2.0

DESIGN_EFFECT = 2.0
"""Factor applied to a share's variance, since a sequence's drafts are correlated."""

DIFFERENCE_SD = 0.1
"""Standard deviation of absolute log-probability differences, in nats.
Measured: 0.06 across individual drafts; 0.1 as implied by the variation between sequence means."""

Sums = Sequence[Sequence[float]]
"""[K, 4]: counts of drafts, equal drafts and near ties; summed log-probability differences."""


class ParityConfig(NamedTuple):
    """Number of drafts to compare, and how far they may differ."""

    prompts: int = 8
    """Number of validation prompts that the engine answers greedily."""
    max_tokens: int = 64
    """Maximum length of an answer, in tokens."""
    anchors: int = 200
    """Maximum number of randomly drawn steps to compare at every depth."""
    min_agreement: float = 0.99
    """Minimum share of equal drafts and near ties at every depth."""
    near_tie_nats: float = 0.25
    """Largest gap of a near tie, in nats.
    The gap is the trainer's log-probability of its own draft minus that of the engine's draft. The
    engine's bf16 logits have a resolution of 0.06 to 0.125 at their usual magnitude."""
    max_difference: float = 0.05
    """Largest mean absolute difference, in nats, between the trainer's and the engine's
    log-probabilities of the engine's drafts."""


def parity_sums(
    log_q_ND: "torch.Tensor",
    draft_N: "torch.Tensor",
    logprob_N: "torch.Tensor",
    parity: ParityConfig,
) -> "torch.Tensor":
    """Sums [4] over N drafts of one depth, float64 on the CPU.

    `log_q_ND` are the reference's log-probabilities; `draft_N` are the other computation's drafts
    and `logprob_N` their log-probabilities.
    """
    import torch

    own_N = log_q_ND.gather(1, draft_N[:, None])[:, 0]
    gap_N = log_q_ND.max(-1).values - own_N
    near_N = (gap_N > 0) & (gap_N <= parity.near_tie_nats)
    difference_N = (own_N - logprob_N).abs().clamp(max=MOST_NATS)
    counted = torch.ones_like(gap_N), gap_N == 0, near_N, difference_N
    return torch.stack([values_N.double().sum() for values_N in counted]).cpu()


def parity_limits(n: float, parity: ParityConfig) -> tuple[float, float]:
    """Limits for n drafts: share of differing drafts, mean difference in nats."""
    share = 1 - parity.min_agreement
    # Standard error of a share of n drafts (binomial), widened by the design effect (Kish, Survey
    # Sampling, 1965).
    error = math.sqrt(DESIGN_EFFECT * share * parity.min_agreement / n)
    return (
        share + STANDARD_ERRORS * error,
        parity.max_difference + STANDARD_ERRORS * DIFFERENCE_SD / math.sqrt(n),
    )


def parity_failure(sums: Sums, parity: ParityConfig) -> str | None:
    """The reason why parity fails; None if it holds."""
    worst = None
    for depth, (n, equal, near_ties, nats) in enumerate(sums, start=1):
        if not n:  # no response is that long
            continue
        differing = 1 - (equal + near_ties) / n
        difference = nats / n
        most_other, most_difference = parity_limits(n, parity)
        # Negated, so that NaN fails.
        if not (differing <= most_other and difference <= most_difference):
            worst = (
                f"at depth {depth} {differing:.2%} of {n:.0f} drafts differ beyond near ties"
                f" ({most_other:.2%} allowed), and log-probabilities differ by {difference:.3f}"
                f" nats on average ({most_difference:.3f} allowed)"
            )
    if worst is None:
        return None
    return (
        f"{worst}. Usual causes: weights that were not loaded or belong to another checkpoint, a"
        " state fed back before its final norm, tokens or positions off by one, a chat template or"
        " tokenizer other than the target's, quantization on one side only, a cast that rounds"
        " values that must stay float32 (the routing bias)"
    )


def parity_in_words(sums: Sums) -> str:
    """Describes the agreement of the two computations over all depths."""
    n, equal, near_ties, nats = map(sum, zip(*sums, strict=True))
    return (
        f"{equal / n:.2%} of {n:.0f} draft tokens are equal, {near_ties / n:.2%} more are near"
        f" ties, log-probabilities differ by {nats / n:.3f} nats on average"
    )
