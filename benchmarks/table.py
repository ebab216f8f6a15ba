"""benchmarks/README.md's tables of measured results, from finished runs: served, and predicted against served.

python benchmarks/table.py runs/resume_screening runs/document_extraction runs/social_chat
"""

import sys
from pathlib import Path
from typing import Any

from outrider.eval.tables import interval
from outrider.speculators.files import read_json

SERVED = (
    "recipe",
    "K",
    "engine",
    "concurrency",
    "acceptance length, base / custom",
    "tokens/s, none / base / custom",
    "custom over base",
    "custom over none",
)
PREDICTED = (
    "recipe",
    "engine",
    "concurrency",
    "base over none, predicted",
    "served",
    "difference",
    "custom over none, predicted",
    "served",
    "difference",
    "custom over base, predicted",
    "served",
    "none, tokens/s, predicted / served",
)


def served_rows(results: dict[str, Any]) -> list[list[str]]:
    """One row an engine mode and concurrency."""
    rows = []
    for mode, served in results["served"].items():
        lengths = " / ".join(f"{served['acceptance'][v]['acceptance_length']:.2f}" for v in ("base", "custom"))
        for concurrency, speed in served["speed"].items():
            tokens = " / ".join(f"{speed[variant]['tokens_per_s']:.0f}" for variant in ("none", "base", "custom"))
            ratios = [interval(speed[name]) for name in ("custom_over_base", "custom_over_none")]
            rows.append([results["recipe"], str(results["k"]), mode, concurrency, lengths, tokens, *ratios])
    return rows


def predicted_rows(results: dict[str, Any]) -> list[list[str]]:
    """One row a concurrency, in the engine mode whose steps were timed."""
    rows = []
    for concurrency, row in results["predicted"].items():
        cells = [results["recipe"], results["settings"]["engine_modes"][0], concurrency]
        for variant in ("base", "custom"):
            ratio = row[variant]["over_none"]
            difference = f"{row[variant]['relative_difference']:+.0%}"
            cells += [f"{ratio['predicted']:.2f}", interval(ratio["served"]), difference]
        ratio = row["custom_over_base"]
        cells += [f"{ratio['predicted']:.2f}", interval(ratio["served"])]
        rows.append([*cells, f"{row['none']['predicted']:.0f} / {row['none']['served']:.0f}"])
    return rows


def main() -> None:
    runs = [read_json(Path(run) / "evaluation" / "results.json") for run in sys.argv[1:]]
    for head, rows_of in ((SERVED, served_rows), (PREDICTED, predicted_rows)):
        rows = [head, ["---"] * len(head), *(row for results in runs for row in rows_of(results))]
        print(*(f"| {' | '.join(row)} |" for row in rows), "", sep="\n")


if __name__ == "__main__":
    main()
