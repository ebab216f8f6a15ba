"""The control of draft parity: the engine's drafts against its own, in another batch size.

    control = Control(near_tie_nats=0.25)
    control.add(depth, log_q_BD, steps, draft_ids)
    control.found()         # {"drafts": 380, "missing": 0.003, "difference": 0.004}

Kernels whose result depends on the batch draft other tokens for the same text. What the engine
shows against itself is no fault of the unroll (common/tolerance.py). Compared are the drafts of
steps with the same tokens before them, and of these every depth up to the first that differs: what
follows was drafted from another token.

Shapes: B anchors of a batch, D draft vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outrider.common.tolerance import Tolerance
from outrider.speculators.config import ParityConfig

if TYPE_CHECKING:
    import torch


def paired(
    steps: Sequence[Mapping[str, Any]], again: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The steps, each with the same step of the second recording as `again`, where it has one."""

    def text(step: Mapping[str, Any]) -> tuple[Any, ...]:
        return step["request"], *step["token_ids"][: step["anchor"] + 2]

    found = {text(step): step for step in again}
    return [{**step, "again": found.get(text(step))} for step in steps]


class Control:
    """Sums over compared drafts."""

    def __init__(self, near_tie_nats: float) -> None:
        self._near_tie_nats = near_tie_nats
        self._drafts = self._equal = self._missing = 0
        self._difference = 0.0

    def add(
        self,
        depth: int,
        log_q_BD: "torch.Tensor",
        steps: Sequence[Mapping[str, Any]],
        in_draft_vocabulary: Callable[[int], int],
    ) -> None:
        """Compares the drafts of one depth; the unroll's log q tells near ties apart."""
        for log_q_D, step in zip(log_q_BD, steps, strict=True):
            other = step.get("again")
            if other is None or other["drafts"][:depth] != step["drafts"][:depth]:
                continue
            self._drafts += 1
            own, others = step["drafts"][depth], other["drafts"][depth]
            if own == others:
                self._equal += 1
                self._difference += abs(step["logprobs"][depth] - other["logprobs"][depth])
                continue
            gap = log_q_D[in_draft_vocabulary(own)] - log_q_D[in_draft_vocabulary(others)]
            self._missing += float(gap.abs()) > self._near_tie_nats

    def found(self) -> dict[str, Any] | None:
        """The share of drafts that differ without a near tie, and nats; None without any draft."""
        if not self._drafts:
            return None
        return {
            "drafts": self._drafts,
            "missing": self._missing / self._drafts,
            "difference": self._difference / max(self._equal, 1),
        }


REFUSED = 0.05
"""Largest probability that an engine within the limit is refused."""


def most_missing(drafts: int, share: float) -> int:
    """How many drafts may be neither equal nor near ties, if a `share` of all may be.

    A binomial bound: at a true share within the limit, more are found in at most `REFUSED` of the
    cases, however many drafts are compared. Drafts of a sequence are alike: where they miss in
    pairs this holds up to 0.8 of the limit (benchmarks/results/judge.md). Operating curve,
    probability of a refusal by the true share, at a limit of 1 % and with independent drafts:

    | drafts | allowed | 0.4 % | 0.8 % | 1 % | 2 % | 3 % | 5 % |
    |---|---|---|---|---|---|---|---|
    | 24 | 1 | 0.4 % | 1.6 % | 2.4 % | 8 % | 16 % | 34 % |
    | 200 | 5 | 0.0 % | 0.6 % | 1.6 % | 21 % | 56 % | 94 % |
    | 800 | 13 | 0.0 % | 0.6 % | 3.3 % | 73 % | 99 % | 100 % |
    """
    from scipy.stats import binom

    return int(binom.isf(REFUSED, drafts, share))


def tolerances(found: Mapping[str, Any], parity: ParityConfig) -> tuple[Tolerance, Tolerance]:
    """Of the share of drafts that are neither equal nor near ties, and of the nats."""
    control = found.get("control") or {"missing": 0.0, "difference": 0.0}
    return (
        Tolerance(1 - parity.min_agreement, control["missing"], parity.agreement_margin),
        Tolerance(parity.max_difference, control["difference"], parity.difference_margin),
    )
