"""Sequential measurement: intervals that stay valid whenever the measurement stops.

    looks = InterimLooks(first=3, last=8)                      # after 3 and 8 repeats
    ratio = measured_ratio(units, looks.level(repeats))
    if not ratio.low <= 1.0 < ratio.high:
        ...                                             # stop; `ratio` is the interval to report

Checking a 95 % interval after every repeat and stopping at the first decisive one is wrong in more
than 5 % of cases. So the 5 % is divided among the looks, the points where measuring may stop (alpha
spending: Lan and DeMets, Biometrika 70, 1983). Each look's share sets the level of its interval,
which is a repeated confidence interval (Jennison and Turnbull, JRSS B 51, 1989). After a fraction t
of the repeats, 0.05 t^2 is spent (Kim and DeMets, Biometrika 74, 1987). The number of repeats
doubles from look to look up to half of all: the looks after 3 and 8 of 8 repeats get 0.007 and
0.043, those after 3, 6, 12 and 32 of 32 repeats 0.0004, 0.0013, 0.0053 and 0.043.

Early looks get little, so only a large difference ends a measurement early, and the last look keeps
most of the power. With half of the 5 % spent on the first of seven looks, measurements that passed
overstated a true ratio of 1.10 by 5 to 7 %. `intervals.correct_for_selection` corrects the
remaining bias.

The probability that any interval misses the true value is at most the sum of the looks' shares
(Boole's inequality), for any dependence between looks and any stopping rule.
"""

from dataclasses import dataclass

from outrider.eval.config import EvalConfig
from outrider.eval.stats.intervals import LEVEL

FIRST_LOOK = 3
"""Number of repeats before the first look: with fewer starts, no comparison across two engines is
decided (speed_checks.LEAST_STARTS)."""


@dataclass(frozen=True)
class InterimLooks:
    """Repeats at which measurement may stop: `first`, doubled up to half of `last`; `last`."""

    first: int
    last: int

    @property
    def repeats(self) -> list[int]:
        """Number of repeats at each look, ascending."""
        looks = [self.first]
        while looks[-1] < self.last:
            # A look after more than half of the repeats would save little time and cost power.
            doubled = 2 * looks[-1]
            looks.append(doubled if 2 * doubled <= self.last else self.last)
        return looks

    def level(self, repeats: int) -> float:
        """Confidence level of the interval at the look after `repeats` repeats."""
        before = max((look for look in self.repeats if look < repeats), default=0)
        # alpha(t) = 0.05 t^2 with t = repeats / last; a look spends what the earlier ones left of
        # it.
        return 1 - (1 - LEVEL) * (repeats**2 - before**2) / self.last**2


def interim_looks(settings: EvalConfig) -> InterimLooks:
    """The looks that the recipe's `eval` section plans."""
    if settings.measure == "full":
        return InterimLooks(settings.repeats, settings.repeats)
    return InterimLooks(min(FIRST_LOOK, settings.repeats), settings.repeats)
