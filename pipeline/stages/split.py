"""Split: training, validation and held-out parts of the sequences."""

from typing import Any

from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import Options, Stage
from outrider.pipeline.stages.sources import general_digests, section


def _work(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    from rich.console import Console

    from outrider.common.files import read_json
    from outrider.data.ingest.inspection import advise
    from outrider.data.sequences import load_sequences
    from outrider.data.split.split import split
    from outrider.eval.lossless.task_accuracy import try_task

    general = run.general / "sequences" if recipe.traffic.general is not None else None
    parts = split(run.sequences, recipe.split, run.split, general)
    ingested, console = read_json(run.traffic / "summary.json"), Console(stderr=True)
    heldout = load_sequences(run.sequences, parts["heldout"])
    found = try_task(
        recipe.eval, heldout, recipe.target.training_directory(), recipe.report.samples
    )
    for text in [*advise(ingested, parts["summary"], recipe.split), *found]:
        console.print(f"advice: {text}", style="yellow", markup=False, soft_wrap=True)
    return parts["summary"]


def _settings(recipe: Recipe) -> dict[str, Any]:
    """The split's own section, and the check that is tried on its held-out part."""
    return {"split": section(recipe.split), "eval": {"task": recipe.eval.task}}


SPLIT = Stage(
    name="split",
    version=3,
    needs=("ingest",),
    settings=_settings,
    sources=general_digests,
    work=_work,
    reads=lambda run: (run.sequences,),
    artifact=lambda run: run.split / "parts.json",
    identity=lambda run: run.split / "parts.json",
    handles_text=True,
)
