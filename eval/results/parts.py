"""What all models of report.json share: the base class, estimates, groups of variants."""

from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from outrider.common.jackknife import LEAST_SESSIONS

T = TypeVar("T")

Variant = Literal["none", "base", "custom"]
Drafter = Literal["base", "custom"]
VARIANTS: tuple[Variant, ...] = ("none", "base", "custom")
"""What is measured: no speculation, the speculator in use, the speculator that is judged."""
DRAFTERS: tuple[Drafter, ...] = ("base", "custom")
RATIOS: dict[str, tuple[Variant, Variant]] = {
    "custom_over_base": ("custom", "base"),
    "custom_over_none": ("custom", "none"),
    "base_over_none": ("base", "none"),
}
"""Name of each ratio of speeds -> numerator and denominator."""

CURRENT = "base_current"
"""Base at eval.current_k, measured where that is not base's K."""
LOOKUP = "lookup"
"""N-gram lookup, which needs no training: a variant where neither base nor custom is it."""


class Part(BaseModel):
    """An object of the report; it has no keys but these."""

    model_config = ConfigDict(
        extra="forbid", use_attribute_docstrings=True, frozen=True, allow_inf_nan=False
    )


class Estimate(Part):
    """A figure with its 95 % interval."""

    value: float
    """Ratio of the pooled sums"""
    low: float
    """Low end of the interval"""
    high: float
    """High end of the interval"""
    observations: int | None = None
    """Number of requests"""
    clusters: int | None = None
    """Pairs of requests, timed blocks, starts or sessions that the interval rests on"""
    estimator: Literal["measured", "replay"] = "measured"
    """`measured`: the ratio of tokens/s; `replay`: with exact replay's acceptance in the place of
    that of the few timed responses, where the two agree"""


class ClusteredEstimate(Part):
    """A figure over sessions and users; its interval is null where sessions are few."""

    value: float
    """Ratio of the pooled sums"""
    low: float | None
    """Low end of the 95 % interval; null below five sessions"""
    high: float | None
    """High end of the 95 % interval; null below five sessions"""
    observations: int
    """Number of responses"""
    clusters: int
    """Number of sessions, or of users where their interval is the wider one"""
    over: str
    """The same in words, with what the interval does not speak for"""

    def undecided(self) -> str:
        """Why there is no interval."""
        if self.clusters < LEAST_SESSIONS:
            return f"undecided: {self.over}, at least {LEAST_SESSIONS} needed"
        return f"undecided: one of {self.over} holds all tokens"


def interval(estimate: Estimate | ClusteredEstimate, digits: int = 2) -> str:
    """An estimate with its interval, if it has one."""
    value = f"{estimate.value:.{digits}f}"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


DOCUMENTED = ConfigDict(use_attribute_docstrings=True)
"""For a class derived from a type of a generic one."""


class Drafters(Part, Generic[T]):
    """One value for base, one for custom."""

    # In a generic class pydantic 2 looks for attribute docstrings again for each type: it searches
    # all loaded modules at every frame of the stack, 5 s of imports in a process with vLLM.
    model_config = ConfigDict(use_attribute_docstrings=False)

    base: T = Field(description="The speculator in use")
    custom: T = Field(description="The trained speculator")

    def of(self, name: Variant) -> T:
        """The value of base or custom; of Variants, of none too."""
        return getattr(self, name)


def k_list(k: Drafters[int]) -> str:
    """The numbers of drafts of base and custom: "5", or "2 / 5"."""
    return str(k.custom) if k.base == k.custom else f"{k.base} / {k.custom}"


class Variants(Drafters[T]):
    """One value without speculation, one for base, one for custom."""

    none: T = Field(description="No speculation")


class Ratios(Part):
    """The three ratios of speeds."""

    custom_over_base: Estimate
    """Custom over base"""
    custom_over_none: Estimate
    """Custom over no speculation"""
    base_over_none: Estimate
    """Base over no speculation"""
