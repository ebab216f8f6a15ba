"""Runs the stages of a recipe in order, each in its own process, skipping what is done.

with run.locked():
    run.begin_attempt(loaded.recipe, loaded.files, sys.argv)
    run_stages(run, loaded.recipe, stage_names(None), {}, console)
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.common.supervision import run_supervised
from outrider.recipes.config.recipe import Recipe
from outrider.recipes.pipeline.retention import retain
from outrider.recipes.pipeline.run_dir import RunDirectory
from outrider.recipes.pipeline.stage_process import UNEXPECTED
from outrider.recipes.pipeline.stages import Options, stage_of

STAGE_ENVIRONMENT = {
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",  # a forked engine would inherit the terminal beside the log
}
"""Quiet logs, and hashes that are the same from run to run."""


class StageFailed(OutriderError):
    """A stage ended otherwise than well; carries the exit status of its own mistake."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run_stages(
    run: RunDirectory, recipe: Recipe, wanted: Sequence[str], options: Options, console: Console
) -> dict[str, dict[str, Any]]:
    """Brings the wanted stages up to date and returns their results by name. Stops at the first that fails."""
    results = {}
    for name in wanted:
        stage = stage_of(name)
        for needed in stage.needs:
            if needed not in results and run.read_record(needed) is None:
                raise OutriderError(
                    f"{name} needs the output of {needed}, which has not finished in {run.root}; "
                    f"run it first: --stages {needed},{name}"
                )
        state = stage.state(run, recipe, options)
        if state.done:
            kept = (
                f"its output was deleted after the export ({state.deleted})"
                if state.deleted
                else "kept"
            )
            console.print(
                f"[green]✓[/] [bold]{name:<9}[/] nothing changed, {kept}",
                highlight=False,
                soft_wrap=True,
            )
        else:
            stage.require_what_it_reads(run, state.reasons)
            console.print(
                f"[cyan]▸[/] [bold]{name:<9}[/] {'; '.join(state.reasons)}", highlight=False
            )
            begin = time.monotonic()
            _run_stage(name, run, options)
            console.print(
                f"[green]✓[/] [bold]{name:<9}[/] {time.monotonic() - begin:.0f} s", highlight=False
            )
        results[name] = run.read_record(name)["result"]
    if "export" in results and (deleted := retain(run, recipe.privacy.retention)):
        what = f"privacy.retention = {recipe.privacy.retention}: deleted {', '.join(deleted)}"
        console.print(
            f"[green]✓[/] [bold]{'retention':<9}[/] {what}", highlight=False, soft_wrap=True
        )
    return results


def _run_stage(name: str, run: RunDirectory, options: Options) -> None:
    log = run.attempt() / f"{name}.log"
    argv = [
        sys.executable,
        "-m",
        "outrider.recipes.pipeline.stage_process",
        name,
        str(run.root),
        json.dumps(options),
    ]
    status = run_supervised(argv, log, dict(os.environ) | STAGE_ENVIRONMENT)
    if status == 0:
        return
    failure = run.attempt() / f"{name}.failed.json"
    if failure.is_file():
        told = read_json(failure)
        raise StageFailed(told["message"], told["exit_code"])
    if status == UNEXPECTED:
        raise StageFailed(
            f"{name} failed: {_last_line(log)} (a fault in Outrider or below it; the traceback is in {log})"
        )
    if status == -signal.SIGKILL:
        raise StageFailed(
            f"{name} was killed, most often because the machine ran out of memory; its log is {log}"
        )
    if status < 0:
        raise StageFailed(f"{name} crashed with {signal.Signals(-status).name}; its log is {log}")
    raise StageFailed(
        f"{name} was interrupted (status {status}); the same command goes on. Its log is {log}", 75
    )


def _last_line(log: Path) -> str:
    lines = [
        line.strip()
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    return lines[-1] if lines else "no output"
