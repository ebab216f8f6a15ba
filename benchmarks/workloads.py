"""What four workloads gain from base, custom head, both lookups, head and lookup together.

    outrider train smollm2/arithmetic speculator.kind=eagle3 --stages ingest,split,capture,train
    python -m benchmarks.workloads replay arithmetic runs/smollm2_arithmetic build/smollm2
    python -m benchmarks.workloads table

`replay` writes the workload's tokens per step to benchmarks/results/workloads.json: exact replay of
the held-out part, for each number of drafts K. Lookups search the training part, with the settings
that suit the validation part. `both` drafts with head or suffix lookup at each step
(suffix_and_head.py), `perfect` with the target's most likely tokens. `table` prints all of them.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.suffix_and_head import figures, prepared_lookup, replayed_head
from outrider.common.files import read_json, write_json
from outrider.data.features.feature_store import FeatureStore
from outrider.data.sequences import load_sequences
from outrider.eval.both_together import EQUAL
from outrider.eval.replay.both_together import anchors_of
from outrider.eval.replay.heldout_replay import COLUMNS
from outrider.eval.replay.lookups import lookup_sums
from outrider.eval.replay.replay import CEILING, replay
from outrider.eval.replay.sums import ReplaySums, compare_replays, length_at
from outrider.eval.results.parts import ClusteredEstimate
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.sources import parts_in_use

RESULTS = Path(__file__).with_name("results") / "workloads.json"
LOOKUPS = {"ngram": "n-gram lookup", "suffix": "suffix lookup"}
MOST_DRAFTS = 8
"""Largest K of a lookup in the table."""

COLUMNS_K = (1, 3, 5, MOST_DRAFTS)

DRAFTERS = ("n-gram lookup", "suffix lookup", "base", "custom", "both", "perfect")
"""Rows of a workload, free ones first; `both` is the head or suffix lookup at each step."""


def replayed(root: Path, target: Path) -> dict[str, Any]:
    """Tokens per step of every drafter on a run's held-out part, by K."""
    run = RunDirectory(root.resolve())
    recipe = load_recipe(str(run.root)).recipe
    depth = recipe.speculator.depth
    parts = parts_in_use(run)
    rows = load_sequences(run.sequences, parts["heldout"]).select_columns(COLUMNS).to_list()
    custom, texts = replayed_head(run, run.speculator, target, depth)
    sums: dict[str, ReplaySums] = {}
    for name, drafter in (("base", Path(str(recipe.speculator.base))), ("perfect", CEILING)):
        sums[name] = replay(
            speculator=drafter,
            target_dir=target,
            feature_store=FeatureStore.open(run.features),
            rows=rows,
            depth=depth,
        )
    sums["custom"] = custom["heldout"]
    both = []
    for name, in_words in LOOKUPS.items():
        with tempfile.TemporaryDirectory() as scratch:
            lookup = prepared_lookup(name, run, texts["validation"], Path(scratch))
            sums[in_words] = lookup_sums(lookup, texts["heldout"])
            if name != "suffix":
                continue
            for k in range(1, depth + 1):
                anchors = {
                    part: anchors_of(custom[part], k, texts=logged, lookup=lookup, lookup_k=k)
                    for part, logged in texts.items()
                }
                both.append(figures(anchors, EQUAL, k, custom["heldout"])["both"])
    lengths = {
        name: [round(float(length), 4) for length in of_drafter.acceptance_length()[:MOST_DRAFTS]]
        for name, of_drafter in sums.items()
    }
    lengths["both"] = [round(float(length), 4) for length in both]
    ratios = {
        f"K = {k}": interval(compare_replays(sums["base"], sums["custom"], k)["ratio"])
        for k in range(1, depth + 1)
    }
    return {
        "responses": {part: len(parts[part]) for part in ("train", "validation", "heldout")},
        "tokens_per_step": lengths,
        "custom": [interval(length_at(sums["custom"], k)) for k in range(1, depth + 1)],
        "custom_over_base": ratios,
    }


def interval(estimate: ClusteredEstimate) -> list[float | None]:
    """Value and 95 % interval."""
    bounds = (estimate.value, estimate.low, estimate.high)
    return [None if bound is None else round(float(bound), 4) for bound in bounds]


def table(results: dict[str, Any]) -> list[str]:
    """Markdown rows: tokens per step of every drafter at some K, and what custom has over base."""
    columns = " | ".join(f"K = {k}" for k in COLUMNS_K)
    lines = [
        f"| tokens per step, replay | | {columns} | over base, K = 5 |",
        "|---|---|" + "---|" * len(COLUMNS_K) + "---|",
    ]
    for workload, result in results.items():
        for name in DRAFTERS:
            lengths = result["tokens_per_step"][name]
            cells = [f"{lengths[k - 1]:.2f}" if k <= len(lengths) else "" for k in COLUMNS_K]
            value, low, high = result["custom_over_base"]["K = 5"]
            ratio = f"{value:.2f} [{low:.2f}, {high:.2f}]" if name == "custom" else ""
            lines.append(
                f"| {workload.replace('_', ' ')} | {name} | {' | '.join(cells)} | {ratio} |"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    replayer = commands.add_parser("replay")
    replayer.add_argument("workload")
    replayer.add_argument("run", type=Path)
    replayer.add_argument("target", type=Path)
    commands.add_parser("table")
    args = parser.parse_args()
    results: dict[str, Any] = read_json(RESULTS) if RESULTS.is_file() else {}
    if args.command == "replay":
        results[args.workload] = replayed(args.run, args.target)
        write_json(RESULTS, results)
        results = {args.workload: results[args.workload]}
    print(*table(results), sep="\n")


if __name__ == "__main__":
    main()
