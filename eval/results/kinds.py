"""Models of the choice among several kinds of drafter: forecast, served speed, and why."""

from outrider.eval.results.parts import ClusteredEstimate, Estimate, Part

FINALISTS = 2
"""Kinds that are served."""


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

    main_concurrency: int
    """Concurrency at which the kinds are ranked"""
    none_step_ms: dict[str, float]
    """Concurrency -> milliseconds of a step without speculation"""
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
    k: int
    """Its K there"""
    over_none: dict[str, dict[str, Estimate]]
    """Engine mode -> concurrency -> its ratio of tokens/s to no speculation"""
    over_base: dict[str, dict[str, Estimate]]
    """Engine mode -> concurrency -> its ratio of tokens/s to base"""


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
