"""The same speculator on newer and newer traffic: does what it gains hold, or does it drift away?

    history([Path("runs/march"), Path("runs/april")], reports)      # one series a speculator that several runs evaluated

A speculator is known by the digest of its weights. Acceptance lengths are exact replay's, each on its run's own held-out responses, which
are different ones, so a change is judged as one of independent samples: the log of the ratio to the first run, with the standard errors
that the runs' own intervals over sessions say (half their width in logs over 1.96), and as many comparisons as there are later runs
(Bonferroni). Against base tells two things apart: where the acceptance of both falls the traffic has become harder to draft, where
custom's falls against base's the speculator no longer fits it.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from outrider.data.ingest.traffic_facts import date
from outrider.eval.report.formatting import interval

Z = 1.959964
LEVEL = 0.05
"""A change is beyond chance below this p-value, shared among the later runs of a series."""

FIGURES = {"acceptance_length": "custom", "over_base": "ratio"}
"""What is followed, and where it stands in a report's `replay`."""


def history(names: Sequence[str], reports: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A series for every speculator that two runs or more have evaluated: `weights` (SHA-256), and in order of time `points` (`_point`). In
    order of the held-out traffic's time where every run has logged one, else as given."""
    series: dict[str, list[tuple[str, Mapping[str, Any]]]] = defaultdict(list)
    for name, report in zip(names, reports, strict=True):
        if weights := report.get("speculator", {}).get("weights_sha256"):
            series[weights].append((name, report))
    return [
        {"weights": weights, "points": _points(_in_time(runs))}
        for weights, runs in series.items()
        if len(runs) > 1
    ]


def heldout_time(heldout: Any) -> dict[str, float] | None:
    """Unix seconds of the first and the last held-out request; None where the log has no times."""
    if "time" not in heldout.column_names:
        return None
    times = [time for time in heldout["time"] if time is not None]
    return {"first": min(times), "last": max(times)} if times else None


def table(series: Mapping[str, Any]) -> list[list[str]]:
    """Rows for a person: run, time, k, responses, acceptance of base and custom, custom / base, what changed since the first."""
    return [
        [
            point["run"],
            point["time"],
            str(point["k"]),
            f"{point['sequences']:,} / {point['sessions']:,}",
            *(interval(point[name]) for name in ("base", "acceptance_length", "over_base")),
            point["reading"],
        ]
        for point in series["points"]
    ]


TITLE = [
    "run",
    "held-out traffic until",
    "k",
    "responses / sessions",
    "base",
    "custom",
    "custom / base",
    "since the first",
]


def change(
    first: Mapping[str, float], later: Mapping[str, float], comparisons: int
) -> dict[str, Any]:
    """later / first with its 95 % interval, the two-sided p-value of no change, and whether it is beyond chance among so many comparisons;
    for estimates of independent samples with `value`, `low` and `high`, all above 0."""
    error = math.hypot(_log_error(first), _log_error(later))
    shift = math.log(later["value"] / first["value"])
    p = math.erfc(abs(shift) / error / math.sqrt(2)) if error else float(shift == 0)
    return {
        "value": math.exp(shift),
        "low": math.exp(shift - Z * error),
        "high": math.exp(shift + Z * error),
        "p_value": p,
        "beyond_chance": p < LEVEL / comparisons,
    }


def _log_error(estimate: Mapping[str, float]) -> float:
    return math.log(estimate["high"] / estimate["low"]) / (2 * Z)


def _in_time(runs: list[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, Mapping[str, Any]]]:
    if all(report.get("heldout_time") for _, report in runs):
        return sorted(runs, key=lambda run: run[1]["heldout_time"]["last"])
    return runs


def _points(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Per run `run`, `time` (text), `k`, `sequences`, `sessions`, the estimates `base`, `acceptance_length` and `over_base`, `change` of the
    latter two since the first run (None: the first itself, or one that cannot be compared with it) and a `reading` of it."""
    _, first = runs[0]
    points = []
    for name, report in runs:
        replayed = report["replay"]
        point: dict[str, Any] = {
            "run": name,
            "time": date(report["heldout_time"]["last"])
            if report.get("heldout_time")
            else "not logged",
            "k": report["k"],
            "sequences": replayed["sequences"],
            "sessions": replayed["sessions"],
            "base": replayed["base"],
            **{figure: replayed[where] for figure, where in FIGURES.items()},
            "change": None,
        }
        if other := [
            what
            for what in ("k", "sampling", "draft_sample_method")
            if report.get(what) != first.get(what)
        ]:
            point["reading"] = f"not comparable, another {other[0]}"
        elif report is first:
            point["reading"] = ""
        else:
            point["change"] = {
                figure: change(first["replay"][where], replayed[where], len(runs) - 1)
                for figure, where in FIGURES.items()
            }
            point["reading"] = _reading(point["change"])
        points.append(point)
    return points


def _reading(changed: Mapping[str, Mapping[str, Any]]) -> str:
    over_base, length = changed["over_base"], changed["acceptance_length"]
    if over_base["beyond_chance"]:
        text = (
            "drifts away: it gains less over base"
            if over_base["value"] < 1
            else "gains more over base"
        )
        return f"{text} ({_times(over_base)})"
    if length["beyond_chance"]:
        harder = "harder" if length["value"] < 1 else "easier"
        return f"the traffic is {harder} to draft, for base as well ({_times(length)})"
    return f"no change beyond chance ({_times(over_base)})"


def _times(estimate: Mapping[str, float]) -> str:
    return f"× {estimate['value']:.3f} [{estimate['low']:.3f}, {estimate['high']:.3f}]"
