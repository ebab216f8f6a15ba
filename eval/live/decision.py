"""The canary's verdict: promote, roll back, or wait, at any time and as often as one looks.

    decision = decide(stable, canary, endpoint.policy)
    decision.action, decision.reason

Promote: the canary's tokens/s per user are shown to be above 1 - margin of the stable one's, and no
guard looks broken. Roll back: they are shown to be below, or a guard is shown to be broken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from outrider.common.anytime import Bounds
from outrider.eval.live.observations import Observation
from outrider.serving.live.endpoint_file import CanaryPolicy

Action = Literal["wait", "promote", "roll_back"]


@dataclass(frozen=True)
class Decision:
    """What to do with a canary, and the figures that say so. Ratios are canary / stable."""

    action: Action
    reason: str
    """One line, without customers' text."""
    speed: Bounds
    """Tokens/s of a request's own decoding, at equal load."""
    acceptance: Bounds
    """Tokens per step, 1 + accepted / drafts."""
    ttft: Bounds
    """Time to first token."""
    latency: Bounds
    """Time of a request: the typical one, the median's ratio."""
    tail: float
    """Evidence (e-value) that the 99th percentile of latency is over its limit."""
    errors: float
    """Evidence (e-value) that more requests fail than allowed, and more than the stable one's."""
    stable_requests: int
    canary_requests: int
    canary_sessions: int


def decide(
    stable: Sequence[Observation], canary: Sequence[Observation], policy: CanaryPolicy
) -> Decision:
    """The verdict from all requests since the canary got its first share."""
    raise NotImplementedError
