"""Models of the choice among several kinds of drafter: forecast, served speed, and why."""

from outrider.eval.results.parts import Estimate, Part, SliceEstimate
from outrider.eval.results.prediction import KReason


class KindFacts(Part):
    """What a kind's training cost, and what its speculator weighs."""

    parameters: int
    """Values in its weight files"""
    megabytes: float
    """Size of its weight files in 10^6 bytes"""
    training_minutes: float
    """Time of its training, the check of its warm start included"""


class KindForecast(Part):
    """A trained kind, from exact replay of the validation part and timed steps of its server."""

    kind: str
    """The value of speculator.kind"""
    in_words: str
    """The kind in words"""
    k: int
    """Its own best number of drafts at the main concurrency, or the only one that it can make"""
    reason: KReason | None
    """Why it drafts so many; null where it can make only one number of drafts"""
    acceptance_length: SliceEstimate
    """At k, over the sessions of the validation part"""
    step_ms: dict[str, float]
    """Concurrency -> milliseconds of a step with these drafts"""
    tokens_per_s: dict[str, SliceEstimate]
    """Concurrency -> predicted tokens/s; the interval has the noise of acceptance and of steps, and
    leaves out the machine's speed, which all kinds shared"""
    facts: KindFacts
    """Cost and size"""


class KindChoice(Part):
    """Result of the stage choose_kind: which kinds are served, chosen on the validation part."""

    mode: str
    """Engine mode whose steps were timed"""
    main_concurrency: int
    """Concurrency at which the kinds are ranked"""
    sequences: int
    """Number of validation responses replayed"""
    none_step_ms: dict[str, float]
    """Concurrency -> milliseconds of a step without speculation"""
    kinds: list[KindForecast]
    """Every trained kind, the fastest by forecast first"""
    finalists: list[str]
    """Kinds that are served: the first two"""

    def of(self, kind: str) -> KindForecast:
        """The forecast of that kind."""
        return next(each for each in self.kinds if each.kind == kind)


class KindServed(Part):
    """A kind that was served against base and none, in its own evaluation."""

    verdict: str
    """Verdict of that evaluation"""
    k: int
    """Its K there"""
    tokens_per_s: dict[str, dict[str, Estimate]]
    """Engine mode -> concurrency -> measured tokens/s; the interval is that of its ratio to no
    speculation"""
    none_tokens_per_s: dict[str, dict[str, float]]
    """Engine mode -> concurrency -> tokens/s without speculation in the same evaluation"""
    over_none: dict[str, dict[str, Estimate]]
    """Engine mode -> concurrency -> its ratio to no speculation"""
    over_base: dict[str, dict[str, Estimate]]
    """Engine mode -> concurrency -> its ratio to base"""


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
