"""Outrider from Python: from logs to a verdict in six calls.

    import outrider

    recipe = outrider.init("logs/", target="/models/r1")        # a recipe file with safe defaults
    outrider.inspect(recipe)["lengths"]["completion"]["p90"]    # what the log contains
    outrider.plan(recipe)["memory"]                             # what training will cost
    run = outrider.train(recipe, stages="ingest,split,capture,train")
    report = outrider.evaluate(recipe)                          # report.verdict.verdict, .reason
    outrider.export(run, to="bundles/march")

Each function does the work of its command, in the same run directory, and raises `OutriderError`
with the same message. A recipe is a path, a shipped name or a run directory; overrides are strings
such as "training.epochs=3". Stages that are done and unchanged are skipped.

This module defines only these functions; the folders of the repository are its subpackages.
"""

import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.common.errors import OutriderError

if TYPE_CHECKING:
    from outrider.eval.results.report import Report
    from outrider.pipeline.run_dir import RunDirectory

__all__ = [
    "OutriderError",
    "__version__",
    "evaluate",
    "export",
    "init",
    "inspect",
    "plan",
    "train",
]

__version__ = importlib.metadata.version("outrider")

RUNS = Path("runs")
"""Parent of the run directories."""

Name = str | Path


def init(
    logs: Name,
    target: Name,
    to: Name | None = None,
    effort: str | None = None,
    force: bool = False,
) -> Path:
    """Writes a recipe for `logs` and `target`; returns its path.

    `force` writes it even if the target has probably not written the logs.
    """
    from outrider.cli.init import write_recipe

    path = None if to is None else Path(to)
    return write_recipe(logs=str(logs), target=str(target), to=path, effort=effort, force=force)[0]


def inspect(recipe: Name, *overrides: str, first: int | None = None) -> dict[str, Any]:
    """Counts what the recipe's log contains; `first` limits the rows per file."""
    from outrider.pipeline.inspection import inspect_recipe
    from outrider.pipeline.recipe.load import load_recipe

    facts, _ = inspect_recipe(load_recipe(str(recipe), list(overrides)).recipe, first, 0)
    return facts


def plan(recipe: Name, *overrides: str, runs: Name = RUNS) -> dict[str, Any]:
    """Estimates parameters, memory and disk (bytes), and seconds by stage, from config.json."""
    from outrider.pipeline.attempt import open_run
    from outrider.pipeline.plan.training_cost import price

    loaded, run = open_run(str(recipe), overrides, Path(runs), dry_run=True)
    return price(run, loaded.recipe)


def train(
    recipe: Name, *overrides: str, runs: Name = RUNS, stages: str | None = None, force: bool = False
) -> "RunDirectory":
    """Runs the stages; returns the `RunDirectory`, which has all paths.

    `stages` are comma-separated names; None runs all. `force` exports even a speculator that is
    not better than the base.
    """
    from outrider.pipeline.attempt import open_run, train_run
    from outrider.pipeline.stages.registry import stage_names

    loaded, run = open_run(str(recipe), overrides, Path(runs))
    train_run(loaded, run, stage_names(stages, loaded.recipe), force)
    return run


def evaluate(
    recipe: Name, *overrides: str, runs: Name = RUNS, speculator: Name | None = None
) -> "Report":
    """Evaluates a speculator against the base and no speculation; returns the report.

    `speculator` is a directory, a lookup such as "ngram", or "none"; by default the trained one.
    """
    from outrider.eval.results.report import Report
    from outrider.pipeline.attempt import evaluate_run, open_run

    loaded, run = open_run(str(recipe), overrides, Path(runs))
    evaluate_run(loaded, run, None if speculator is None else str(speculator))
    folder = run.root if speculator is None else run.other_evaluation
    return Report.read(folder / "report.json")


def export(
    recipe: "Name | RunDirectory", to: Name, *overrides: str, runs: Name = RUNS, force: bool = False
) -> str:
    """Writes the verified bundle to the directory or address `to`; returns `to`."""
    from outrider.pipeline.attempt import export_run, open_run
    from outrider.pipeline.run_dir import RunDirectory

    # Not by its attribute `root`, which a Path has too.
    name = recipe.root if isinstance(recipe, RunDirectory) else recipe
    loaded, run = open_run(str(name), overrides, Path(runs))
    export_run(loaded, run, str(to), force)
    return str(to)
