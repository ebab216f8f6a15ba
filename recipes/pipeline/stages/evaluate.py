"""Evaluate: the trained speculator, or another one, against the base and no speculation."""

from pathlib import Path
from typing import Any

from outrider.recipes.config.recipe import Recipe
from outrider.recipes.pipeline.run_dir import RunDirectory
from outrider.recipes.pipeline.stage import Options, Stage
from outrider.recipes.pipeline.stages.sources import (
    parts_in_use,
    section,
    served_base_of,
    target_and_base_digests,
)


def _evaluate(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    return _measure(run, recipe, str(run.speculator), out=run.evaluation, report=run.root)


def _evaluate_other(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    out = run.other_evaluation
    return _measure(run, recipe, str(options["speculator"]), out=out, report=out)


def _measure(
    run: RunDirectory, recipe: Recipe, speculator: str, out: Path, report: Path
) -> dict[str, Any]:
    from outrider.data.split.slices import load_slices
    from outrider.eval.context import EvaluationContext, EvaluationData, EvaluationFolders
    from outrider.eval.evaluate import evaluate
    from outrider.serving.speculator import Speculator

    parts = parts_in_use(run)
    data = EvaluationData(
        run.tables, parts, run.features, load_slices(run.split), parts.get("sessions", {})
    )
    base = served_base_of(run, recipe)
    context = EvaluationContext(
        recipe=recipe.name,
        target=recipe.target,
        serving=recipe.speculative_serving(),
        settings=recipe.evaluation(),
        depth=recipe.speculator.depth,
        speculators={"base": base, "custom": Speculator.named(speculator)},
        data=data,
        folders=EvaluationFolders(run.root, out, report, run.attempt()),
        show_samples=recipe.report.samples,
        by_batch_size=recipe.export.k_per_batch_size,
    )
    return evaluate(context)


def _settings(recipe: Recipe) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "serving": section(recipe.serving),
        "eval": section(recipe.eval),
        "speculator": section(recipe.speculator),
    }
    # Only where they are on, so that evaluations older than these keys stay valid.
    if recipe.report.samples:
        settings["report"] = {"samples": True}
    if recipe.export.k_per_batch_size:
        settings["export"] = {"k_per_batch_size": True}
    return settings


EVALUATE = Stage(
    name="evaluate",
    version=4,
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
    version=4,
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
