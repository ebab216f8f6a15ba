"""Measuring until decided: intervals that stay valid at whichever look the measurement stops.

    looks = Looks(first=2, last=8)                      # after 2, 3, ... 8 repeats
    ratio = alternated_ratio(pairs, looks.level(repeats))
    if decided(ratio, threshold=1.0):
        ...                                             # stop; `ratio` is the interval to report

Who looks at a 95 % interval after every repeat and stops at the first that suits him is wrong more
often than 5 % of the time: at a true ratio of 1 and seven looks, about 15 %. So the 5 % are spent
over the looks (Lan and DeMets, Biometrika 70, 1983), and the interval at each look has the level
that remains for it: a repeated confidence interval (Jennison and Turnbull, JRSS B 51, 1989).
Look j of J has the error probability

    alpha_j = 0.05 / (j (j + 1))   for j < J,        alpha_J = 0.05 / J

which sum to 0.05, since 1 / (1 2) + 1 / (2 3) + ... + 1 / ((J - 1) J) = 1 - 1 / J. The first look
gets half: a speculator that is much faster, or slower, is decided there, and the last one keeps
a share that decides what is close. With one look the interval is the usual one.

The probability that any of the intervals misses is at most the sum (Boole's inequality), however
the looks depend on each other and whatever ends the measurement: the verdict, a limit of time, or
somebody who is tired of waiting. This also holds for figures that the rule does not read. The
boundaries of Pocock or O'Brien and Fleming are up to 10 % narrower, but need the joint distribution
of the looks: independent, normal increments, and a stop by nothing but the rule.
"""

from dataclasses import dataclass

from outrider.eval.config import EvalConfig
from outrider.eval.results.parts import Estimate
from outrider.eval.stats.intervals import LEVEL


@dataclass(frozen=True)
class Looks:
    """The repeats after which a measurement may stop: `first`, `first` + 1, ... `last`."""

    first: int
    last: int

    def level(self, repeats: int) -> float:
        """Confidence level of an interval computed after so many repeats."""
        look, planned = repeats - self.first + 1, self.last - self.first + 1
        share = 1 / planned if look == planned else 1 / (look * (look + 1))
        return 1 - (1 - LEVEL) * share


def looks_of(settings: EvalConfig) -> Looks:
    """The looks that a recipe plans."""
    if settings.measure == "full":
        return Looks(settings.repeats, settings.repeats)
    return Looks(min(settings.min_repeats, settings.repeats), settings.repeats)


def level_after(repeats: int, settings: EvalConfig) -> float:
    """Confidence level of every interval from timed blocks, measured `repeats` times."""
    return LEVEL if settings.measure == "full" else looks_of(settings).level(repeats)


def decided(estimate: Estimate, threshold: float) -> bool:
    """Whether the interval shows that the estimate is above the threshold, or that it is not."""
    return estimate.low > threshold or estimate.high <= threshold
