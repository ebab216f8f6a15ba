"""Models of what is chosen on the validation part: K, and the kind of drafter."""

from outrider.eval.results.parts import ClusteredEstimate, Drafter, Drafters, Estimate, Part

FINALISTS = 2
"""Kinds that are served."""


class Choice(Part):
    """How the k of base and of custom were chosen, on the validation part."""

    k: Drafters[int]
    """Drafted tokens per step"""
    undecided: Drafters[tuple[int, ...]] | None = None
    """Other k that the timed steps could not tell from it: smaller ones over which none is shown to
    gain 1 %, larger ones that are not shown not to. Null where k was not chosen"""
    k_per_batch_size: Drafters[list[tuple[int, int, int]] | None] | None = None
    """[first batch size, last, best k]; null where the recipe sets k"""
    acceptance_length: Drafters[list[float] | None] | None = None
    """On the validation part, for k = 1..depth; null where exact replay is not measured"""
    step_ms: dict[Drafter, dict[str, list[float]]] | None = None
    """Whose engine -> batch size -> milliseconds per step for k = 0..depth; k = 0 is the target
    alone. Of custom, and of base where it has an engine of its own. Null where nothing was timed"""
    rounds: dict[str, int] | None = None
    """Batch size -> number of timed rounds; null where nothing was timed"""
    source: str
    """Where the times come from"""
    sequences: int
    """Number of validation responses replayed"""


class KindFacts(Part):
    """What a kind's training cost, and how large its speculator is."""

    parameters: int
    """Values in its weight files"""
    training_minutes: float
    """Time of its training, the check of its warm start included"""


class KindForecast(Part):
    """A trained kind, from exact replay of the validation part and timed steps of its server."""

    kind: str
    """The value of speculator.kind"""
    k: int
    """Its own best number of drafts at the main concurrency, or the only one that it can make"""
    acceptance_length: ClusteredEstimate
    """At k, over the sessions of the validation part"""
    step_ms: dict[str, float]
    """Concurrency -> milliseconds of a step with these drafts"""
    facts: KindFacts
    """Cost and size"""

    def tokens_per_s(self, concurrency: str) -> float:
        """The forecast: concurrency x acceptance length over the time of a step."""
        return 1000 * int(concurrency) * self.acceptance_length.value / self.step_ms[concurrency]


class KindChoice(Part):
    """Result of the stage choose_kind: which kinds are served, chosen on the validation part."""

    kinds: list[KindForecast]
    """Every trained kind, the fastest by forecast first"""

    @property
    def finalists(self) -> list[str]:
        """Kinds that are served."""
        return [each.kind for each in self.kinds[:FINALISTS]]

    def of(self, kind: str) -> KindForecast:
        """The forecast of that kind."""
        return next(each for each in self.kinds if each.kind == kind)


class KindServed(Part):
    """A kind that was served against base and none, in its own evaluation."""

    verdict: str
    """Verdict of that evaluation"""
    over_none: dict[str, dict[str, Estimate]]
    """Engine mode -> concurrency -> its ratio of tokens/s to no speculation"""


class Kinds(Part):
    """Which of several kinds this evaluation is of, and why."""

    choice: KindChoice
    """The forecast for every kind"""
    served: dict[str, KindServed]
    """Kind -> what was measured of it; kinds that were not served are left out"""
    chosen: str
    """The kind of the custom speculator"""
    reason: str
    """Why, in a sentence"""
