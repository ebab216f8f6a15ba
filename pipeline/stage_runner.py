"""Runs one stage in a process of its own (stage_process.py).

run_stage(stage_of("ingest", recipe), run, {})
"""

import json
import os
import signal
import sys
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.common.supervision import run_supervised
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import Options, Stage
from outrider.pipeline.stage_process import UNEXPECTED

STAGE_ENVIRONMENT = {
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""Quiet logs, and the same hashes in every run."""


class StageFailed(OutriderError):
    """A stage failed; carries the exit status of a user's mistake."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run_stage(stage: Stage, run: RunDirectory, options: Options) -> None:
    """Runs a stage to its end; raises `StageFailed` with the stage's own message if it has one."""
    module, log = "outrider.pipeline.stage_process", run.attempt() / f"{stage.name}.log"
    argv = [sys.executable, "-m", module, stage.name, str(run.root), json.dumps(options)]
    status = run_supervised(argv, log, os.environ | STAGE_ENVIRONMENT)
    if status:
        raise _failure(stage.name, status, log, run.attempt() / f"{stage.name}.failed.json")


def _failure(name: str, status: int, log: Path, failure: Path) -> StageFailed:
    if failure.is_file():
        mistake = read_json(failure)
        return StageFailed(mistake["message"], mistake["exit_code"])
    if status == UNEXPECTED:
        return StageFailed(
            f"{name} failed: {_last_line(log)} (an error in Outrider or in a library; the"
            f" traceback is in {log})"
        )
    if status == -signal.SIGKILL:
        return StageFailed(
            f"{name} was killed, most often because the machine ran out of memory; see {log}"
        )
    if status < 0:
        return StageFailed(f"{name} crashed with {signal.Signals(-status).name}; see {log}")
    return StageFailed(
        f"{name} was interrupted (status {status}); rerun the command to resume. Its log is {log}",
        exit_code=75,
    )


def _last_line(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    return text.splitlines()[-1].strip() if text else "no output"
