"""Models of what is chosen on the validation part: K, and the kind of drafter."""

from pydantic import Field

from outrider.eval.results.parts import ClusteredEstimate, Drafter, Drafters, Part


class Choice(Part):
    """How the k of base and of custom were chosen, on the validation part."""

    k: Drafters[int]
    """Drafted tokens per step"""
    main_concurrency: int
    """Concurrency at which K is chosen and custom must be faster than base: the lowest measured one
    at which base keeps up with the logged tokens per second; the first one where the log has no
    times or nothing was timed"""
    k_per_batch_size: Drafters[list[tuple[int, int, int]]] | None = None
    """[first batch size, last, best k]; null where not both were timed"""
    acceptance_length: Drafters[list[float]] | None = None
    """On the validation part, for k = 1..depth; null where exact replay is not measured"""
    step_ms: dict[Drafter, dict[str, dict[int, float]]] = Field(default_factory=dict)
    """Whose steps -> batch size -> k -> milliseconds per step; empty where nothing was timed"""
    lookup_k: int | None = None
    """Drafted tokens per step of n-gram lookup; null where it is not served as a reference"""


class KindSpeed(Part):
    """A kind: acceptance by exact replay over the time of its steps, at the main concurrency."""

    kind: str
    """The value of speculator.kind"""
    k: int
    """Its own best number of drafts, or the only one that it can make"""
    acceptance_length: ClusteredEstimate
    """At k, over the sessions of the validation part"""
    step_ms: float
    """Milliseconds of a step with these drafts"""
    over_lookup: ClusteredEstimate | None = None
    """Its tokens/s over those of n-gram lookup, over sessions; null where lookup is not a candidate
    and for lookup itself"""
    parameters: int = 0
    """Values in its weight files"""
    training_minutes: float = 0
    """Time of its training, the check of its warm start included"""

    def tokens_per_s(self, concurrency: int) -> float:
        """Concurrency x acceptance length over the time of a step."""
        return 1000 * concurrency * self.acceptance_length.value / self.step_ms
