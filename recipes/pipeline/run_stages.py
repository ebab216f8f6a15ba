"""Runs the stages of a recipe in order, each in its own process, and skips those that are done.

with run.locked():
    run.begin_attempt(loaded.recipe, loaded.files, sys.argv)
    run_stages(run, loaded.recipe, stage_names(None, recipe), {}, console)
"""

import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rich.console import Console

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.common.supervision import run_supervised
from outrider.recipes.config.recipe import Recipe
from outrider.recipes.pipeline.retention import retain
from outrider.recipes.pipeline.run_dir import RunDirectory
from outrider.recipes.pipeline.stage import Options, Stage
from outrider.recipes.pipeline.stage_process import UNEXPECTED
from outrider.recipes.pipeline.stages.registry import stage_of
from outrider.serving.vllm_hooks.process_start import forking_environment

STAGE_ENVIRONMENT = {
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""Quiet logs, and the same hashes in every run."""


Results = dict[str, dict[str, Any]]
"""Results of stages by name."""


class StageFailed(OutriderError):
    """A stage failed; carries the exit status of a user's mistake."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run_stages(
    run: RunDirectory, recipe: Recipe, wanted: Sequence[str], options: Options, console: Console
) -> Results:
    """Brings the wanted stages up to date and returns their results by name.

    Stops at the first stage that fails. After the export, `privacy.retention` deletes its share.
    """
    results: Results = {}
    with contextlib.ExitStack() as background:
        for name in wanted:
            stage = stage_of(name, recipe)
            _require_needed(stage, run, results)
            if stage.measures_speed:
                background.close()
            elif not results and "evaluate" in wanted and "compiled" in recipe.eval.engine_modes:
                background.enter_context(_compiling(run, recipe, wanted, options))
            _bring_up_to_date(stage, run, recipe, options, console)
            results[name] = run.result_of(name)
    if "export" in results and (deleted := retain(run, recipe.privacy.retention)):
        what = f"privacy.retention = {recipe.privacy.retention}: deleted {', '.join(deleted)}"
        _print_step(console, "[green]✓[/]", "retention", what)
    return results


def _compiling(
    run: RunDirectory, recipe: Recipe, wanted: Sequence[str], options: Options
) -> AbstractContextManager[None]:
    """Compiles for the evaluation in the background, if a stage before it has work to do."""
    stages = (stage_of(name, recipe) for name in wanted)
    earlier = itertools.takewhile(lambda stage: not stage.measures_speed, stages)
    if all(stage.state(run, recipe, options).done for stage in earlier):
        return contextlib.nullcontext()
    from outrider.serving.compile_cache import compiling

    return compiling(recipe.target, recipe.speculative_serving(), run.attempt() / "compile.log")


def _require_needed(stage: Stage, run: RunDirectory, results: Results) -> None:
    for needed in stage.needs:
        if needed not in results and not run.stage_record(needed).is_file():
            raise OutriderError(
                f"{stage.name} needs the output of {needed}, which has not finished in "
                f"{run.root}; run it first: --stages {needed},{stage.name}"
            )


def _bring_up_to_date(
    stage: Stage, run: RunDirectory, recipe: Recipe, options: Options, console: Console
) -> None:
    state = stage.state(run, recipe, options)
    if state.done:
        kept = "kept"
        if state.deleted:
            kept = f"its output was deleted after the export ({state.deleted})"
        _print_step(console, "[green]✓[/]", stage.name, f"nothing changed, {kept}")
        return
    stage.require_readable(run, state.reasons)
    _print_step(console, "[cyan]▸[/]", stage.name, "; ".join(state.reasons))
    begin = time.monotonic()
    _run_in_process(stage, run, options)
    _print_step(console, "[green]✓[/]", stage.name, f"{time.monotonic() - begin:.0f} s")


def _print_step(console: Console, sign: str, name: str, text: str) -> None:
    console.print(f"{sign} [bold]{name:<9}[/] {text}", highlight=False, soft_wrap=True)


def _run_in_process(stage: Stage, run: RunDirectory, options: Options) -> None:
    name = stage.name
    log = run.attempt() / f"{name}.log"
    module = "outrider.recipes.pipeline.stage_process"
    argv = [sys.executable, "-m", module, name, str(run.root), json.dumps(options)]
    environment = dict(os.environ) | STAGE_ENVIRONMENT
    if stage.starts_engines:
        environment |= forking_environment()
    status = run_supervised(argv, log, environment)
    if status == 0:
        return
    failure = run.attempt() / f"{name}.failed.json"
    if failure.is_file():
        mistake = read_json(failure)
        raise StageFailed(mistake["message"], mistake["exit_code"])
    if status == UNEXPECTED:
        raise StageFailed(
            f"{name} failed: {_last_line(log)} (an error in Outrider or in a library; "
            f"the traceback is in {log})"
        )
    if status == -signal.SIGKILL:
        raise StageFailed(
            f"{name} was killed, most often because the machine ran out of memory; see {log}"
        )
    if status < 0:
        raise StageFailed(f"{name} crashed with {signal.Signals(-status).name}; see {log}")
    raise StageFailed(
        f"{name} was interrupted (status {status}); rerun the command to resume. Its log is {log}",
        exit_code=75,
    )


def _last_line(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    return text.splitlines()[-1].strip() if text else "no output"
