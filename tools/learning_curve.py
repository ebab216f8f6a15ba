"""Acceptance against the number of training responses, from one finished capture.

    outrider train smollm2/candidate_profiles speculator.kind=eagle3 --stages ingest,split,capture
    python -m tools.learning_curve measure runs/candidate_profiles "SmolLM2, warm start" \
        --responses 250 500 1000 2000
    python -m tools.learning_curve measure runs/candidate_profiles "SmolLM2, from scratch" \
        --responses 250 500 1000 2000 --set speculator.base=none
    python -m tools.learning_curve plot docs/images/learning_curve.svg

Trains the recipe's speculator on the first responses of the training part, once per number, and
replays the held-out part exactly at the recipe's depth. A number that `--points` already has is
skipped, so that an interrupted command resumes. Speculators and logs are written to
RUN/speculators/curve_N.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

from outrider.common.files import read_json, write_json
from outrider.data.features.feature_store import FeatureStore
from outrider.data.sequences import load_sequences
from outrider.eval.replay.heldout_replay import COLUMNS
from outrider.eval.replay.replay import replay
from outrider.eval.replay.sums import length_at
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.sources import parts_in_use
from outrider.pipeline.stages.train import train_on

POINTS = Path("benchmarks/results/learning_curve.json")
COLOURS = ("#2f6fde", "#c2571a")


def acceptance(
    run: RunDirectory, recipe: Recipe, speculator: Path | str, heldout: list[str]
) -> dict[str, float | None]:
    """Held-out acceptance length at the recipe's depth, and its interval's ends."""
    rows = load_sequences(run.sequences, heldout).select_columns(COLUMNS)
    store = FeatureStore.open(run.features)
    depth = recipe.speculator.depth
    target = recipe.target.training_directory()
    method = recipe.speculator.draft_sample_method
    sums = replay(
        speculator=speculator,
        target_dir=target,
        feature_store=store,
        rows=list(rows),
        depth=depth,
        draft_sample_method=method,
    )
    length = length_at(sums, depth)
    return {"value": length.value, "low": length.low, "high": length.high}


def measure(root: Path, name: str, counts: list[int], overrides: list[str], points: Path) -> None:
    """Trains and replays one speculator per count; prints and adds to curve `name`."""
    run = RunDirectory(root.resolve())
    recipe = load_recipe(str(run.root), overrides).recipe
    parts = parts_in_use(run)
    for count in counts:
        curves: dict[str, Any] = read_json(points) if points.is_file() else {}
        curve = curves.setdefault(name, {})
        if str(count) in curve:
            continue
        curve_run = run.of_kind(f"curve_{count}")
        # Another curve's training on as many responses would be resumed.
        shutil.rmtree(curve_run.trained, ignore_errors=True)
        train_on(curve_run, recipe, {**parts, "train": parts["train"][:count]})
        curve[str(count)] = acceptance(run, recipe, curve_run.speculator, parts["heldout"])
        print(name, count, curve[str(count)], flush=True)
        write_json(points, curves)


def plot(points: Path, out: Path) -> None:
    """Draws the curves of `points`, named `TARGET, START`, as SVG; a column per target."""
    import vl_convert

    rows = []
    for name, curve in read_json(points).items():
        target, start = name.split(", ")
        for count, point in curve.items():
            rows.append({"target": target, "start": start, "responses": int(count), **point})
    encoding = {
        "x": {
            "field": "responses",
            "type": "quantitative",
            "scale": {"type": "log", "nice": False, "padding": 20},
            "axis": {"values": sorted({row["responses"] for row in rows}), "format": ","},
            "title": "training responses",
        },
        "y": {
            "field": "value",
            "type": "quantitative",
            "title": "held-out tokens per step",
            "scale": {"zero": False},
        },
        "color": {
            "field": "start",
            "scale": {"range": COLOURS},
            "legend": {"title": None, "orient": "bottom"},
        },
    }
    interval = {"mark": "rule", "encoding": {"y": {"field": "low"}, "y2": {"field": "high"}}}
    chart = {
        "data": {"values": rows},
        "config": {"background": "white", "font": "system-ui, sans-serif"},
        "facet": {"column": {"field": "target", "title": None}},
        "resolve": {"scale": {"y": "independent"}},
        "spec": {
            "width": 300,
            "height": 240,
            "encoding": encoding,
            "layer": [{"mark": {"type": "line", "point": True}}, interval],
        },
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(vl_convert.vegalite_to_svg(chart), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=Path, default=POINTS)
    commands = parser.add_subparsers(dest="command", required=True)
    measured = commands.add_parser("measure")
    measured.add_argument("run", type=Path)
    measured.add_argument("name")
    measured.add_argument("--responses", type=int, nargs="+", required=True)
    measured.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    drawn = commands.add_parser("plot")
    drawn.add_argument("out", type=Path)
    args = parser.parse_args()
    if args.command == "measure":
        measure(
            args.run,
            args.name,
            counts=args.responses,
            overrides=args.set,
            points=args.points,
        )
    else:
        plot(args.points, args.out)


if __name__ == "__main__":
    main()
