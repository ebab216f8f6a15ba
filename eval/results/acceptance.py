"""Models of acceptance: exact replay, slices, and vLLM's counters."""

from typing import Literal

from outrider.eval.results.parts import DOCUMENTED, ClusteredEstimate, Drafters, Part


class OnPolicy(Part):
    """Whether the held-out sequences are on-policy (docs/explanation/traffic.md)."""

    cause: str
    """`own` where the target wrote the text, else the likely cause"""
    text: str
    """The same in words"""
    sequences: int
    """Number of sequences checked"""


Series = dict[Literal["base", "custom", "lookup", "ceiling"], list[float]]


class Replay(Part):
    """Exact replay of held-out responses.

    Acceptance lengths are at custom's K for both: one of more drafts can only be larger.
    """

    base: ClusteredEstimate
    """Acceptance length of base at custom's K: delivered tokens over expected steps"""
    custom: ClusteredEstimate
    """Acceptance length of custom at its K"""
    ratio: ClusteredEstimate
    """custom / base, paired by response"""
    lookup: ClusteredEstimate
    """Acceptance length of n-gram lookup at custom's K"""
    ceiling: ClusteredEstimate
    """Acceptance length of a perfect drafter at custom's K"""
    by_k: Series
    """Acceptance length for k = 1..depth"""
    cumulative: Series
    """By position j, base at its own K, all others at custom's: share of steps whose drafts 1..j
    were all accepted"""
    cumulative_ci95: list[tuple[float, float] | None]
    """95 % intervals of custom's; null where sessions are few or no draft was accepted"""


class Workload(Part):
    """A public workload, by exact replay of the target's responses."""

    by_k: dict[Literal["base", "custom"], list[float]]
    """Acceptance length for k = 1..depth"""
    ratio: ClusteredEstimate
    """custom / base at the trained depth"""


class Slice(Part):
    """A slice of the held-out traffic, by exact replay."""

    name: str
    """The tenant, route, template ... or the part of the response"""
    base: ClusteredEstimate
    """Acceptance length of base"""
    custom: ClusteredEstimate
    """Acceptance length of custom"""
    ratio: ClusteredEstimate
    """custom / base"""


class CountedDrafter(Part):
    """What vLLM counted for one speculator, pooled over passes."""

    acceptance_length: float
    """Tokens after each response's first over steps"""
    steps: int
    """Number of steps, with or without drafts"""
    cumulative: list[float]
    """By position j: share of the steps whose drafts 1..j were all accepted"""


class Counted(Drafters[CountedDrafter]):
    """Acceptance from vLLM's counters, at the customer's sampling."""

    model_config = DOCUMENTED

    ratio: ClusteredEstimate
    """custom / base"""
