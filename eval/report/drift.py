"""Drift: does the same speculator keep its gain on newer traffic?

    history(["march", "april"], runs)      # a series for each speculator of several runs

A speculator is identified by the digest of its weights. Acceptance lengths are exact replay's, each
on its run's own held-out responses, so runs are independent samples. A change is judged by the log
of the ratio to the first run. Its standard errors come from the runs' intervals over sessions (half
their width in logs over 1.96), and Bonferroni's correction counts the later runs. The ratio to base
separates two causes: where the acceptance of both falls, the traffic has become harder to draft;
where custom's falls against base's, the speculator no longer fits it.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel
from scipy.stats import norm

from outrider.data.ingest.traffic_facts import date
from outrider.eval.report.formatting import Interval, interval
from outrider.eval.report.past_run import PastClustered, PastReplay, PastRun
from outrider.eval.results.report import HeldoutTime

if TYPE_CHECKING:
    from datasets import Dataset

Z = float(norm.isf(0.025))

LEVEL = 0.05
"""A change is significant below this p-value, shared among the later runs of a series."""

TITLE = (
    "run",
    "held-out traffic until",
    "k",
    "responses / sessions",
    "base",
    "custom",
    "custom / base",
    "since the first run",
)


class Change(BaseModel):
    """A figure of a later run over the first run's."""

    value: float
    low: float
    high: float
    p_value: float
    beyond_chance: bool


class Changes(BaseModel):
    """The two figures that are followed."""

    acceptance_length: Change
    over_base: Change


class Point(BaseModel):
    """One run of a series."""

    run: str
    time: str
    k: str | None
    sequences: int
    sessions: int
    base: PastClustered
    acceptance_length: PastClustered
    over_base: PastClustered
    change: Changes | None = None
    """Since the first run; null for the first and for one that cannot be compared with it"""
    reading: str = ""
    """The change in words"""


class Series(BaseModel):
    """The runs that evaluated one speculator."""

    weights: str
    """SHA-256"""
    points: list[Point]


def history(names: Sequence[str], runs: Sequence[PastRun]) -> list[Series]:
    """A series for every speculator that two runs or more have evaluated.

    Runs are ordered by the time of their held-out traffic where every run has one, else as given.
    """
    by_weights: dict[str, list[tuple[str, PastRun]]] = defaultdict(list)
    for name, run in zip(names, runs, strict=True):
        if run.speculator and run.speculator.weights_sha256 and run.replay:
            by_weights[run.speculator.weights_sha256].append((name, run))
    return [
        Series(weights=weights, points=_points(_in_time(own)))
        for weights, own in by_weights.items()
        if len(own) > 1
    ]


def heldout_time(heldout: "Dataset") -> HeldoutTime | None:
    """When the first and the last held-out request were logged; None without logged times."""
    if "time" not in heldout.column_names:
        return None
    times = [time for time in heldout["time"] if time is not None]
    return HeldoutTime(first=min(times), last=max(times)) if times else None


def table(series: Series) -> list[list[str]]:
    """The rows of a series, under TITLE."""
    return [
        [
            point.run,
            point.time,
            str(point.k),
            f"{point.sequences:,} / {point.sessions:,}",
            interval(point.base),
            interval(point.acceptance_length),
            interval(point.over_base),
            point.reading,
        ]
        for point in series.points
    ]


def change(first: PastClustered, later: PastClustered, comparisons: int) -> Change:
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


def _log_error(estimate: PastClustered) -> float:
    if estimate.low is None or estimate.high is None:
        raise ValueError("an estimate without an interval has no standard error")
    return math.log(estimate.high / estimate.low) / (2 * Z)


def _in_time(runs: list[tuple[str, PastRun]]) -> list[tuple[str, PastRun]]:
    lasts = [run.heldout_time.last for _, run in runs if run.heldout_time]
    if len(lasts) < len(runs):
        return runs
    order = sorted(range(len(runs)), key=lambda place: lasts[place])
    return [runs[place] for place in order]


def _points(runs: Sequence[tuple[str, PastRun]]) -> list[Point]:
    _, first = runs[0]
    points = []
    for name, run in runs:
        found = _replay(run)
        obstacle = _obstacle(first, run)
        changed = None
        if obstacle is None and run is not first:
            changed = _changes(_replay(first), found, len(runs) - 1)
        point = Point(
            run=name,
            time=date(run.heldout_time.last) if run.heldout_time else "not logged",
            k=run.k and str(run.k),
            sequences=found.sequences,
            sessions=found.sessions,
            base=found.base,
            acceptance_length=found.custom,
            over_base=found.ratio,
            change=changed,
            reading=f"not comparable, {obstacle}" if obstacle else _reading(changed),
        )
        points.append(point)
    return points


def _replay(run: PastRun) -> PastReplay:
    if run.replay is None:
        raise ValueError("a run without exact replay is in no series")
    return run.replay


def _obstacle(first: PastRun, run: PastRun) -> str | None:
    """Why two runs cannot be compared: another setting, or too few sessions for an interval."""
    if run.k != first.k:
        return "another k"
    if run.sampling != first.sampling:
        return "another sampling"
    if run.draft_sample_method != first.draft_sample_method:
        return "another draft_sample_method"
    for each in (_replay(first), _replay(run)):
        if each.custom.low is None or each.ratio.low is None:
            return f"{each.sessions} sessions are too few for an interval"
    return None


def _changes(first: PastReplay, later: PastReplay, comparisons: int) -> Changes:
    return Changes(
        acceptance_length=change(first.custom, later.custom, comparisons),
        over_base=change(first.ratio, later.ratio, comparisons),
    )


def _reading(changed: Changes | None) -> str:
    if changed is None:
        return ""
    over_base, length = changed.over_base, changed.acceptance_length
    if over_base.beyond_chance:
        less = over_base.value < 1
        text = "drifts away: it gains less over base" if less else "gains more over base"
        return f"{text} ({_times(over_base)})"
    if length.beyond_chance:
        harder = "harder" if length.value < 1 else "easier"
        return f"the traffic is {harder} to draft, for base as well ({_times(length)})"
    return f"no significant change ({_times(over_base)})"


def _times(estimate: Interval) -> str:
    return f"× {estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
