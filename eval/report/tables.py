"""Two tables: usage scenarios by request rate of one run, and workloads of several runs.

    python -m outrider.eval.report.tables runs/usage_scenarios        # scenarios x rates x variants
    python -m outrider.eval.report.tables runs/extraction runs/social_chat     # + workloads

Every form is written from the rows (`scenario_rows`, `workload_rows`): Markdown here, the report's
section and the terminal's table elsewhere. The same code serves nano R1 and R1.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from outrider.common.files import read_json
from outrider.eval.report.formatting import interval
from outrider.eval.report.past_run import PastEstimate, PastRateRow, PastRun
from outrider.eval.results.parts import DRAFTERS, RATIOS, VARIANTS
from outrider.eval.results.speed import RateRow

SATURATED = "\\*"
"""Marks tokens/s of a variant that the rate overran; escaped for Markdown."""

WORKLOAD_HEAD = (
    "workload",
    "engine",
    "base / none",
    "custom / base",
    "custom / none",
    "none's GPU time saved",
)


class ScenarioRow(NamedTuple):
    """One engine mode, scenario and rate."""

    mode: str
    scenario: str
    rate: float
    figures: RateRow | PastRateRow


class SavedShare(BaseModel):
    """The share of none's GPU time that custom saves at equal throughput.

    n tokens/s need n / s endpoints that deliver s each (eval/prediction/cost.py), so custom needs
    none / custom of none's GPU time and saves 1 - none / custom; negative where it is slower.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, over_none: PastEstimate) -> "SavedShare":
        """From custom's ratio of tokens/s to none."""
        low, high = 1 - 1 / over_none.low, 1 - 1 / over_none.high
        return cls(value=1 - 1 / over_none.value, low=low, high=high)


class WorkloadRow(BaseModel):
    """One run and engine mode at the run's lowest concurrency."""

    workload: str
    mode: str
    concurrency: int
    custom_over_base: PastEstimate
    custom_over_none: PastEstimate
    base_over_none: PastEstimate
    saved_share: SavedShare


def scenario_rows(
    measured: Mapping[str, Mapping[str, Mapping[str, RateRow | PastRateRow]]] | None,
) -> list[ScenarioRow]:
    """A row for each engine mode, scenario and rate of a report's `rates`."""
    rows = []
    for mode, scenarios in (measured or {}).items():
        for scenario, rates in scenarios.items():
            for rate, figures in rates.items():
                rows.append(ScenarioRow(mode, scenario, float(rate), figures))
    return rows


def workload_rows(runs: Mapping[str, PastRun]) -> list[WorkloadRow]:
    """A row for each run and engine mode."""
    rows = []
    for name, run in runs.items():
        for mode, measured in run.served.items():
            concurrency = min(measured.speed, key=int)
            ratios = measured.speed[concurrency]
            row = WorkloadRow(
                workload=name,
                mode=mode,
                concurrency=int(concurrency),
                saved_share=SavedShare.of(ratios.custom_over_none),
                **{ratio: ratios.ratio(ratio) for ratio in RATIOS},
            )
            rows.append(row)
    return rows


def scenario_lines(rows: Sequence[ScenarioRow]) -> list[str]:
    """Markdown, one table for each engine mode."""
    head = [
        "scenario",
        "requests/s",
        *(f"tokens/s, {variant}" for variant in VARIANTS),
        *(f"per request, {variant}" for variant in VARIANTS),
        *(f"acceptance, {drafter}" for drafter in DRAFTERS),
        *(f"{over} / {under}" for over, under in RATIOS.values()),
    ]
    lines: list[str] = []
    for mode in dict.fromkeys(row.mode for row in rows):
        lines += ["", f"Usage scenarios, {mode} mode", "", *_table(head)]
        lines += [_line(scenario_cells(row)) for row in rows if row.mode == mode]
    if any(_saturated(row) for row in rows):
        lines += [
            "",
            f"{SATURATED} saturated: the server completes fewer requests per second than arrive, "
            "and waiting times grow.",
        ]
    return lines[1:]


def scenario_cells(row: ScenarioRow) -> list[str]:
    """The cells of one row, without the engine mode."""
    figures = row.figures
    blocks = [figures.of(variant) for variant in VARIANTS]
    return [
        row.scenario.replace("_", " "),
        f"{row.rate:g}",
        *(f"{block.tokens_per_s:.0f}{SATURATED if block.saturated else ''}" for block in blocks),
        *(f"{block.request_tokens_per_s:.0f}" for block in blocks),
        *(f"{figures.of(drafter).acceptance_length:.2f}" for drafter in DRAFTERS),
        *(interval(figures.ratio(name)) for name in RATIOS),
    ]


def workload_lines(rows: Sequence[WorkloadRow]) -> list[str]:
    """Markdown."""
    return [*_table(WORKLOAD_HEAD), *(_line(workload_cells(row)) for row in rows)]


def workload_cells(row: WorkloadRow) -> list[str]:
    """The cells of one row, under WORKLOAD_HEAD."""
    saved = row.saved_share
    return [
        row.workload,
        f"{row.mode}, concurrency {row.concurrency}",
        interval(row.base_over_none),
        interval(row.custom_over_base),
        interval(row.custom_over_none),
        f"{saved.value:.0%} [{saved.low:.0%}, {saved.high:.0%}]",
    ]


def _saturated(row: ScenarioRow) -> bool:
    return any(row.figures.of(variant).saturated for variant in VARIANTS)


def _table(head: Sequence[str]) -> list[str]:
    return [_line(head), "|---" * len(head) + "|"]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    runs = {}
    for path in map(Path, sys.argv[1:]):
        runs[path.resolve().name] = PastRun.model_validate(read_json(path / "report.json"))
    for name, run in runs.items():
        if rows := scenario_rows(run.rates):
            print(f"\n## {name}\n", *scenario_lines(rows), sep="\n")
    print("\n## Workloads\n", *workload_lines(workload_rows(runs)), sep="\n")


if __name__ == "__main__":
    main()
