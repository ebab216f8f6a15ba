"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from outrider.pipeline.recipe.shipped import shipped_recipes

RECIPE = "Path of a recipe, a run directory, or the name of a shipped recipe"
RecipeName = Annotated[str, Parameter(help=f"{RECIPE} (`outrider train --help` lists them).")]
# Listed once: there are 19, a third of a screen.
ListedRecipeName = Annotated[str, Parameter(help=f"{RECIPE}: {', '.join(shipped_recipes())}.")]
EndpointName = Annotated[
    str, Parameter(help="File of the endpoint (YAML), or the name of a shipped one: nano_r1.")
]
Runs = Annotated[Path, Parameter(help="Parent of the run directories; this run's is RUNS/NAME.")]
Overrides = Annotated[
    str,
    Parameter(help="section.key=value, such as training.epochs=3; the keys are in docs/reference."),
]
FromServeCommand = Annotated[
    str | None,
    Parameter(
        name="--from-serve-command",
        help="The `vllm serve ...` command that the endpoint runs today, or a file or folder with "
        "it (shell, Kubernetes or Compose): fills `target.*`, `serving.engine.*` and "
        "eval.current_k. Overrides take precedence.",
    ),
]
Until = Annotated[
    str | None,
    Parameter(
        help="Time of this machine's clock, such as 06:00: stages then stop at a checkpoint and "
        "release the GPUs, within 15 minutes. The same command continues in the next window.",
    ),
]
MaxGpuHours = Annotated[
    float | None,
    Parameter(
        help="GPU-hours of this window, from the command's start and over all GPUs that the run "
        "uses; then stages stop at a checkpoint, as at a set time.",
    ),
]
# `negative=""`: without it, cyclopts adds --no-json, and --no-force for `Flag`.
AsJson = Annotated[bool, Parameter(name="--json", negative="", show_default=False)]
ResultAsJson = Annotated[
    bool,
    Parameter(
        name="--json",
        negative="",
        show_default=False,
        help="Print the result as one line of JSON also to a terminal.",
    ),
]
Flag = Parameter(negative="", show_default=False)
