"""Evaluate: the trained speculator, or another one, against the base and no speculation.

In a run of several kinds, EVALUATE_KINDS publishes and evaluates the one that choose_kind has
named.
"""

import dataclasses
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.common.files import publish, read_json
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import Options, Stage
from outrider.pipeline.stages.sources import (
    parts_in_use,
    section,
    served_base_of,
    speculator_section,
    target_and_base_digests,
)

if TYPE_CHECKING:
    from outrider.eval.context import EvaluationContext


def _evaluate(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    from outrider.eval.evaluate import evaluate

    return evaluate(evaluation_context(run, recipe, str(run.speculator), run.evaluation, run.root))


def _evaluate_other(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    from outrider.eval.evaluate import evaluate

    out = run.other_evaluation
    return evaluate(evaluation_context(run, recipe, str(options["speculator"]), out, out))


def _evaluate_kinds(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    """Evaluates the kind that choose_kind has named."""
    from outrider.eval.evaluate import evaluate
    from outrider.eval.results.choice import KindChoice

    choice = KindChoice.model_validate(read_json(run.kind_choice))
    publish_chosen(run, choice.chosen)
    one = recipe.of_kinds([choice.chosen])
    context = evaluation_context(run, one, str(run.speculator), run.evaluation, run.root)
    return evaluate(dataclasses.replace(context, kinds=choice))


def publish_chosen(run: RunDirectory, kind: str) -> None:
    """Makes the run's speculator and metrics those of one of its kinds, as links to its files."""
    own = run.of_kind(kind)
    with publish(run.speculator) as temporary:
        shutil.copytree(own.speculator, temporary, copy_function=_linked)
    with publish(run.metrics) as temporary:
        shutil.copyfile(own.metrics, temporary)


def _linked(source: str, destination: str) -> None:
    """A hard link, since weights of an R1 layer take 12 GB and more; a copy where links fail."""
    try:
        os.link(source, destination)
    except OSError:
        shutil.copy2(source, destination)


def context_of_kind(run: RunDirectory, recipe: Recipe, kind: str) -> "EvaluationContext":
    """The evaluation of one of several kinds, in its own folder."""
    own = run.of_kind(kind)
    one = recipe.of_kinds([kind])
    return evaluation_context(own, one, str(own.speculator), own.evaluation, own.evaluation)


def evaluation_context(
    run: RunDirectory, recipe: Recipe, speculator: str, out: Path, report: Path
) -> "EvaluationContext":
    """The evaluation of a speculator, named as `--speculator` names one."""
    from outrider.data.split.slices import load_slices
    from outrider.eval.context import EvaluationContext, EvaluationData, EvaluationFolders
    from outrider.serving.speculator import Speculator

    parts = parts_in_use(run)
    data = EvaluationData(
        run.tables, parts, run.features, load_slices(run.split), parts.get("sessions", {})
    )
    base = served_base_of(run, recipe)
    return EvaluationContext(
        recipe=recipe.name,
        target=recipe.target,
        serving=recipe.serving,
        draft_sample_method=recipe.speculator.draft_sample_method,
        settings=recipe.eval,
        depth=recipe.speculator.depth,
        speculators={"base": base, "custom": Speculator.named(speculator)},
        data=data,
        folders=EvaluationFolders(run.root, out, report, run.attempt(), run.trained),
        show_samples=recipe.report.samples,
        by_batch_size=recipe.export.k_per_batch_size,
        cluster=recipe.cluster,
    )


def evaluation_settings(recipe: Recipe) -> dict[str, Any]:
    """The part of the recipe that an evaluation follows."""
    settings: dict[str, Any] = {
        "serving": section(recipe.serving),
        "eval": section(recipe.eval),
        "speculator": speculator_section(recipe),
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
    settings=evaluation_settings,
    sources=target_and_base_digests,
    work=_evaluate,
    reads=lambda run: (run.sequences, run.features / "manifest.json"),
    artifact=lambda run: run.root / "report.json",
    identity=lambda run: run.root / "report.json",
    handles_text=True,
    starts_engines=True,
)

EVALUATE_KINDS = dataclasses.replace(
    EVALUATE,
    needs=("split", "capture", "train", "choose_kind"),
    work=_evaluate_kinds,
)
"""`evaluate` in a run of several kinds."""

EVALUATE_OTHER = Stage(
    name="evaluate_other",
    version=4,
    needs=("split", "capture"),
    settings=evaluation_settings,
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
