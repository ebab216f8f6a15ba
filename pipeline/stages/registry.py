"""All stages in the order in which they run.

STAGES["capture"].needs                 # ("ingest", "split")
stage_of("train", recipe)               # in a run of several kinds: the training of each
"""

from outrider.common.errors import OutriderError
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.stage import Stage
from outrider.pipeline.stages.adapt import ADAPT_ROUND, ADAPT_WINDOW
from outrider.pipeline.stages.capture import CAPTURE
from outrider.pipeline.stages.evaluate import (
    CHOOSE_KIND,
    EVALUATE,
    EVALUATE_KINDS,
    EVALUATE_OTHER,
)
from outrider.pipeline.stages.export import EXPORT
from outrider.pipeline.stages.ingest import INGEST
from outrider.pipeline.stages.split import SPLIT
from outrider.pipeline.stages.train import TRAIN, TRAIN_KINDS

STAGES: dict[str, Stage] = {
    stage.name: stage for stage in (INGEST, SPLIT, CAPTURE, TRAIN, EVALUATE, EXPORT)
}
"""The stages of `train-speculator` for one kind of drafter."""

STAGES_OF_KINDS: dict[str, Stage] = {
    stage.name: stage
    for stage in (INGEST, SPLIT, CAPTURE, TRAIN_KINDS, CHOOSE_KIND, EVALUATE_KINDS, EXPORT)
}
"""The same for several kinds."""


OTHER_STAGES: dict[str, Stage] = {
    stage.name: stage for stage in (EVALUATE_OTHER, ADAPT_WINDOW, ADAPT_ROUND)
}
"""Stages of other commands than `train-speculator`."""


def stages_of(recipe: Recipe) -> dict[str, Stage]:
    """The stages of the recipe's run."""
    return STAGES if len(recipe.speculator.candidates) == 1 else STAGES_OF_KINDS


def stage_of(name: str, recipe: Recipe) -> Stage:
    """The stage of that name in the recipe's run."""
    return OTHER_STAGES[name] if name in OTHER_STAGES else stages_of(recipe)[name]


def stage_names(text: str | None, recipe: Recipe) -> list[str]:
    """The stages that `--stages a,b` names, in the order in which they run; None means all."""
    stages = stages_of(recipe)
    if text is None:
        return list(stages)
    named = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in named if name not in stages]
    if unknown or not named:
        kinds = ""
        if CHOOSE_KIND.name in unknown:
            kinds = f" ({CHOOSE_KIND.name} needs several kinds in speculator.kind)"
        raise OutriderError(
            f"--stages {text}: no stage `{', '.join(unknown)}`{kinds}; the stages are"
            f" {', '.join(stages)}"
        )
    return [name for name in stages if name in named]
