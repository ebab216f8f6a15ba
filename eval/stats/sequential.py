"""Measuring until decided: intervals that stay valid at whichever look the measurement stops.

    looks = Looks(first=2, last=8)                      # after 2, 4 and 8 repeats
    ratio = measured_ratio(units, looks.level(repeats))
    if not ratio.low <= 1.0 < ratio.high:
        ...                                             # stop; `ratio` is the interval to report

Who looks at a 95 % interval after every repeat and stops at the first that suits him is wrong more
often than 5 % of the time. So the 5 % are spent over the looks (Lan and DeMets, Biometrika 70,
1983), and the interval at each look has the level that remains for it: a repeated confidence
interval (Jennison and Turnbull, JRSS B 51, 1989). With t the share of the repeats that are
measured, 0.05 t^2 are spent by then (Kim and DeMets, Biometrika 74, 1987), and a look gets what is
spent since the one before. The number of repeats doubles from look to look: after 2, 4 and 8 of 8
repeats a look gets 0.003, 0.009 and 0.038.

Early looks get little, so that only a large difference ends a measurement early, and the last one
keeps most of the power: with half of the 5 % for the first of seven looks, a true ratio of 1.10 was
reported 5 to 7 % too large where it shipped. `intervals.given_passed` corrects what is left.

The probability that any of the intervals misses is at most the sum (Boole's inequality), however
the looks depend on each other and whatever ends the measurement.
"""

from dataclasses import dataclass

from outrider.eval.config import EvalConfig
from outrider.eval.stats.intervals import LEVEL

FIRST_LOOK = 2
"""Repeats before the first look."""


@dataclass(frozen=True)
class Looks:
    """The repeats after which a measurement may stop: `first`, twice as many, ... `last`."""

    first: int
    last: int

    @property
    def repeats(self) -> list[int]:
        """Numbers of repeats, ascending."""
        found = [self.first]
        while found[-1] < self.last:
            found.append(min(2 * found[-1], self.last))
        return found

    def level(self, repeats: int) -> float:
        """Confidence level of an interval computed after so many repeats."""
        before = max((look for look in self.repeats if look < repeats), default=0)
        return 1 - (1 - LEVEL) * (repeats**2 - before**2) / self.last**2


def looks_of(settings: EvalConfig) -> Looks:
    """The looks that a recipe plans."""
    if settings.measure == "full":
        return Looks(settings.repeats, settings.repeats)
    return Looks(min(FIRST_LOOK, settings.repeats), settings.repeats)
