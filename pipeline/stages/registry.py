"""All stages in the order in which they run.

STAGES["capture"].needs                 # ("ingest", "split")
stages_of(recipe)                       # with several kinds: ..., train_mtp, train_eagle3, ...
"""

import dataclasses

from outrider.common.errors import OutriderError
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.stage import Stage
from outrider.pipeline.stages.adapt import ADAPT_ROUND, ADAPT_WINDOW
from outrider.pipeline.stages.capture import CAPTURE
from outrider.pipeline.stages.evaluate import CHOOSE_KIND, EVALUATE, EVALUATE_KINDS, EVALUATE_OTHER
from outrider.pipeline.stages.export import EXPORT
from outrider.pipeline.stages.ingest import INGEST, SPLIT
from outrider.pipeline.stages.train import TRAIN, train_stage_for_kind

STAGES: dict[str, Stage] = {
    stage.name: stage for stage in (INGEST, SPLIT, CAPTURE, TRAIN, EVALUATE, EXPORT)
}
"""The stages of `outrider train` for one kind of drafter."""

UNTRAINED_STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        INGEST,
        SPLIT,
        CAPTURE,
        dataclasses.replace(EVALUATE, needs=("split", "capture")),
        EXPORT,
    )
}
"""The stages of `outrider train` for a lookup, which is not trained."""

OTHER_STAGES: dict[str, Stage] = {
    stage.name: stage for stage in (EVALUATE_OTHER, ADAPT_WINDOW, ADAPT_ROUND)
}
"""Stages of commands other than `outrider train`."""


def stages_of(recipe: Recipe) -> dict[str, Stage]:
    """The stages of the recipe's run, with one training stage per kind."""
    # One kind has no choice to make, and its files are not in a folder of a kind.
    if len(recipe.speculator.candidates) == 1:
        return STAGES if recipe.speculator.kinds else UNTRAINED_STAGES
    trained = [train_stage_for_kind(kind) for kind in recipe.speculator.kinds]
    needs = ("split", "capture", *(stage.name for stage in trained))
    choose = dataclasses.replace(CHOOSE_KIND, needs=needs)
    evaluate = dataclasses.replace(EVALUATE_KINDS, needs=(*needs, choose.name))
    stages = (INGEST, SPLIT, CAPTURE, *trained, choose, evaluate, EXPORT)
    return {stage.name: stage for stage in stages}


def stage_of(name: str, recipe: Recipe) -> Stage:
    """Looks up a stage of the recipe's run or of `OTHER_STAGES`."""
    return OTHER_STAGES[name] if name in OTHER_STAGES else stages_of(recipe)[name]


def stage_names(text: str | None, recipe: Recipe) -> list[str]:
    """Parses `--stages a,b` into stage names in execution order; None means all.

    `train` selects the training of every kind.
    """
    stages = stages_of(recipe)
    if text is None:
        return list(stages)
    chosen = {name.strip() for name in text.split(",")}
    # Users write `train`, whether there is one kind or several.
    if "train" in chosen - stages.keys():
        chosen = chosen - {"train"} | {name for name in stages if name.startswith("train_")}
    if unknown := sorted(chosen - stages.keys()):
        raise OutriderError(
            f"--stages {text}: no stage `{', '.join(unknown)}`; the stages are"
            f" {', '.join(stages)} (choose_kind: with several kinds in speculator.kind)"
        )
    return [name for name in stages if name in chosen]
