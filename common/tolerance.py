"""Limits of checks that compare two computations: the recipe's, or the engine's own noise.

    tolerance = Tolerance(limit=0.15, control=0.2, margin=0.05)
    tolerance.outcome(0.24)    # "passed"; 0.26: "failed"

Kernels whose results depend on the batch, FP8 above all, do not reproduce them in other batches.
The difference of an engine from itself, in other batches of the same run, is its control. A check
allows the control plus a margin if this is more than the recipe's limit, so an engine that
reproduces itself is judged by the limit. If the noise exceeds `MOST_LIMITS` times the limit, it
would hide any fault: differences between that cap and the noise are undecided.
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
    """The same difference between two batches of the engine."""
    margin: float
    """How much the difference may exceed the control."""

    @property
    def allowed(self) -> float:
        """The larger of the recipe's limit and the control with its margin, up to the cap."""
        return min(max(self.limit, self.control + self.margin), MOST_LIMITS * self.limit)

    def outcome(self, found: float) -> Literal["passed", "failed", "undecided"]:
        """Judges a difference; undecided if only the engine's noise explains it."""
        if found <= self.allowed:
            return "passed"
        return "undecided" if found <= self.control + self.margin else "failed"

    def describe(self) -> str:
        """Describes the allowed difference and its derivation."""
        return (
            f"{self.allowed:.3g}, the larger of {self.limit:.3g} and {self.control:.3g} + "
            f"{self.margin:.3g} (the engine against itself and a margin), at most "
            f"{MOST_LIMITS:g} times the first"
        )
