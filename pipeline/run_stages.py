"""Runs a recipe's stages in order; skips those that are done.

with run.locked():
    run.begin_attempt(loaded.recipe, loaded.files, sys.argv)
    run_stages(run, loaded.recipe, stage_names(None, recipe), {}, console)
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.common.process_tree import run_supervised
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.retention import deletion_of, retain
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import Options, Results, Stage
from outrider.pipeline.stage_process import UNEXPECTED
from outrider.pipeline.stages.registry import stage_of


def run_stages(
    run: RunDirectory, recipe: Recipe, names: Sequence[str], options: Options, console: Console
) -> Results:
    """Brings the requested stages up to date; returns their results by name.

    Stops at the first stage that fails. After the export, applies `privacy.retention`.
    """

    def say(sign: str, name: str, text: str) -> None:
        console.print(f"{sign} [bold]{name:<9}[/] {escape(text)}", highlight=False, soft_wrap=True)

    results: Results = {}
    for stage in (stage_of(name, recipe) for name in names):
        name = stage.name
        for needed in stage.needs:
            if needed not in results and not run.stage_record(needed).is_file():
                raise OutriderError(
                    f"{name} needs the output of {needed}, which has not finished in {run.root};"
                    f" run `outrider train` on the recipe, which runs all stages before {name}"
                )
        reasons = "; ".join(stage.reasons(run, recipe, options))
        if not reasons:
            deleted = deletion_of(run, stage.artifact(run))
            output = f"its output was deleted after the export ({deleted})" if deleted else "kept"
            say("[green]✓[/]", name, f"nothing changed, {output}")
        else:
            for path in stage.reads(run):
                if deleted := deletion_of(run, path):
                    raise OutriderError(
                        f"{name} must run ({reasons}), but its input {path} was deleted after the"
                        f" export ({deleted}). To compute it again from the logs, set"
                        " privacy.retention=keep in the recipe or on the command line and leave"
                        " out --stages. To leave it deleted, undo the change or give the run"
                        " another name (name=NAME)"
                    )
            say("[cyan]▸[/]", name, reasons)
            begin = time.monotonic()
            run_stage(stage, run, options)
            say("[green]✓[/]", name, f"{time.monotonic() - begin:.0f} s")
        results[name] = run.result_of(name)
    if "export" in results:
        deleted_now = retain(run, recipe.privacy.retention)
        if deleted_now:
            names_deleted = ", ".join(deleted_now)
            what = f"privacy.retention = {recipe.privacy.retention}: deleted {names_deleted}"
            say("[green]✓[/]", "retention", what)
    return results


STAGE_ENVIRONMENT = {
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""Environment variables of a stage, for quiet logs and reproducible hashes."""


class StageFailed(OutriderError):
    """A stage failed; `exit_code` is the exit status for the command."""


def run_stage(stage: Stage, run: RunDirectory, options: Options) -> None:
    """Runs a stage; raises `StageFailed` with the stage's message, if any."""
    module = "outrider.pipeline.stage_process"
    log = run.attempt() / f"{stage.name}.log"
    argv = [sys.executable, "-m", module, stage.name, str(run.root), json.dumps(options)]
    status = run_supervised(argv, log, os.environ | STAGE_ENVIRONMENT)
    failure = run.attempt() / f"{stage.name}.failed.json"
    if status and failure.is_file():
        mistake = read_json(failure)
        raise StageFailed(mistake["message"], exit_code=mistake["exit_code"])
    if status == UNEXPECTED:
        last = log.read_text(encoding="utf-8", errors="replace").strip().split("\n")[-1].strip()
        raise StageFailed(
            f"{stage.name} failed: {last or 'no output'} (an error in Outrider or a library; see"
            f" the traceback in {log})"
        )
    if status < 0:
        name = signal.Signals(-status).name
        memory = " (usually too little memory)" if name == "SIGKILL" else ""
        raise StageFailed(f"{stage.name} crashed with {name}{memory}; see {log}")
    if status:
        raise StageFailed(
            f"{stage.name} was interrupted (status {status}); rerun the command to resume. Its log"
            f" is {log}",
            exit_code=75,
        )
