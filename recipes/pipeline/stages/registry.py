"""All stages in the order in which they run.

STAGES["capture"].needs      # ("ingest", "split")
"""

from outrider.common.errors import OutriderError
from outrider.recipes.pipeline.stage import Stage
from outrider.recipes.pipeline.stages.capture import CAPTURE
from outrider.recipes.pipeline.stages.evaluate import EVALUATE, EVALUATE_OTHER
from outrider.recipes.pipeline.stages.export import EXPORT
from outrider.recipes.pipeline.stages.ingest import INGEST
from outrider.recipes.pipeline.stages.split import SPLIT
from outrider.recipes.pipeline.stages.train import TRAIN

STAGES: dict[str, Stage] = {
    stage.name: stage for stage in (INGEST, SPLIT, CAPTURE, TRAIN, EVALUATE, EXPORT)
}
"""The stages of `train-speculator`."""


def stage_of(name: str) -> Stage:
    """The stage of that name."""
    return EVALUATE_OTHER if name == EVALUATE_OTHER.name else STAGES[name]


def stage_names(text: str | None) -> list[str]:
    """The stages that `--stages a,b` names, in the order in which they run; None means all."""
    if text is None:
        return list(STAGES)
    named = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in named if name not in STAGES]
    if unknown or not named:
        raise OutriderError(
            f"--stages {text}: no stage `{', '.join(unknown)}`; the stages are {', '.join(STAGES)}"
        )
    return [name for name in STAGES if name in named]
