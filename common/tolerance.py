"""Limits of checks that compare two computations: the recipe's, or the engine's own noise.

    tolerance = Tolerance(limit=0.15, control=0.2, margin=0.05)
    tolerance.outcome(0.24)    # "passed"; 0.26: "failed"

Kernels whose result depends on the batch, FP8 above all, do not reproduce themselves. What an
engine shows against itself in the same run, in other batches, is not a fault of what is checked. So
a check allows that and a margin, where this is more than the recipe's limit. An engine that
reproduces itself is judged by the recipe's limit. One that differs from itself by more than
`MOST_LIMITS` times the limit cannot be checked, since its noise would hide any fault: what lies
between that and its noise is undecided.
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
    """The same difference of the engine against itself."""
    margin: float
    """What the difference may exceed the control by."""

    @property
    def allowed(self) -> float:
        """The larger of the recipe's limit and the control with its margin, up to the cap."""
        return min(max(self.limit, self.control + self.margin), MOST_LIMITS * self.limit)

    def outcome(self, found: float) -> Literal["passed", "failed", "undecided"]:
        """Whether a difference is allowed; undecided where only the engine's noise explains it."""
        if found <= self.allowed:
            return "passed"
        return "undecided" if found <= self.control + self.margin else "failed"

    def describe(self) -> str:
        """What is allowed and why."""
        return (
            f"{self.allowed:.3g}, the larger of {self.limit:.3g} and {self.control:.3g} + "
            f"{self.margin:.3g} (the engine against itself and a margin), at most "
            f"{MOST_LIMITS:g} times the first"
        )
