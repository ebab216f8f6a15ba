"""Models of what is chosen on the validation part: K, and the kind of drafter."""

from pydantic import Field

from outrider.eval.results.parts import ClusteredEstimate, Drafter, Drafters, Part


class Choice(Part):
    """How the k of base and of custom were chosen, on the validation part."""

    k: Drafters[int]
    """Drafted tokens per step"""
    k_per_batch_size: Drafters[list[tuple[int, int, int]]] | None = None
    """[first batch size, last, best k]; null where not both were timed"""
    acceptance_length: Drafters[list[float]] | None = None
    """On the validation part, for k = 1..depth; null where exact replay is not measured"""
    step_ms: dict[Drafter, dict[str, dict[int, float]]] = Field(default_factory=dict)
    """Whose steps -> batch size -> k -> milliseconds per step; empty where nothing was timed"""
    source: str
    """Where the times come from"""
    sequences: int
    """Number of validation responses replayed"""


class KindSpeed(Part):
    """A trained kind: acceptance by exact replay over the time of its steps."""

    kind: str
    """The value of speculator.kind"""
    k: int
    """Its own best number of drafts at the main concurrency, or the only one that it can make"""
    acceptance_length: ClusteredEstimate
    """At k, over the sessions of the validation part"""
    step_ms: dict[str, float]
    """Concurrency -> milliseconds of a step with these drafts"""
    parameters: int
    """Values in its weight files"""
    training_minutes: float
    """Time of its training, the check of its warm start included"""

    def tokens_per_s(self, concurrency: str) -> float:
        """Concurrency x acceptance length over the time of a step."""
        return 1000 * int(concurrency) * self.acceptance_length.value / self.step_ms[concurrency]


class KindChoice(Part):
    """Result of the stage choose_kind: the kind that is evaluated, chosen on validation."""

    kinds: list[KindSpeed]
    """Every trained kind, the fastest at the main concurrency first"""

    @property
    def chosen(self) -> str:
        """The fastest kind."""
        return self.kinds[0].kind
