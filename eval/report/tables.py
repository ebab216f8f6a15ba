"""The field's two tables: usage scenarios by request rate, of one run; and workloads side by side, of several.

python -m outrider.eval.report.tables runs/usage_scenarios                                        # scenarios x rates x none/base/custom
python -m outrider.eval.report.tables runs/document_extraction runs/social_chat runs/resume_screening     # and the workloads

Rows for machines come first (`scenario_rows`, `workload_rows`), and every form is written from them: Markdown here, the report's
section and the terminal's table elsewhere. The same code writes them for nano R1 and for R1.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.common.files import read_json
from outrider.eval.bench.metrics import RATIOS, VARIANTS
from outrider.eval.report.formatting import interval

FIGURES = ("tokens_per_s", "request_tokens_per_s", "acceptance_length", "achieved", "saturated")
SATURATED = "\\*"
"""Behind tokens/s of a variant that the rate overran; escaped for Markdown."""


def scenario_rows(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each engine mode, scenario and rate: `none`, `base` and `custom` with FIGURES, and the ratios of a request's
    tokens/s, the speed-up."""
    return [
        {
            "mode": mode,
            "scenario": scenario,
            "rate": float(rate),
            **{variant: {name: row[variant][name] for name in FIGURES} for variant in VARIANTS},
            **{name: row[name] for name in RATIOS},
        }
        for mode, scenarios in (results.get("rates") or {}).items()
        for scenario, rates in scenarios.items()
        for rate, row in rates.items()
    ]


def workload_rows(reports: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each run (`reports`: its name -> its report) and engine mode, at the run's lowest concurrency: the three ratios of
    tokens/s, and `saved_share`, what custom saves of none's GPU time at equal throughput.

    n tokens/s want n / s endpoints that deliver s each (eval/prediction/cost.py), so custom needs none / custom of none's GPU time and saves
    1 - none / custom; negative where it is slower.
    """
    rows = []
    for name, report in reports.items():
        for mode, measured in report["served"].items():
            concurrency = min(measured["speed"], key=int)
            row = measured["speed"][concurrency]
            over_none = row["custom_over_none"]
            saved = {end: 1 - 1 / over_none[end] for end in ("value", "low", "high")}
            ratios = {ratio: row[ratio] for ratio in RATIOS}
            rows.append(
                {
                    "workload": name,
                    "mode": mode,
                    "concurrency": int(concurrency),
                    **ratios,
                    "saved_share": saved,
                }
            )
    return rows


def scenario_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown, a table for each engine mode."""
    lines: list[str] = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        head = [
            "scenario",
            "requests/s",
            *(f"tokens/s, {v}" for v in VARIANTS),
            *(f"a request's, {v}" for v in VARIANTS),
        ]
        head += [
            "acceptance, base",
            "acceptance, custom",
            "custom / base",
            "custom / none",
            "base / none",
        ]
        lines += ["", f"Usage scenarios, {mode} mode", "", *_table(head)]
        lines += [_line(scenario_cells(row)) for row in rows if row["mode"] == mode]
    if any(row[variant]["saturated"] for row in rows for variant in VARIANTS):
        lines += [
            "",
            f"{SATURATED} saturated: it answers fewer requests a second than come, and those behind wait longer.",
        ]
    return lines[1:]


def scenario_cells(row: Mapping[str, Any]) -> list[str]:
    """One row's texts, without the engine mode."""
    return [
        row["scenario"].replace("_", " "),
        f"{row['rate']:g}",
        *(
            f"{row[v]['tokens_per_s']:.0f}{SATURATED if row[v]['saturated'] else ''}"
            for v in VARIANTS
        ),
        *(f"{row[v]['request_tokens_per_s']:.0f}" for v in VARIANTS),
        *(f"{row[v]['acceptance_length']:.2f}" for v in ("base", "custom")),
        *(interval(row[ratio]) for ratio in RATIOS),
    ]


def workload_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown."""
    return [*_table(list(WORKLOAD_HEAD)), *(_line(workload_cells(row)) for row in rows)]


WORKLOAD_HEAD = (
    "workload",
    "engine",
    "base / none",
    "custom / base",
    "custom / none",
    "saved of none's GPU time",
)


def workload_cells(row: Mapping[str, Any]) -> list[str]:
    """One row's texts, under WORKLOAD_HEAD."""
    saved = row["saved_share"]
    return [
        row["workload"],
        f"{row['mode']}, at {row['concurrency']}",
        *(
            interval(row[ratio])
            for ratio in ("base_over_none", "custom_over_base", "custom_over_none")
        ),
        f"{saved['value']:.0%} [{saved['low']:.0%}, {saved['high']:.0%}]",
    ]


def _table(head: Sequence[str]) -> list[str]:
    return [_line(head), "|---" * len(head) + "|"]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    named = {Path(run).resolve().name: read_json(Path(run) / "report.json") for run in sys.argv[1:]}
    for name, report in named.items():
        if rows := scenario_rows(report):
            print(f"\n## {name}\n", *scenario_lines(rows), sep="\n")
    print("\n## Workloads\n", *workload_lines(workload_rows(named)), sep="\n")
