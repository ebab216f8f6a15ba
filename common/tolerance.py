"""Limits for comparing two computations, from the recipe or the engine's noise.

    tolerance = Tolerance(limit=0.15, control=0.2, margin=0.05)
    tolerance.outcome(0.24)    # "passed"; 0.26: "failed"

The results of some kernels, especially FP8 kernels, depend on the batch. The control is the
difference between two batchings of the same requests in one engine. A check allows the recipe's
limit, or the control plus a margin if that is larger, up to a cap of `MOST_LIMITS` times the limit,
because more noise would hide any fault. Differences from the cap to the control plus the margin
are undecided.
"""

from dataclasses import dataclass
from typing import Literal

MOST_LIMITS = 3.0
"""Cap on the allowed difference, as a multiple of the recipe's limit."""


@dataclass(frozen=True)
class Tolerance:
    """The largest difference that a check allows."""

    limit: float
    """The recipe's limit."""
    control: float
    """The difference between two batchings of the same requests."""
    margin: float
    """Amount by which the difference may exceed the control."""

    @property
    def allowed(self) -> float:
        """The larger of limit and control plus margin, up to the cap."""
        return min(max(self.limit, self.control + self.margin), MOST_LIMITS * self.limit)

    def outcome(self, difference: float) -> Literal["passed", "failed", "undecided"]:
        """Judges a difference; undecided if only the engine's noise explains it."""
        if difference <= self.allowed:
            return "passed"
        return "undecided" if difference <= self.control + self.margin else "failed"

    def describe(self) -> str:
        """Describes the allowed difference and its derivation."""
        return (
            f"{self.allowed:.3g}, the larger of {self.limit:.3g} and {self.control:.3g} + "
            f"{self.margin:.3g} (the engine against itself and a margin), at most "
            f"{MOST_LIMITS:g} times the first"
        )
