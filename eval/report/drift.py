"""Drift: does the same speculator keep its gain on newer traffic?

    history({"march": report, "april": other})      # a series for each speculator of several runs

A speculator is identified by the digest of its weights. Acceptance lengths are exact replay's, each
on its run's own held-out responses, so runs are independent samples. A change is judged by the log
of the ratio to the first run. Its standard errors come from the runs' intervals over sessions (half
their width in logs over 1.96), and Bonferroni's correction counts the later runs. The ratio to base
separates two causes: where the acceptance of both falls, the traffic has become harder to draft;
where custom's falls against base's, the speculator no longer fits it.
"""

import math
from collections import defaultdict
from collections.abc import Mapping

from pydantic import BaseModel
from scipy.stats import norm

from outrider.eval.results.acceptance import Replay
from outrider.eval.results.parts import ClusteredEstimate
from outrider.eval.results.report import Report

Z = float(norm.isf(0.025))

LEVEL = 0.05
"""A change is significant below this p-value, shared among the later runs of a series."""


class Change(BaseModel):
    """A figure of a later run over the first run's, with its 95 % interval."""

    value: float
    low: float
    high: float
    p_value: float
    beyond_chance: bool

    def __str__(self) -> str:
        return f"× {self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


class Point(BaseModel):
    """One run of a series."""

    run: str
    until: float | None
    """When its last held-out request was logged, Unix seconds"""
    replay: Replay
    acceptance_length: Change | None = None
    """Custom's, over the first run's; null for the first and where runs are not comparable"""
    over_base: Change | None = None
    """custom / base, over the first run's; null as well"""
    reading: str = ""
    """The change in words"""


class Series(BaseModel):
    """The runs that evaluated one speculator."""

    weights: str
    """SHA-256"""
    points: list[Point]


def history(runs: Mapping[str, Report]) -> list[Series]:
    """A series for every speculator that two runs or more have evaluated.

    Runs are ordered by the time of their held-out traffic where every run has one, else as given.
    """
    by_weights: dict[str, list[tuple[str, Report]]] = defaultdict(list)
    for name, run in runs.items():
        if run.speculator.weights_sha256 and run.replay:
            by_weights[run.speculator.weights_sha256].append((name, run))
    series = []
    for weights, own in by_weights.items():
        if len(own) > 1:
            if all(run.heldout_until for _, run in own):
                own.sort(key=lambda each: each[1].heldout_until or 0.0)
            first = own[0][1]
            points = [_point(name, run, first, len(own) - 1) for name, run in own]
            series.append(Series(weights=weights, points=points))
    return series


def change(first: ClusteredEstimate, later: ClusteredEstimate, comparisons: int) -> Change:
    """later / first with its 95 % interval and the two-sided p-value of no change.

    The estimates are of independent samples and above 0. `comparisons` shares LEVEL.
    """
    error = math.hypot(_log_error(first), _log_error(later))
    shift = math.log(later.value / first.value)
    p = 2 * float(norm.sf(abs(shift) / error)) if error else float(shift == 0)
    return Change(
        value=math.exp(shift),
        low=math.exp(shift - Z * error),
        high=math.exp(shift + Z * error),
        p_value=p,
        beyond_chance=p < LEVEL / comparisons,
    )


def _log_error(estimate: ClusteredEstimate) -> float:
    if estimate.low is None or estimate.high is None:
        raise ValueError("an estimate without an interval has no standard error")
    return math.log(estimate.high / estimate.low) / (2 * Z)


def _point(name: str, run: Report, first: Report, comparisons: int) -> Point:
    assert run.replay and first.replay
    point = Point(run=name, until=run.heldout_until, replay=run.replay)
    if run is first:
        return point
    if obstacle := _obstacle(first, run):
        return point.model_copy(update={"reading": f"not comparable, {obstacle}"})
    length = change(first.replay.custom, run.replay.custom, comparisons)
    over_base = change(first.replay.ratio, run.replay.ratio, comparisons)
    reading = _reading(length, over_base)
    update = {"acceptance_length": length, "over_base": over_base, "reading": reading}
    return point.model_copy(update=update)


def _obstacle(first: Report, run: Report) -> str | None:
    """Why two runs cannot be compared: another setting, or too few sessions for an interval."""
    for name in ("k", "sampling", "draft_sample_method"):
        if getattr(run, name) != getattr(first, name):
            return f"another {name}"
    for each in (first, run):
        if each.replay and each.replay.ratio.low is None:
            return f"{each.replay.ratio.over}: too few for an interval"
    return None


def _reading(length: Change, over_base: Change) -> str:
    if over_base.beyond_chance:
        less = over_base.value < 1
        text = "drifts away: it gains less over base" if less else "gains more over base"
        return f"{text} ({over_base})"
    if length.beyond_chance:
        harder = "harder" if length.value < 1 else "easier"
        return f"the traffic is {harder} to draft, for base as well ({length})"
    return f"no significant change ({over_base})"
