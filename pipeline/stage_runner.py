"""Runs stages in processes of their own, and starts the next ones while a stage works.

    with StageRunner(run, recipe, {}) as runner:
        runner.perform(stage_of("ingest", recipe), [stage_of("split", recipe)])

A stage's process imports torch, transformers and vLLM for 2 to 13 s of a core before it works
(`Stage.imports`). On two cores that is a fifth of the time to the first result, while one core or
the disk is idle. So the next stages that have work to do start early, import, and wait
(stage_process.py). They open nothing and hold no accelerator memory, and they end with the command.
None starts while a stage measures speed.
"""

import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.common.supervision import Supervised
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import Options, Stage
from outrider.pipeline.stage_process import UNEXPECTED
from outrider.serving.vllm_hooks.process_start import forking_environment

STAGE_ENVIRONMENT = {
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""Quiet logs, and the same hashes in every run."""

AHEAD = 2
"""Processes that wait. Ingest and split are shorter than the imports of capture."""


class StageFailed(OutriderError):
    """A stage failed; carries the exit status of a user's mistake."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class StageRunner:
    """The processes of a run's stages, as a context that ends those that still wait."""

    def __init__(self, run: RunDirectory, recipe: Recipe, options: Options) -> None:
        self._run, self._recipe, self._options = run, recipe, options
        self._waiting: dict[str, Supervised] = {}

    def __enter__(self) -> "StageRunner":
        return self

    def __exit__(self, *_: object) -> None:
        while self._waiting:
            name, process = self._waiting.popitem()
            process.close()
            with contextlib.suppress(FileNotFoundError):
                self._log(name).unlink()  # of a stage that this attempt never came to

    def perform(self, stage: Stage, following: Iterable[Stage] = ()) -> None:
        """Runs a stage to its end. Of `following`, the next ones that have work to do start."""
        process = self._waiting.pop(stage.name, None) or self._start(stage)
        with process:
            if not stage.measures_speed:
                for each in itertools.islice(filter(self._has_work, following), AHEAD):
                    if each.name not in self._waiting:
                        self._waiting[each.name] = self._start(each)
            status = process.run()
        if status:
            raise self._failure(stage, status)

    def _has_work(self, stage: Stage) -> bool:
        with contextlib.suppress(OutriderError):  # raised when it is the stage's turn
            return not stage.state(self._run, self._recipe, self._options).done
        return False

    def _start(self, stage: Stage) -> Supervised:
        module = "outrider.pipeline.stage_process"
        options = json.dumps(self._options)
        argv = [sys.executable, "-m", module, stage.name, str(self._run.root), options]
        environment = dict(os.environ) | STAGE_ENVIRONMENT
        if stage.starts_engines:
            environment |= forking_environment()
        return Supervised(argv, self._log(stage.name), environment)

    def _log(self, name: str) -> Path:
        return self._run.attempt() / f"{name}.log"

    def _failure(self, stage: Stage, status: int) -> StageFailed:
        name, log = stage.name, self._log(stage.name)
        failure = self._run.attempt() / f"{name}.failed.json"
        if failure.is_file():
            mistake = read_json(failure)
            return StageFailed(mistake["message"], mistake["exit_code"])
        if status == UNEXPECTED:
            return StageFailed(
                f"{name} failed: {_last_line(log)} (an error in Outrider or in a library; "
                f"the traceback is in {log})"
            )
        if status == -signal.SIGKILL:
            return StageFailed(
                f"{name} was killed, most often because the machine ran out of memory; see {log}"
            )
        if status < 0:
            return StageFailed(f"{name} crashed with {signal.Signals(-status).name}; see {log}")
        return StageFailed(
            f"{name} was interrupted (status {status}); rerun the command to resume. Its log is"
            f" {log}",
            exit_code=75,
        )


def _last_line(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    return text.splitlines()[-1].strip() if text else "no output"
