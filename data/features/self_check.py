"""Checks on a sample, before every capture, that captured states are those of the engine's head.

log softmax of lm_head over the states must give the engine's own prompt log-probabilities. A silent
error (the state before the final norm, an index off by one, another revision) changes them
clearly; bf16 rounding and an occasional other expert do not. So the gate reads the 99th percentile
and the top-1 agreement, never the maximum. The engine computes its log-probabilities twice, in
different batches: what it differs from itself is allowed, and a margin (common/tolerance.py).

    check = self_check(engine, rows, ends.lm_head_VH)      # numbers
    require(check)                                         # an OutriderError with likely causes
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from outrider.common.errors import OutriderError
from outrider.common.tolerance import Tolerance
from outrider.speculators.features import FINAL_NORM

if TYPE_CHECKING:
    from outrider.serving.engine import Engine, PromptLogprobs

Row = tuple[str, Sequence[int], int]
"""(sequence id, token ids, completion start)"""

POSITIONS_AT_A_TIME = 256
"""Bounds the float32 logits: 256 x 129280 x 4 bytes = 132 MB for R1."""

MAX_DIFFERENCE, MARGIN = 0.15, 0.05
"""Maximum 99th percentile of |log-probability rebuilt from the states - the engine's|, in nats, and
what it may exceed the engine's difference from itself by."""

MAX_DISAGREEMENT, DISAGREEMENT_MARGIN = 0.05, 0.02
"""The same for the share of positions with another most probable token."""


@dataclass(frozen=True)
class SelfCheck:
    """Differences between rebuilt and engine log-probabilities."""

    sequences: int
    positions: int
    p99_difference: float
    """Nats, 99th percentile."""
    top1_agreement: float
    """Share of positions with the same most probable token."""
    control_p99_difference: float
    """Nats, 99th percentile between the engine's log-probabilities in two batches."""
    control_top1_agreement: float
    """Share of positions with the same most probable token in both."""

    def describe(self) -> str:
        """The numbers in a sentence."""
        return (
            f"self-check on {self.sequences} sequences, {self.positions} positions:"
            " log-probabilities from the states differ from the engine's by less than"
            f" {self.p99_difference:.1e} nats at 99 %, same top token at {self.top1_agreement:.2%}."
            f" The engine differs from itself, in other batches, by"
            f" {self.control_p99_difference:.1e} nats at 99 %, same top token at"
            f" {self.control_top1_agreement:.2%}"
        )


def self_check(engine: "Engine", rows: Sequence[Row], lm_head_VH: torch.Tensor) -> SelfCheck:
    """Runs `rows` through the engine for states and for log-probabilities, and compares them."""
    prompts = [(row_id, token_ids) for row_id, token_ids, _ in rows]
    hidden = {row_id: states[FINAL_NORM] for row_id, states, _ in engine.prefill(prompts)}
    differences, agreements, control_differences, control_agreements = [], [], [], []
    head = lm_head_VH.float()
    for (row_id, token_ids), logged, again in zip(
        prompts, engine.prompt_logprobs(prompts), _in_other_batches(engine, prompts), strict=True
    ):
        rebuilt, top = rebuilt_logprobs(
            hidden.pop(row_id), torch.as_tensor(token_ids, dtype=torch.long), head
        )
        logprobs = torch.from_numpy(logged.logprobs)
        differences.append((rebuilt - logprobs).abs())
        agreements.append(top == torch.from_numpy(logged.top_tokens))
        control_differences.append((torch.from_numpy(again.logprobs) - logprobs).abs())
        control_agreements.append(torch.from_numpy(again.top_tokens == logged.top_tokens))
    return SelfCheck(
        sequences=len(rows),
        positions=sum(map(len, differences)),
        p99_difference=_percentile(torch.cat(differences), 0.99),
        top1_agreement=torch.cat(agreements).float().mean().item(),
        control_p99_difference=_percentile(torch.cat(control_differences), 0.99),
        control_top1_agreement=torch.cat(control_agreements).float().mean().item(),
    )


def _in_other_batches(
    engine: "Engine", prompts: list[tuple[str, Sequence[int]]]
) -> "list[PromptLogprobs]":
    """The engine's log-probabilities of the same rows, half of them at a time, last row first."""
    backwards = prompts[::-1]
    half = (len(backwards) + 1) // 2
    parts = [part for part in (backwards[:half], backwards[half:]) if part]
    return [answer for part in parts for answer in engine.prompt_logprobs(part)][::-1]


def rebuilt_logprobs(
    hidden_TH: torch.Tensor, token_ids: torch.Tensor, lm_head_VH: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of the token after each of h_0 .. h_{T-2}, and the most probable token."""
    logprobs, tops = [], []
    for start in range(0, len(token_ids) - 1, POSITIONS_AT_A_TIME):
        following = token_ids[start + 1 : start + 1 + POSITIONS_AT_A_TIME]
        # The engine's head computes in bf16; rounding alike halves the remaining difference.
        logits = (
            (hidden_TH[start : start + len(following)].float() @ lm_head_VH.T)
            .to(hidden_TH.dtype)
            .float()
        )
        logprobs.append(logits.log_softmax(-1).gather(-1, following[:, None])[:, 0])
        tops.append(logits.argmax(-1))
    return torch.cat(logprobs), torch.cat(tops)


def require(check: SelfCheck) -> None:
    """Raises an `OutriderError` where the check is outside its tolerance."""
    difference = Tolerance(MAX_DIFFERENCE, check.control_p99_difference, MARGIN)
    disagreement = Tolerance(
        MAX_DISAGREEMENT, 1 - check.control_top1_agreement, DISAGREEMENT_MARGIN
    )
    # Written so that a NaN fails too.
    if (
        check.p99_difference <= difference.allowed
        and check.top1_agreement >= 1 - disagreement.allowed
    ):
        return
    raise OutriderError(
        f"{check.describe()}. Allowed are {difference.describe()} (99th percentile),"
        f" and another top token at a share of {disagreement.describe()}. Usual"
        " causes: states taken before the final norm instead of after it, or one position off (a"
        " vLLM that Outrider's capture does not know); lm_head and engine from different revisions"
        " or quantizations of the target; an engine that computes this model wrongly on this"
        " machine"
    )


def _percentile(values: torch.Tensor, share: float) -> float:
    # torch.quantile takes at most 16M values.
    return values.sort().values[min(int(share * len(values)), len(values) - 1)].item()
