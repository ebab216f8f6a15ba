"""Runs side by side: what changed from one evaluation to the next, of one customer over time or of several.

    rows, notes = side_by_side([Path("runs/march"), Path("runs/april")])
    print_comparison(rows, notes, Console())

Only ratios that were measured within one run compare across runs; tokens/s do not, and are left out. Replay is of each run's own
held-out traffic, so a speculator that was kept while its ratio falls drifts away from the traffic.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.eval.report.drift import TITLE, history
from outrider.eval.report.drift import table as rows_of
from outrider.eval.report.tables import WORKLOAD_HEAD, workload_cells, workload_rows


def side_by_side(runs: Sequence[Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """One row for each figure that any of the runs has, with its value in each run (None: not there); and what to mind. A run is a run
    directory or one with a report.json."""
    reports = [_report(run) for run in runs]
    figures = [_figures(report) for report in reports]
    names = list(dict.fromkeys(name for each in figures for name in each))
    rows = [{"figure": name, "values": [each.get(name) for each in figures]} for name in names]
    return rows, _notes(runs, reports)


def workloads(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """The table of workloads (tables.py), a row for each run and engine mode."""
    return workload_rows(dict(zip(names_of(runs), map(_report, runs), strict=True)))


def print_workloads(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """The same for a person."""
    table = Table(
        title="tokens/s at the lowest concurrency", title_justify="left", box=box.SIMPLE_HEAD
    )
    for place, name in enumerate(WORKLOAD_HEAD):
        table.add_column(name, justify="right" if place > 1 else "left", overflow="fold")
    for row in rows:
        table.add_row(*workload_cells(row))
    console.print(table)


def over_time(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """The runs' history (eval/report/drift.py)."""
    return history(names_of(runs), [_report(run) for run in runs])


def print_history(series: Sequence[Mapping[str, Any]], console: Console) -> None:
    """A table a speculator that several runs have evaluated."""
    for one in series:
        title = (
            f"Speculator {one['weights'][:12]} on newer traffic, acceptance length by exact replay"
        )
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for name in TITLE:
            table.add_column(name, overflow="fold")
        for row in rows_of(one):
            table.add_row(*row)
        console.print(table)


def print_comparison(
    rows: Sequence[Mapping[str, Any]], notes: Sequence[str], runs: Sequence[Path], console: Console
) -> None:
    """The table for a person."""
    table = Table(
        title="custom / base and what it rests on", title_justify="left", box=box.SIMPLE_HEAD
    )
    table.add_column("")
    for name in names_of(runs):
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        table.add_row(row["figure"], *(_text(value) for value in row["values"]))
    console.print(table)
    for note in notes:
        console.print(note, soft_wrap=True, highlight=False)


def _report(run: Path) -> dict[str, Any]:
    path = run if run.suffix == ".json" else Path(run) / "report.json"
    if not path.is_file():
        raise OutriderError(
            f"--compare {run}: no {path.name} here; name run directories that have been evaluated"
        )
    report = read_json(path)
    missing = [name for name in ("verdict", "replay", "served", "k") if report.get(name) is None]
    if missing:
        raise OutriderError(
            f"{path}: no {', '.join(missing)} in it; it is no report of an evaluation"
        )
    return report


def _figures(report: Mapping[str, Any]) -> dict[str, Any]:
    """Figure -> a text, a number, or an estimate with value, low and high."""
    replayed = report["replay"]
    figures: dict[str, Any] = {
        "verdict": report["verdict"]["verdict"],
        "k": report["k"],
        "held-out responses": replayed["sequences"],
        "temperature, top_p": f"{report['sampling']['temperature']:g}, {report['sampling']['top_p']:g}",
        "acceptance, base": replayed["base"],
        "acceptance, custom": replayed["custom"],
        "acceptance, ratio": replayed["ratio"],
    }
    if report.get("general"):
        figures["acceptance, general, ratio"] = report["general"]["ratio"]
    for mode, measured in report["served"].items():
        for concurrency, row in measured["speed"].items():
            figures[f"tokens/s {mode}, at {concurrency}, custom / base"] = row["custom_over_base"]
            figures[f"tokens/s {mode}, at {concurrency}, custom / none"] = row["custom_over_none"]
    for dimension, rows in report.get("slices", {}).items():
        for row in rows:
            figures[f"{dimension}: {row['name']}, ratio"] = row["ratio"]
    return figures


def _notes(runs: Sequence[Path], reports: Sequence[Mapping[str, Any]]) -> list[str]:
    notes = []
    for what in ("k", "sampling"):
        values = [report[what] for report in reports]
        if any(value != values[0] for value in values):
            told = ", ".join(
                f"{name} {value}" for name, value in zip(names_of(runs), values, strict=True)
            )
            notes.append(
                f"The runs differ in {what} ({told}): their figures compare only as far as that goes."
            )
    return notes


def names_of(runs: Sequence[Path]) -> list[str]:
    """What the runs are called in tables: their directories, in full where two are called the same."""
    names = [run.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run) for run in runs]


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        interval = "" if value["low"] is None else f" [{value['low']:.2f}, {value['high']:.2f}]"
        return f"{value['value']:.2f}{interval}"
    return str(value)
