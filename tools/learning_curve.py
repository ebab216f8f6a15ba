"""Acceptance against the number of training responses, from one finished capture.

    outrider train smollm2/candidate_profiles ... --stages ingest,split,capture
    python -m tools.learning_curve runs/candidate_profiles --responses 250 500 1000 2000

Trains the recipe's speculator on the first responses of the training part, once per number, and
replays the held-out part exactly. A number already in OUT is skipped, so that an interrupted
command resumes. Speculators and logs are written to RUN/speculators/curve_N.
"""

import argparse
from pathlib import Path
from typing import Any

from outrider.common.files import read_json, write_json
from outrider.data.features.feature_store import FeatureStore
from outrider.data.sequences import load_sequences
from outrider.eval.replay.heldout_replay import COLUMNS
from outrider.eval.replay.replay import length_at, replay
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.sources import parts_in_use
from outrider.pipeline.stages.train import train_on


def acceptance(
    run: RunDirectory, recipe: Recipe, speculator: Path | str, heldout: list[str]
) -> dict[str, list[float | None]]:
    """Held-out acceptance length and its interval's ends, for k = 1..depth."""
    rows = load_sequences(run.sequences, heldout).select_columns(COLUMNS)
    store, depth = FeatureStore.open(run.features), recipe.speculator.depth
    target = recipe.target.training_directory()
    method = recipe.speculator.draft_sample_method
    sums = replay(speculator, target, store, list(rows), depth, method)
    found = [length_at(sums, k) for k in range(1, depth + 1)]
    return {end: [getattr(each, end) for each in found] for end in ("value", "low", "high")}


def measure(root: Path, counts: list[int], out: Path) -> None:
    """Trains and replays one speculator per count; prints and appends to `out`."""
    run = RunDirectory(root.resolve())
    recipe, parts = run.read_resolved(), parts_in_use(run)
    points: dict[str, Any] = read_json(out) if out.is_file() else {}
    for count in counts:
        if str(count) in points:
            continue
        place = run.of_kind(f"curve_{count}")
        train_on(place, recipe, {**parts, "train": parts["train"][:count]})
        points[str(count)] = acceptance(run, recipe, place.speculator, parts["heldout"])
        print(count, points[str(count)], flush=True)
        write_json(out, points)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--responses", type=int, nargs="+", required=True)
    parser.add_argument("--out", type=Path, default=Path("build/learning_curve.json"))
    given = parser.parse_args()
    measure(given.run, given.responses, given.out)


if __name__ == "__main__":
    main()
