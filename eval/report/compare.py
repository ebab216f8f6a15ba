"""Compares finished runs: one customer's over time, or several customers'.

    compared = compare_runs([Path("runs/march"), Path("runs/april")])
    page = render_comparison(compared, "html")

Speeds are comparable across runs only as ratios within one run, so absolute tokens/s are left out.
To detect drift, each speculator, identified by the digest of its weights, is tracked over the runs
that evaluated it: each later run is compared with the first (change.py). If the acceptance of both
base and custom falls, the traffic has become harder to draft; if custom's falls relative to
base's, the speculator no longer fits the traffic.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from outrider.common.errors import OutriderError
from outrider.data.ingest.traffic_facts import date
from outrider.eval.report.change import Change, change
from outrider.eval.report.first_screen import measured_on, subtitle, title
from outrider.eval.report.formatting import render_report
from outrider.eval.report.gains import Gains, charted, gains, one_of
from outrider.eval.results.parts import (
    VARIANTS,
    ClusteredEstimate,
    Estimate,
    interval,
    k_list,
)
from outrider.eval.results.report import Report
from outrider.eval.results.sections import Replay

MODEL_RUNNERS = "model runner, none / base / custom"

SETTINGS = ("kind of custom", "K, base and custom", "temperature, top_p", MODEL_RUNNERS)
"""Figures that should be equal in all compared runs."""

Figure = str | int | ClusteredEstimate | Estimate


class Point(BaseModel):
    """One run of a series."""

    run: str
    until: float | None
    """Time of its last held-out request, Unix seconds"""
    replay: Replay
    acceptance_length: Change | None = None
    """Change in custom's acceptance length; null for the first run or if not comparable with it"""
    over_base: Change | None = None
    """Change in custom / base; null in the same cases as `acceptance_length`"""
    reading: str = ""
    """The change in words"""


class SpeculatorHistory(BaseModel):
    """The runs that evaluated one speculator."""

    weights: str
    """SHA-256 of the weights"""
    points: list[Point]


class Comparison(BaseModel):
    """Several runs, side by side."""

    runs: list[str]
    """Names of the runs, as given"""
    title: str
    """What was compared, and when it was measured"""
    described: dict[str, str]
    """Short name of each run -> its target, traffic, date and speculator"""
    gains: Gains
    """Which run gains most in tokens/s"""
    figures: dict[str, list[Figure | None]]
    """Figure -> its value in every run; null if the run has no such figure"""
    notes: list[str]
    """Reasons why figures may not be comparable"""
    history: list[SpeculatorHistory]


def compare_runs(runs: Sequence[Path]) -> Comparison:
    """Compares run directories, or report.json files."""
    reports = {str(run): _read_run(run) for run in runs}
    if len(reports) < 2:
        raise OutriderError(f"--compare {runs[0]}: name at least two runs")
    short = short_names([Path(run) for run in reports])
    by_short_name = dict(zip(short, reports.values(), strict=True))
    described = {name: f"{title(run)}; {subtitle(run)}" for name, run in by_short_name.items()}
    figures = [_figures(report) for report in reports.values()]
    keys = dict.fromkeys(key for of_run in figures for key in of_run)
    rows = {key: [of_run.get(key) for of_run in figures] for key in keys}
    notes = [
        f"The runs differ in {setting}: compare their figures with care."
        for setting in SETTINGS
        if len(set(rows[setting])) > 1
    ]
    return Comparison(
        runs=list(reports),
        title=page_title(list(reports.values())),
        described=described,
        gains=gains(by_short_name),
        figures=rows,
        notes=notes,
        history=history(reports),
    )


def short_names(runs: Sequence[Path]) -> list[str]:
    """The folders' names if they differ, else the paths."""
    folders = [run.parent if run.suffix == ".json" else run for run in runs]
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(run) for run in runs]


def page_title(reports: Sequence[Report]) -> str:
    """The number of runs, target and traffic if all have the same, and the first and last date."""
    subjects = {f"{Path(report.target).name} on {report.recipe}" for report in reports}
    words = f"{len(reports)} runs compared"
    if len(subjects) == 1:
        words = f"{len(reports)} runs of {subjects.pop()} compared"
    dates = sorted({measured_on(report) for report in reports} - {""})
    if not dates:
        return words
    last = f" to {dates[-1]}" if len(dates) > 1 else ""
    return f"{words}, {dates[0]}{last}"


def render_comparison(compared: Comparison, form: Literal["html", "markdown"]) -> str:
    """Renders the comparison as an offline page or as Markdown."""
    names = dict(zip(compared.runs, compared.described, strict=True))
    return render_report(
        "compare.j2",
        form,
        compared=compared,
        names=names,
        cells=[[name, *map(_text, values)] for name, values in compared.figures.items()],
        loads=charted(compared.gains),
        one=one_of(compared.gains),
        date=date,
    )


def history(runs: Mapping[str, Report]) -> list[SpeculatorHistory]:
    """Builds a series for every speculator that at least two runs evaluated.

    Runs are ordered by the time of their held-out traffic if it is known for all, else as given.
    """
    by_weights: dict[str, list[tuple[str, Report]]] = defaultdict(list)
    for name, run in runs.items():
        if run.speculator.weights_sha256 and run.replay:
            by_weights[run.speculator.weights_sha256].append((name, run))
    series = []
    for weights, evaluated in by_weights.items():
        if len(evaluated) > 1:
            if all(run.heldout_until for _, run in evaluated):
                evaluated.sort(key=lambda each: each[1].heldout_until or 0.0)
            first = evaluated[0][1]
            points = [_point(name, run, first, len(evaluated) - 1) for name, run in evaluated]
            series.append(SpeculatorHistory(weights=weights, points=points))
    return series


def _point(name: str, run: Report, first: Report, comparisons: int) -> Point:
    assert run.replay and first.replay
    point = Point(run=name, until=run.heldout_until, replay=run.replay)
    if run is first:
        return point
    for name in ("choice.k", "sampling", "draft_sample_method"):
        setting = attrgetter(name)
        if setting(run) != setting(first):
            point.reading = f"not comparable: {name} {setting(first)}, then {setting(run)}"
            return point
    for ratio in (first.replay.ratio, run.replay.ratio):
        if ratio.low is None:
            point.reading = f"not comparable, {ratio.over}: too few for an interval"
            return point
    length = change(first.replay.custom, run.replay.custom, comparisons)
    # Base is affected by the traffic too, so custom / base separates drift of the speculator from
    # harder traffic.
    over_base = change(first.replay.ratio, run.replay.ratio, comparisons)
    reading = f"no significant change ({over_base})"
    if over_base.beyond_chance:
        less = "drift: it gains less over base"
        reading = f"{less if over_base.value < 1 else 'gains more over base'} ({over_base})"
    elif length.beyond_chance:
        harder = "harder" if length.value < 1 else "easier"
        reading = f"the traffic is {harder} to draft, for base too ({length})"
    changes = {"acceptance_length": length, "over_base": over_base, "reading": reading}
    return point.model_copy(update=changes)


def _read_run(run: Path) -> Report:
    """Reads the report of a run directory, or a report.json itself."""
    path = run if run.suffix == ".json" else run / "report.json"
    report = Report.read(path)
    if report.replay is None:
        raise OutriderError(f"{path}: has no exact replay, which --compare requires")
    return report


def _figures(run: Report) -> dict[str, Figure]:
    """Figure -> its value in one run."""
    assert run.replay
    figures: dict[str, Figure] = {
        "verdict": run.verdict.verdict,
        "kind of custom": run.speculator.kind,
        "K, base and custom": k_list(run.choice.k),
        "temperature, top_p": f"{run.sampling.temperature:g}, {run.sampling.top_p:g}",
        MODEL_RUNNERS: " / ".join(run.runners.of(name).upper() for name in VARIANTS),
        "held-out responses": run.replay.ratio.observations,
        "acceptance, base": run.replay.base,
        "acceptance, custom": run.replay.custom,
        "acceptance, custom / base": run.replay.ratio,
    }
    if run.general:
        figures["acceptance on general traffic, custom / base"] = run.general.ratio
    for mode, measured in run.served.items():
        for concurrency, row in measured.speed.items():
            label = f"tokens/s, {mode}, concurrency {concurrency}"
            figures[f"{label}, custom / base"] = row.custom_over_base
            figures[f"{label}, custom / none"] = row.custom_over_none
            if row.lookup:
                figures[f"{label}, custom / lookup"] = row.lookup.custom_over
    for dimension, slices in run.slices.items():
        for one in slices:
            figures[f"acceptance, {dimension}: {one.name}, custom / base"] = one.ratio
    return figures


def _text(value: Figure | None) -> str:
    """Formats a figure; `-` if there is none."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, str | int) else interval(value)
