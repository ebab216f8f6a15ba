"""Runs the stages of a recipe in order, each in its own process, and skips those that are done.

with run.locked():
    run.begin_attempt(loaded.recipe, loaded.files, sys.argv)
    run_stages(run, loaded.recipe, stage_names(None, recipe), {}, console)
"""

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from outrider.common.errors import OutriderError
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.retention import retain
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import Options, Stage, State
from outrider.pipeline.stage_runner import run_stage
from outrider.pipeline.stages.registry import stage_of

Results = dict[str, dict[str, Any]]
"""Results of stages by name."""


def run_stages(
    run: RunDirectory, recipe: Recipe, wanted: Sequence[str], options: Options, console: Console
) -> Results:
    """Brings the wanted stages up to date and returns their results by name.

    Stops at the first stage that fails. After the export, `privacy.retention` deletes its share.
    """
    results: Results = {}
    for stage in (stage_of(name, recipe) for name in wanted):
        name = stage.name
        _require_needed(stage, run, results)
        state = stage.state(run, recipe, options)
        if state.done:
            _print_kept(stage, state, console)
        else:
            stage.require_readable(run, state.reasons)
            _print_step(console, "[cyan]▸[/]", name, "; ".join(state.reasons))
            begin = time.monotonic()
            run_stage(stage, run, options)
            _print_step(console, "[green]✓[/]", name, f"{time.monotonic() - begin:.0f} s")
        results[name] = run.result_of(name)
    if "export" in results and (deleted := retain(run, recipe.privacy.retention)):
        what = f"privacy.retention = {recipe.privacy.retention}: deleted {', '.join(deleted)}"
        _print_step(console, "[green]✓[/]", "retention", what)
    return results


def _require_needed(stage: Stage, run: RunDirectory, results: Results) -> None:
    for needed in stage.needs:
        if needed not in results and not run.stage_record(needed).is_file():
            raise OutriderError(
                f"{stage.name} needs the output of {needed}, which has not finished in "
                f"{run.root}; run it first: --stages {needed},{stage.name}"
            )


def _print_kept(stage: Stage, state: State, console: Console) -> None:
    kept = "kept"
    if state.deleted:
        kept = f"its output was deleted after the export ({state.deleted})"
    _print_step(console, "[green]✓[/]", stage.name, f"nothing changed, {kept}")


def _print_step(console: Console, sign: str, name: str, text: str) -> None:
    console.print(f"{sign} [bold]{name:<9}[/] {text}", highlight=False, soft_wrap=True)
