"""Models of acceptance: exact replay, slices, mixtures, and vLLM's counters."""

from outrider.eval.results.parts import (
    DOCUMENTED,
    ClusteredEstimate,
    Drafters,
    Part,
    SliceEstimate,
)


class OnPolicy(Part):
    """Whether the held-out sequences are on-policy (docs/traffic.md)."""

    own: bool | None
    """Whether the target wrote the text; null where there is too little text to decide"""
    cause: str
    """The likely cause where it is not"""
    text: str
    """The same in words"""
    sequences: int
    """Number of sequences checked"""


class Replay(Part):
    """Exact replay of held-out responses.

    Acceptance lengths are at custom's K for both: one of more drafts can only be larger.
    """

    base: ClusteredEstimate
    """Acceptance length of base at custom's K: delivered tokens over expected steps"""
    custom: ClusteredEstimate
    """Acceptance length of custom at its K"""
    ratio: ClusteredEstimate
    """custom / base, paired by response, over sessions"""
    sequences: int
    """Number of responses"""
    sessions: int
    """Number of sessions"""
    tokens: int
    """Number of tokens that steps delivered"""
    by_k: Drafters[list[float]]
    """Acceptance length for k = 1..depth"""
    cumulative: Drafters[list[float]]
    """By position j, each at its own K: share of steps whose drafts 1..j were all accepted"""
    conditional: Drafters[list[float]]
    """The same: share of drafts at j accepted, where all earlier ones were"""


class MixturePart(Part):
    """A mixture on one part of the traffic."""

    acceptance_length: ClusteredEstimate
    """Acceptance length by exact replay"""
    ratio: ClusteredEstimate
    """Mixture / base"""


class Mixture(Part):
    """An average of base's and custom's weights."""

    share: float
    """Weight of custom"""
    validation: MixturePart | None = None
    """On the validation part, where the share is chosen"""
    heldout: MixturePart | None = None
    """On the held-out part; null unless this share is the best on validation, and better than
    custom"""
    general: MixturePart | None = None
    """On general traffic; null like `heldout`, and where the recipe has none"""


class Slice(Part):
    """A slice of the held-out traffic, by exact replay."""

    name: str
    """The tenant, route, template ... or the part of the response"""
    sequences: int
    """Number of responses"""
    sessions: int
    """Number of sessions"""
    tokens: int
    """Number of tokens that steps delivered"""
    base: SliceEstimate
    """Acceptance length of base"""
    custom: SliceEstimate
    """Acceptance length of custom"""
    ratio: SliceEstimate
    """custom / base"""


class CountedDrafter(Part):
    """What vLLM counted for one speculator, pooled over passes."""

    acceptance_length: float
    """1 + accepted_tokens / drafts, including drafts past the end of responses; where `steps` is
    given, delivered tokens / steps"""
    drafts: int
    """Number of steps with drafts"""
    accepted_tokens: int
    """Number of accepted drafts"""
    cumulative: list[float]
    """As in `replay`"""
    conditional: list[float] | None = None
    """As in `replay`, including drafts past the end; null where exact replay is not measured"""
    steps: int | None = None
    """Number of steps, with or without drafts; null where exact replay is measured"""


class Counted(Drafters[CountedDrafter]):
    """Acceptance from vLLM's counters, at the customer's sampling."""

    model_config = DOCUMENTED

    ratio: ClusteredEstimate
    """custom / base, over sessions"""
