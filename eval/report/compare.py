"""Compares finished runs: one customer's over time, or several customers'.

    compared = compare([Path("runs/march"), Path("runs/april")])
    print_comparison(compared, Console())

Only ratios that were measured within one run compare across runs. Tokens/s do not, and are left
out. Replay is of each run's own held-out traffic, so a speculator that was kept while its ratio
falls drifts away from the traffic.
"""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel
from rich import box
from rich.console import Console
from rich.table import Table

from outrider.eval.report.drift import TITLE, Series, history
from outrider.eval.report.drift import table as drift_table
from outrider.eval.report.formatting import interval
from outrider.eval.report.past_run import PastClustered, PastRun
from outrider.eval.report.tables import WORKLOAD_HEAD, WorkloadRow, workload_cells, workload_rows

Figure = str | int | PastClustered


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
    workloads: list[WorkloadRow]
    notes: list[str]
    """Reasons why figures may not compare"""
    history: list[Series]


def compare(runs: Sequence[Path]) -> Comparison:
    """Compares run directories, or report.json files."""
    names, reports = names_of(runs), [PastRun.read(run) for run in runs]
    figures = [_figures(report) for report in reports]
    keys = dict.fromkeys(key for each in figures for key in each)
    rows = [FigureRow(figure=key, values=[each.get(key) for each in figures]) for key in keys]
    return Comparison(
        runs=[str(run) for run in runs],
        names=names,
        figures=rows,
        workloads=workload_rows(dict(zip(names, reports, strict=True))),
        notes=_notes(names, reports),
        history=history(names, reports),
    )


def print_comparison(compared: Comparison, console: Console) -> None:
    """Prints figures, workloads, and the history of each speculator."""
    table = Table(
        title="custom / base, and what it depends on", title_justify="left", box=box.SIMPLE_HEAD
    )
    table.add_column("")
    for name in compared.names:
        table.add_column(name, justify="right", overflow="fold")
    for row in compared.figures:
        table.add_row(row.figure, *(figure_text(value) for value in row.values))
    console.print(table)
    for note in compared.notes:
        console.print(note, soft_wrap=True, highlight=False)
    _print_workloads(compared.workloads, console)
    for series in compared.history:
        _print_series(series, console)


def figure_text(value: Figure | None) -> str:
    """A figure as text; `-` where there is none."""
    if value is None:
        return "-"
    if isinstance(value, PastClustered):
        return interval(value)
    return str(value)


def names_of(runs: Sequence[Path]) -> list[str]:
    """Names of runs in tables: their directories', or full paths where two are equal."""
    names = [run.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run) for run in runs]


def _print_workloads(rows: Sequence[WorkloadRow], console: Console) -> None:
    table = Table(
        title="tokens/s at the lowest concurrency", title_justify="left", box=box.SIMPLE_HEAD
    )
    for place, name in enumerate(WORKLOAD_HEAD):
        table.add_column(name, justify="right" if place > 1 else "left", overflow="fold")
    for row in rows:
        table.add_row(*workload_cells(row))
    console.print(table)


def _print_series(series: Series, console: Console) -> None:
    table = Table(
        title=f"Speculator {series.weights[:12]} on newer traffic: acceptance length, exact replay",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for name in TITLE:
        table.add_column(name, overflow="fold")
    for row in drift_table(series):
        table.add_row(*row)
    console.print(table)


def _figures(run: PastRun) -> dict[str, Figure]:
    """Figure -> its value in one run."""
    figures: dict[str, Figure] = {}
    if run.verdict is not None:
        figures["verdict"] = run.verdict.verdict
    if run.speculator is not None and run.speculator.kind is not None:
        figures["kind of custom"] = run.speculator.kind
    if run.k is not None:
        figures["k, base and custom"] = str(run.k)
    if run.replay is not None:
        figures["held-out responses"] = run.replay.sequences
    if run.sampling is not None:
        temperature, top_p = run.sampling["temperature"], run.sampling["top_p"]
        figures["temperature, top_p"] = f"{temperature:g}, {top_p:g}"
    if run.replay is not None:
        figures["acceptance, base"] = run.replay.base
        figures["acceptance, custom"] = run.replay.custom
        figures["acceptance, ratio"] = run.replay.ratio
    if run.general is not None:
        figures["acceptance, general, ratio"] = run.general.ratio
    for mode, measured in run.served.items():
        for concurrency, row in measured.speed.items():
            place = f"tokens/s {mode}, concurrency {concurrency}"
            figures[f"{place}, custom / base"] = row.custom_over_base
            figures[f"{place}, custom / none"] = row.custom_over_none
    for dimension, slices in run.slices.items():
        for one in slices:
            figures[f"{dimension}: {one.name}, ratio"] = one.ratio
    return figures


def _notes(names: Sequence[str], runs: Sequence[PastRun]) -> list[str]:
    """Settings in which the runs differ."""
    notes = []
    for what, values in (
        ("kind", [run.speculator and run.speculator.kind for run in runs]),
        ("k", [run.k and str(run.k) for run in runs]),
        ("sampling", [r.sampling for r in runs]),
    ):
        if any(value != values[0] for value in values):
            each = (f"{name} {value}" for name, value in zip(names, values, strict=True))
            notes.append(
                f"The runs differ in {what} ({', '.join(each)}): compare their figures with care."
            )
    return notes
