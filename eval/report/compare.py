"""Compares finished runs: one customer's over time, or several customers'.

    compared = compare([Path("runs/march"), Path("runs/april")])
    print_comparison(compared, Console())
    write_page(Path("runs.html"), compared)

Only ratios that were measured within one run compare across runs. Tokens/s do not, and are left
out. Replay is of each run's own held-out traffic, so a speculator that was kept while its ratio
falls drifts away from the traffic.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console

from outrider.common.errors import OutriderError
from outrider.common.files import publish
from outrider.data.ingest.traffic_facts import date
from outrider.eval.report.drift import Series, history
from outrider.eval.report.formatting import interval, print_markdown, render
from outrider.eval.results.parts import ClusteredEstimate, Estimate, k_list
from outrider.eval.results.report import Report

Figure = str | int | ClusteredEstimate | Estimate


class FigureRow(BaseModel):
    """One figure in every run."""

    figure: str
    values: list[Figure | None]
    """By run; null where the run has no such figure"""


class Comparison(BaseModel):
    """Runs side by side."""

    runs: list[str]
    """As given"""
    names: list[str]
    """As the tables name them"""
    figures: list[FigureRow]
    notes: list[str]
    """Reasons why figures may not compare"""
    history: list[Series]


def compare(runs: Sequence[Path]) -> Comparison:
    """Compares run directories, or report.json files."""
    reports = dict(zip(names_of(runs), map(read_run, runs), strict=True))
    figures = [_figures(report) for report in reports.values()]
    keys = dict.fromkeys(key for each in figures for key in each)
    rows = [FigureRow(figure=key, values=[each.get(key) for each in figures]) for key in keys]
    return Comparison(
        runs=[str(run) for run in runs],
        names=list(reports),
        figures=rows,
        notes=[
            f"The runs differ in {row.figure}: compare their figures with care."
            for row in rows
            if row.figure in SETTINGS and len(set(row.values)) > 1
        ],
        history=history(reports),
    )


def read_run(run: Path) -> Report:
    """The report of a run directory, or of a report.json itself."""
    path = run if run.suffix == ".json" else run / "report.json"
    if not path.is_file():
        raise OutriderError(f"--compare {run}: no {path.name} here; name evaluated run directories")
    report = Report.read(path)
    if report.replay is None:
        raise OutriderError(f"{path}: without exact replay, which --compare needs")
    return report


def names_of(runs: Sequence[Path]) -> list[str]:
    """Names of runs in tables: their directories', or full paths where two are equal."""
    names = [run.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run) for run in runs]


def print_comparison(compared: Comparison, console: Console) -> None:
    """Prints the history of each speculator, and the figures side by side."""
    print_markdown(render("compare.j2", "markdown", **_contents(compared)), console)


def write_page(path: Path, compared: Comparison) -> None:
    """Publishes the comparison as an offline page."""
    from outrider.eval.report.charts import history_figure

    charts = {
        each.weights: [history_figure({point.run: point.replay for point in each.points})]
        for each in compared.history
    }
    page = render("compare.j2", "html", **_contents(compared) | {"charts": charts})
    with publish(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


SETTINGS = ("kind of custom", "K, base and custom", "temperature, top_p")
"""Figures in which runs should not differ."""


def _figures(run: Report) -> dict[str, Figure]:
    """Figure -> its value in one run."""
    assert run.replay
    figures: dict[str, Figure] = {
        "verdict": run.verdict.verdict,
        "kind of custom": run.speculator.kind,
        "K, base and custom": k_list(run.k),
        "temperature, top_p": f"{run.sampling.temperature:g}, {run.sampling.top_p:g}",
        "held-out responses": run.replay.ratio.observations,
        "acceptance, base": run.replay.base,
        "acceptance, custom": run.replay.custom,
        "acceptance, custom / base": run.replay.ratio,
    }
    if run.general:
        figures["acceptance on general traffic, custom / base"] = run.general.ratio
    for mode, measured in run.served.items():
        for concurrency, row in measured.speed.items():
            place = f"tokens/s, {mode}, concurrency {concurrency}"
            figures[f"{place}, custom / base"] = row.custom_over_base
            figures[f"{place}, custom / none"] = row.custom_over_none
    for dimension, slices in run.slices.items():
        for one in slices:
            figures[f"acceptance, {dimension}: {one.name}, custom / base"] = one.ratio
    return figures


def _contents(compared: Comparison) -> dict[str, Any]:
    cells = [[row.figure, *map(_text, row.values)] for row in compared.figures]
    return {"compared": compared, "cells": cells, "charts": {}, "date": date}


def _text(value: Figure | None) -> str:
    """A figure as text; `-` where there is none."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, str | int) else interval(value)
