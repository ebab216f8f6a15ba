"""Figures of production against the report's: their intervals, readings and causes.

    figure = figure_of(name=LENGTH, reported=2.38, at="K = 3", seen=1.98, error=error,
                       requests=400, causes=causes)
    figure.reading            # "lower"
    sentence(LENGTH, figure)

The reading is `lower` or `higher` if the interval excludes 1 and the ratio differs from it by more
than MARGIN; `undecided` if the interval is wider than the figure's entry in WIDEST; else `as
reported`.
"""

import math
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from outrider.eval.confirm.expectation import Z
from outrider.eval.results.parts import Estimate, Part, interval

MARGIN = 0.03
"""Relative difference that is `as reported` however certain: the gate lets replay and the engine
differ by 2 %, and 1 % more where repeated responses do (max_replay_difference, replay_margin)."""

LENGTH = "acceptance length"
TPOT = "TPOT, ms"
TTFT = "TTFT (p50), ms"
LENGTH_CHANGE = "acceptance length, after / before"
TPOT_CHANGE = "TPOT, after / before"
WIDEST = {LENGTH: 0.1, LENGTH_CHANGE: 0.1, TPOT: 0.25, TPOT_CHANGE: 0.25, TTFT: math.inf}
"""Half-width of the log interval above which a figure is `undecided`. That of the time to first
token is as wide as vLLM's buckets."""

WORSE = {LENGTH: "lower", LENGTH_CHANGE: "lower", TPOT: "higher", TPOT_CHANGE: "higher"}
"""Figure -> the reading that makes production slower than reported."""

Reading = Literal["as reported", "lower", "higher", "undecided"]


class Cause(Part):
    """Why a figure differs."""

    name: Literal["K", "load", "traffic", "acceptance", "prefix hits", "not in the counters"]
    """What differs"""
    words: str
    """The difference, with its numbers"""
    effect: float | None
    """Factor by which it changes the figure; null if the report does not predict it"""


class ConfirmedFigure(Part):
    """One figure, reported and seen."""

    reported: float
    """The report's value, or the value that follows from it"""
    at: str
    """The conditions of the reported value"""
    seen: float
    """The counters' value"""
    ratio: Estimate
    """Seen / reported"""
    reading: Reading
    """What the ratio shows"""
    because: list[Cause] = Field(default_factory=list)
    """The causes in the direction of the difference, the largest known effect first; without a
    difference, another K or load"""
    requests_needed: int | None = None
    """Finished requests that would decide an undecided figure; null if more requests cannot"""


@dataclass(frozen=True)
class LogError:
    """Standard error of a log ratio, in two independent parts."""

    fixed: float
    """The report's part, and differences between engine starts"""
    sampled: float
    """The part that shrinks with the square root of the number of seen requests"""

    def __add__(self, more: "LogError") -> "LogError":
        return LogError(math.hypot(self.fixed, more.fixed), math.hypot(self.sampled, more.sampled))

    @property
    def margin(self) -> float:
        """Half-width of the 95 % interval of the log ratio."""
        return Z * math.hypot(self.fixed, self.sampled)

    def requests_for(self, width: float, requests: int) -> int | None:
        """Number of requests at which the interval's half-width is `width`; None if none is."""
        left = (width / Z) ** 2 - self.fixed**2
        return math.ceil(requests * self.sampled**2 / left) if left > 0 else None


def figure_of(
    *,
    name: str,
    reported: float,
    at: str,
    seen: float,
    error: LogError,
    requests: int,
    causes: list[Cause],
) -> ConfirmedFigure:
    """A figure with its interval, reading and causes."""
    value = seen / reported
    factor = math.exp(error.margin)
    ratio = Estimate(value=value, low=value / factor, high=value * factor, observations=requests)
    reading = reading_of(ratio, WIDEST[name])
    because = causes_of(causes, ratio, reading)
    needed = error.requests_for(WIDEST[name], requests) if reading == "undecided" else None
    return ConfirmedFigure(
        reported=reported,
        at=at,
        seen=seen,
        ratio=ratio,
        reading=reading,
        because=because,
        requests_needed=needed,
    )


def reading_of(ratio: Estimate, widest: float) -> Reading:
    """What an interval of seen / reported shows."""
    if ratio.high < 1 and ratio.value < 1 - MARGIN:
        return "lower"
    if ratio.low > 1 and ratio.value > 1 + MARGIN:
        return "higher"
    if math.log(ratio.high / ratio.low) / 2 > widest:
        return "undecided"
    return "as reported"


def causes_beyond_noise(error: LogError, cause: Cause) -> list[Cause]:
    """The cause if its effect, which was measured, is more than noise."""
    is_shown = cause.effect is not None and abs(math.log(cause.effect)) > error.margin
    return [cause] if is_shown else []


def causes_of(causes: list[Cause], ratio: Estimate, reading: Reading) -> list[Cause]:
    """The causes whose effect has the direction of the difference and exceeds MARGIN.

    Without a difference, those that the servers were set to or had: another K, another load.
    """
    if reading not in ("lower", "higher"):
        return [
            cause
            for cause in causes
            if cause.name in ("K", "load") and abs(math.log(cause.effect or 1.0)) > MARGIN
        ]
    sign = 1 if ratio.value > 1 else -1
    known = [
        cause
        for cause in causes
        if cause.effect is not None and sign * math.log(cause.effect) > math.log1p(MARGIN)
    ]
    known.sort(key=lambda cause: -sign * math.log(cause.effect or 1.0))
    return known + [cause for cause in causes if cause.effect is None]


def sentence(name: str, figure: ConfirmedFigure) -> str:
    """A figure's reading in words."""
    words = (
        f"{name}: {figure.reading}, {figure.seen:.2f} against {figure.reported:.2f} at {figure.at}"
        f" (x {interval(figure.ratio)})"
    )
    causes = [
        cause.words + ("" if cause.effect is None else f" (x {cause.effect:.2f})")
        for cause in figure.because
    ]
    if causes:
        # Without a difference, the causes have been outweighed, or are within the interval.
        link = "because" if figure.reading in ("lower", "higher") else "although"
        words += f", {link} {'; '.join(causes)}"
    return f"{words}; {_decided_by(figure)}" if figure.reading == "undecided" else words


def _decided_by(figure: ConfirmedFigure) -> str:
    """What would narrow an undecided figure's interval."""
    if figure.requests_needed is None:
        return "the report's own interval is too wide: evaluate with more held-out sessions"
    return f"about {figure.requests_needed:,} finished requests would decide"
