"""Split: training, validation and held-out parts of the sequences."""

from typing import Any

from outrider.recipes.config.recipe import Recipe
from outrider.recipes.pipeline.run_dir import RunDirectory
from outrider.recipes.pipeline.stage import Options, Stage
from outrider.recipes.pipeline.stages.sources import general_digests, section


def _work(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    from rich.console import Console

    from outrider.common.files import read_json
    from outrider.data.ingest.advice import advise
    from outrider.data.split.split import split

    general = run.general / "sequences" if recipe.traffic.general is not None else None
    parts = split(run.sequences, recipe.split, run.split, general)
    ingested, console = read_json(run.traffic / "summary.json"), Console(stderr=True)
    for text in advise(ingested, parts["summary"], recipe.split):
        console.print(f"advice: {text}", style="yellow", markup=False, soft_wrap=True)
    return parts["summary"]


SPLIT = Stage(
    name="split",
    version=3,
    needs=("ingest",),
    settings=lambda recipe: {"split": section(recipe.split)},
    sources=general_digests,
    work=_work,
    reads=lambda run: (run.sequences,),
    artifact=lambda run: run.split / "parts.json",
    identity=lambda run: run.split / "parts.json",
    handles_text=True,
    imports=("outrider.data.split.split", "outrider.data.ingest.advice"),
)
