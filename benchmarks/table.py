"""The table of benchmarks/results/serving.md from finished runs.

python benchmarks/table.py runs/resume_screening runs/document_extraction runs/social_chat
"""

import argparse
from pathlib import Path

from outrider.eval.report.formatting import interval
from outrider.eval.results.parts import VARIANTS
from outrider.eval.results.report import Results

SERVED = (
    "recipe",
    "K, base / custom",
    "engine",
    "concurrency",
    "acceptance length, base / custom",
    "tokens/s, none / base / custom",
    "custom over base",
    "custom over none",
)


def served_rows(results: Results) -> list[list[str]]:
    """One row per engine mode and concurrency."""
    rows = []
    k = f"{results.k.base} / {results.k.custom}"
    for mode, served in results.served.items():
        both = (served.acceptance.base, served.acceptance.custom)
        lengths = " / ".join(f"{each.acceptance_length:.2f}" for each in both)
        for concurrency, speed in served.speed.items():
            speeds = (speed.of(variant).tokens_per_s for variant in VARIANTS)
            tokens = " / ".join(f"{value:.0f}" for value in speeds)
            ratios = [interval(speed.custom_over_base), interval(speed.custom_over_none)]
            rows.append([results.recipe, k, mode, concurrency, lengths, tokens, *ratios])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    args = parser.parse_args()
    runs = [Results.read(run / "evaluation" / "results.json") for run in args.runs]
    rows = [SERVED, ["---"] * len(SERVED), *(row for run in runs for row in served_rows(run))]
    print(*(f"| {' | '.join(row)} |" for row in rows), sep="\n")


if __name__ == "__main__":
    main()
