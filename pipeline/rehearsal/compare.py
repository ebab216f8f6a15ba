"""Predictions of `--dry-run` against what a rehearsal measured.

rows = compared(price(run, recipe), run, peaks.by_stage)
print_rows(rows, console)
"""

import dataclasses
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from outrider.common.files import read_json
from outrider.pipeline.plan.estimates import bytes_text
from outrider.pipeline.rehearsal.peaks import Peak
from outrider.pipeline.run_dir import RunDirectory

TOLERANCE = 0.1
"""Largest accepted relative difference between a prediction and the measurement."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One quantity in bytes."""

    quantity: str
    predicted: int
    measured: int

    @property
    def difference(self) -> float:
        """Predicted / measured - 1."""
        return self.predicted / self.measured - 1 if self.measured else float("inf")

    @property
    def holds(self) -> bool:
        """Whether the prediction is within the tolerance."""
        return abs(self.difference) <= TOLERANCE

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self) | {
            "difference": round(self.difference, 4),
            "holds": self.holds,
        }


def compared(
    price: dict[str, Any], run: RunDirectory, peaks: dict[str, dict[str, Peak]]
) -> list[Row]:
    """Training's memory, states, checkpoint and speculator: predicted and measured."""
    [checkpoint] = (run.training / "checkpoints").glob("step-*")
    return [
        Row(
            "memory of the training process",
            price["memory"][0]["peak_bytes"],
            peaks["train"]["training process"].resident,
        ),
        Row(
            "its start",
            sum(price["memory"][0]["phases"]["start"].values()),
            read_json(run.training / "result.json")["start_peak_bytes"],
        ),
        Row("states on disk", price["features"]["bytes"], _shard_bytes(run.features)),
        Row("a training checkpoint", price["checkpoint_bytes"], folder_bytes(checkpoint)),
        Row("the speculator", price["speculator_bytes"], folder_bytes(run.speculator)),
    ]


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _shard_bytes(features: Path) -> int:
    return sum(path.stat().st_size for path in features.glob("shard-*.safetensors"))


def print_rows(rows: list[Row], console: Console) -> None:
    """The comparison as a table."""
    table = Table(title="rehearsal: --dry-run against measured", title_justify="left")
    for column in ("", "predicted", "measured", "difference", "within 10 %"):
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        cells = (bytes_text(row.predicted), bytes_text(row.measured), f"{row.difference:+.1%}")
        table.add_row(row.quantity, *cells, "yes" if row.holds else "NO")
    console.print(table)


def print_peaks(peaks: dict[str, dict[str, Peak]], console: Console) -> None:
    """Every process's peak by stage."""
    table = Table(title="peak memory by stage", title_justify="left")
    for column in ("stage", "process", "own (RssAnon)", "with mapped files (VmHWM)"):
        table.add_column(column)
    for stage, roles in peaks.items():
        for role, peak in roles.items():
            table.add_row(stage, role, bytes_text(peak.anonymous), bytes_text(peak.resident))
    console.print(table)
