"""Shared parts of report.json's models: base class, estimates, groups of variants."""

from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from outrider.common.jackknife import LEAST_SESSIONS

T = TypeVar("T")

Variant = Literal["none", "base", "custom"]
Drafter = Literal["base", "custom"]
VARIANTS: tuple[Variant, ...] = ("none", "base", "custom")
"""Measured variants: no speculation, the speculator in use, the evaluated speculator."""
DRAFTERS: tuple[Drafter, ...] = ("base", "custom")
RATIOS: dict[str, tuple[Variant, Variant]] = {
    "custom_over_base": ("custom", "base"),
    "custom_over_none": ("custom", "none"),
    "base_over_none": ("base", "none"),
}
"""Name of each speed ratio -> numerator and denominator."""

CURRENT = "base_current"
"""Base at eval.current_k, measured if that differs from base's K."""
LOOKUP = "lookup"
"""The fastest lookup, which needs no training; served if custom has weights."""


class Part(BaseModel):
    """An object of the report; unknown keys are errors."""

    model_config = ConfigDict(
        extra="forbid", use_attribute_docstrings=True, frozen=True, allow_inf_nan=False
    )


class Interval(Part):
    """A figure and the ends of an interval around it."""

    value: float
    """The figure"""
    low: float
    """Low end"""
    high: float
    """High end"""


class Estimate(Part):
    """A figure with its 95 % interval."""

    value: float
    """Ratio of the pooled sums"""
    low: float
    """Lower bound of the interval"""
    high: float
    """High end of the interval"""
    observations: int | None = None
    """Number of requests"""
    clusters: int | None = None
    """Number of request pairs, timed blocks, starts or sessions behind the interval"""
    estimator: Literal["measured", "replay"] = "measured"
    """`replay`: tokens/s of whole responses, from exact replay's steps and measured times of
    prefills and steps; `measured`: the ratio of measured tokens/s, without exact replay"""
    measured: Interval | None = None
    """The ratio of measured tokens/s of the timed responses, which `eval.max_tokens` may cut; null
    if that is the figure itself"""
    expected: float | None = None
    """What replay predicts for the same cut responses; null without replay"""
    lengths: Interval | None = None
    """Ratio of tokens per step after the first token as served, over that of replay on the logged
    responses to the same prompts, at all loads, with its 99 % interval over prompts; null without
    replay"""
    agrees: bool = True
    """Whether the served responses agree with what replay predicts for them"""
    heldout: float | None = None
    """The figure for the held-out traffic. `value` is that of the span after it, if a trend within
    validation and held-out time goes on; null if the log has no times or too few sessions, or
    without replay"""


class ClusteredEstimate(Part):
    """A figure with its interval over sessions or users, if available."""

    value: float
    """Ratio of the pooled sums"""
    low: float | None
    """Lower bound of the 95 % interval; null if there are fewer than five sessions"""
    high: float | None
    """High end of the 95 % interval; null with fewer than five sessions"""
    observations: int
    """Number of responses"""
    clusters: int
    """Number of sessions, or of users if their interval is the wider one"""
    over: str
    """Sessions and users behind the interval, in words"""
    by_session: tuple[float, float] | None = None
    """The narrower interval over independent sessions, if users are unknown (traffic.users); else
    null"""

    def undecided(self) -> str:
        """Explains why there is no interval."""
        if self.clusters < LEAST_SESSIONS:
            return f"undecided: {self.over}, at least {LEAST_SESSIONS} needed"
        return f"undecided: one of {self.over} holds all tokens"


def interval(estimate: Estimate | ClusteredEstimate | Interval, digits: int = 2) -> str:
    """Formats an estimate with its interval, if any."""
    value = f"{estimate.value:.{digits}f}"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


DOCUMENTED = ConfigDict(use_attribute_docstrings=True)
"""Re-enables attribute docstrings in subclasses of `Drafters[...]`, which disables them."""


class Drafters(Part, Generic[T]):
    """One value for base, one for custom."""

    # pydantic 2 looks up attribute docstrings again for each parametrization of a generic class,
    # searching all loaded modules at every stack frame. With vLLM loaded that takes 5 s.
    model_config = ConfigDict(use_attribute_docstrings=False)

    base: T = Field(description="The speculator in use")
    custom: T = Field(description="The trained speculator")

    def of(self, name: Variant) -> T:
        """The value for base or custom; for `Variants`, also for `none`."""
        return getattr(self, name)


def k_list(k: Drafters[int]) -> str:
    """Formats K of base and custom: "5" if equal, else "2 / 5"."""
    return str(k.custom) if k.base == k.custom else f"{k.base} / {k.custom}"


class Variants(Drafters[T]):
    """One value without speculation, one for base, one for custom."""

    none: T = Field(description="No speculation")


class Ratios(Part):
    """The three speed ratios."""

    custom_over_base: Estimate
    """Custom over base"""
    custom_over_none: Estimate
    """Custom over no speculation"""
    base_over_none: Estimate
    """Base over no speculation"""
