"""Evaluate: the trained speculator, or another one, against the base and no speculation."""

from pathlib import Path
from typing import Any

from outrider.recipes.config.recipe import Recipe
from outrider.recipes.pipeline.run_dir import RunDirectory
from outrider.recipes.pipeline.stage import Options, Stage
from outrider.recipes.pipeline.stages.sources import parts_in_use, section, target_and_base_digests


def _evaluate(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    return _measure(run, recipe, speculator=run.speculator, out=run.evaluation, report=run.root)


def _evaluate_other(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    from outrider.eval.counted import evaluate_counted
    from outrider.serving.speculator import Speculator

    out, speculator = run.other_evaluation, Speculator.named(options["speculator"])
    if speculator.has_unroll:
        return _measure(run, recipe, speculator=speculator.directory, out=out, report=out)
    return evaluate_counted(speculator=speculator, **_evaluated(run, recipe, out, report=out))


def _measure(
    run: RunDirectory, recipe: Recipe, speculator: Path, out: Path, report: Path
) -> dict[str, Any]:
    from outrider.data.split.slices import load_slices
    from outrider.eval.evaluate import evaluate

    return evaluate(
        speculator_dir=speculator,
        features_dir=run.features,
        slices=load_slices(run.split),
        show_samples=recipe.report.samples,
        **_evaluated(run, recipe, out, report),
    )


def _evaluated(run: RunDirectory, recipe: Recipe, out: Path, report: Path) -> dict[str, Any]:
    """Arguments that the evaluation of every kind of speculator takes."""
    from outrider.speculators.kinds import base_directory

    return {
        "recipe": recipe.name,
        "run_dir": run.root,
        "target": recipe.target,
        "base_dir": base_directory(recipe.speculator.base, recipe.target.directory()),
        "sequences_dir": run.tables,
        "parts": parts_in_use(run),
        "depth": recipe.speculator.depth,
        "serving": recipe.speculative_serving(),
        "evaluation": recipe.evaluation(),
        "out_dir": out,
        "report_dir": report,
        "log_dir": run.attempt(),
    }


def _settings(recipe: Recipe) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "serving": section(recipe.serving),
        "eval": section(recipe.eval),
        "speculator": section(recipe.speculator),
    }
    # Only where it is on, so that evaluations older than this key stay valid.
    if recipe.report.samples:
        settings["report"] = {"samples": True}
    return settings


EVALUATE = Stage(
    name="evaluate",
    version=3,
    needs=("split", "capture", "train"),
    settings=_settings,
    sources=target_and_base_digests,
    work=_evaluate,
    reads=lambda run: (run.sequences, run.features / "manifest.json"),
    artifact=lambda run: run.root / "report.json",
    identity=lambda run: run.root / "report.json",
    handles_text=True,
    starts_engines=True,
)

EVALUATE_OTHER = Stage(
    name="evaluate_other",
    version=3,
    needs=("split", "capture"),
    settings=_settings,
    sources=target_and_base_digests,
    work=_evaluate_other,
    reads=lambda run: (run.sequences, run.features / "manifest.json"),
    artifact=lambda run: run.other_evaluation / "report.json",
    identity=lambda run: run.other_evaluation / "report.json",
    options=("speculator", "weights"),
    handles_text=True,
    starts_engines=True,
)
"""`evaluate-speculator --speculator DIR|ngram|none`: a speculator that this run did not train."""
