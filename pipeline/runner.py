"""Runs stages in order, each in its own process; skips those that are done.

    with attempt(run, recipe, files):
        results = run_stages(run, recipe, names=["ingest"], options={}, console=console)

    python -m outrider.pipeline.runner capture runs/resume_screening    # the process of a stage

Separate processes isolate memory, threads and environment. File descriptors 1 and 2 of a stage's
process and its children are the stage's log, which loggers also use. sys.stdout and sys.stderr
become the command's terminal, for progress; common/heartbeat.py ends a silence there. An
`OutriderError` is written to logs/attempt_N/STAGE.failed.json, which the command prints. Any other
error leaves a traceback in the log, which quotes customer text only if `report.samples` is true.
"""

import contextlib
import datetime
import importlib
import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field
from rich.console import Console
from rich.markup import escape

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.common.fingerprint import path_digest, resume_or_clear
from outrider.common.heartbeat import Heartbeat
from outrider.common.inert import printable
from outrider.common.json_forms import read_form
from outrider.common.process_tree import (
    INTERRUPTS,
    TERMINAL_DESCRIPTOR,
    interrupt,
    run_supervised,
)
from outrider.eval.report.formatting import duration
from outrider.pipeline.plan.time_left import in_one_line, seconds_left
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.retention import apply_retention, deletion_of
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import NEW, Options, Stage
from outrider.pipeline.stages.registry import stage_of, stages_of

Results = dict[str, dict[str, Any]]
"""Results of stages by name, as their records hold them."""

INTERRUPTED = 75
"""Exit status of a stage that a signal stopped: EX_TEMPFAIL of sysexits.h, try again."""

DISK_FULL = 74
"""A stage's exit status if the disk has no space even for its message; EX_IOERR in sysexits.h."""

UNEXPECTED = 70
"""Exit status of a stage with an error in the code: EX_SOFTWARE of sysexits.h."""

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


class _Mistake(BaseModel):
    """STAGE.failed.json: what a stage's process leaves for the command's."""

    message: str
    exit_code: Annotated[int, Field(ge=1, le=255)]


# In the command's process.


@contextlib.contextmanager
def attempt(run: RunDirectory, recipe: Recipe, files: tuple[Path, ...]) -> Iterator[None]:
    """Locks the run and starts an attempt; `files` are those of the recipe."""
    with run.locked():
        run.begin_attempt(recipe, files, sys.argv)
        yield


def run_stages(
    run: RunDirectory,
    recipe: Recipe,
    *,
    names: Sequence[str],
    options: Options,
    console: Console,
    end: float = math.inf,
    planned: Sequence[str] = (),
) -> Results:
    """Brings the requested stages up to date; returns their results by name.

    Stops at the first stage that fails, and at `end` (Unix time), with the status `INTERRUPTED`.
    After the export, applies `privacy.retention`. `planned` are the stages of the whole command,
    whose planned time is printed; by default none is.
    """

    def say(sign: str, name: str, text: str) -> None:
        console.print(
            f"{sign} [bold]{name:<9}[/] {escape(printable(text))}", highlight=False, soft_wrap=True
        )

    results: Results = {}
    begun = False
    for stage in [stage_of(name, recipe) for name in names]:
        _require_needed(stage, run, recipe, results)
        reasons = "; ".join(stage.reasons(run, recipe, options))
        if reasons:
            _require_inputs(stage, run, reasons)
            if time.time() >= end:
                raise StageFailed(
                    f"the window ended before {stage.name}; rerun the command in the next one",
                    exit_code=INTERRUPTED,
                )
            seconds = _seconds_left(stage, run, recipe, planned)
            if len(seconds) > 1 and not begun:
                console.print(in_one_line(seconds), highlight=False, soft_wrap=True)
            begun = True
            say("[cyan]▸[/]", stage.name, _beginning(reasons, seconds))
            begin = time.monotonic()
            run_stage(stage, run, options, end)
            say("[green]✓[/]", stage.name, f"{time.monotonic() - begin:.0f} s")
        else:
            stage.check_output(run)
            deleted = deletion_of(run, stage.artifact(run))
            output = f"its output was deleted after the export ({deleted})" if deleted else "kept"
            say("[green]✓[/]", stage.name, f"nothing changed, {output}")
        results[stage.name] = run.result_of(stage.name)
    if "export" in results:
        names_deleted = ", ".join(apply_retention(run, recipe.privacy.retention))
        if names_deleted:
            what = f"privacy.retention = {recipe.privacy.retention}: deleted {names_deleted}"
            say("[green]✓[/]", "retention", what)
    return results


def _seconds_left(
    stage: Stage, run: RunDirectory, recipe: Recipe, planned: Sequence[str]
) -> Mapping[str, float]:
    """Planned seconds of a stage that must run, and of later ones that then will."""
    if stage.name not in planned:
        return {}
    names = {stage.name}
    for name in planned[planned.index(stage.name) + 1 :]:
        is_after = not names.isdisjoint(stage_of(name, recipe).needs)
        # The reasons of the others would compare digests of whole logs.
        if is_after or not run.stage_record(name).is_file():
            names.add(name)
    return seconds_left(run, recipe, [name for name in planned if name in names])


def _beginning(reasons: str, seconds: Mapping[str, float]) -> str:
    """What is printed when a stage begins: why it runs, and the time left in total."""
    parts = [] if reasons == NEW else [reasons]
    if seconds:
        parts.append(f"about {duration(sum(seconds.values()))} left by the plan")
    return "; ".join(parts)


def _require_needed(stage: Stage, run: RunDirectory, recipe: Recipe, results: Results) -> None:
    """Raises an `OutriderError` if an output that a stage reads is not finished, or damaged."""
    for needed in stage.needs:
        if needed not in results and not run.stage_record(needed).is_file():
            raise OutriderError(
                f"{stage.name} needs the output of {needed}, which has not finished in {run.root};"
                f" run `outrider train` on the recipe, which runs all stages before {stage.name}"
            )
    for name in _before(stage, recipe):
        if name not in results:  # those were made or compared by this command
            stage_of(name, recipe).check_output(run)


def _before(stage: Stage, recipe: Recipe) -> list[str]:
    """The stages that a stage depends on, at any distance: it may read what all of them wrote."""
    stages = stages_of(recipe)
    names = dict.fromkeys(name for name in stage.needs if name in stages)
    for name in reversed(stages):
        if name in names:
            names |= dict.fromkeys(stages[name].needs)
    return [name for name in stages if name in names]


def _require_inputs(stage: Stage, run: RunDirectory, reasons: str) -> None:
    """Raises an `OutriderError` if retention deleted an input of a stage that must run."""
    for path in stage.reads(run):
        deleted = deletion_of(run, path)
        if deleted is None:
            continue
        raise OutriderError(
            f"{stage.name} must run ({reasons}), but its input {path} was deleted after the"
            f" export ({deleted}). To compute it again from the logs, set"
            " privacy.retention=keep in the recipe or on the command line and leave"
            " out --stages. To leave it deleted, undo the change or give the run"
            " another name (name=NAME)"
        )


def run_stage(stage: Stage, run: RunDirectory, options: Options, end: float = math.inf) -> None:
    """Runs a stage until `end` at most; raises `StageFailed` with the stage's message, if any."""
    # This module: both ends of the protocol (arguments, exit status, failed.json) are in one file.
    module = "outrider.pipeline.runner"
    log = run.attempt() / f"{stage.name}.log"
    argv = [sys.executable, "-m", module, stage.name, str(run.root), json.dumps(options)]
    # A hash seed is read when Python starts, so it cannot be set in the stage's process.
    status = run_supervised(argv, log, os.environ | STAGE_ENVIRONMENT, end)
    if status < 0 and time.time() >= end:  # before its handlers were there, or after `PATIENCE_S`
        status = INTERRUPTED
    failure = run.attempt() / f"{stage.name}.failed.json"
    if status and failure.is_file():
        mistake = read_form(_Mistake, failure, f"see {log} and rerun the command")
        raise StageFailed(mistake.message, exit_code=mistake.exit_code)
    if status == UNEXPECTED:
        last = log.read_text(encoding="utf-8", errors="replace").strip().split("\n")[-1].strip()
        raise StageFailed(
            f"{stage.name} failed: {last or 'no output'} (an error in Outrider or a library; see"
            f" the traceback in {log})"
        )
    if status == DISK_FULL:
        raise StageFailed(
            f"{stage.name}: no space left on the disk of {run.root}; free some and run the same"
            " command again"
        )
    if status < 0:
        name = signal.Signals(-status).name
        # The kernel's out-of-memory killer sends SIGKILL; so do few others.
        memory = " (usually too little memory)" if name == "SIGKILL" else ""
        raise StageFailed(f"{stage.name} crashed with {name}{memory}; see {log}")
    if status:
        raise StageFailed(
            f"{stage.name} was interrupted (status {status}); rerun the command to resume. Its log"
            f" is {log}",
            exit_code=INTERRUPTED,
        )


# In the stage's process.


def _publish_mistake(path: Path, error: OutriderError) -> int:
    """Writes a stage's message for the command; returns the exit status."""
    mistake = _Mistake(message=str(error), exit_code=error.exit_code)
    try:
        write_json(path, mistake.model_dump())
    except (OSError, OutriderError):  # the disk of the message, and of the log, is full
        return DISK_FULL
    return error.exit_code


def main(stage: Stage, run: RunDirectory, options: Options) -> int:
    """Runs the stage, publishes its record and returns the exit status."""
    for number in INTERRUPTS:
        signal.signal(number, interrupt)
    failed = run.attempt() / f"{stage.name}.failed.json"
    log = sys.stderr
    quoting = not stage.handles_text
    try:
        _show_progress_on_the_terminal(stage)
        recipe = run.read_resolved()
        # Known only once the recipe is read; until then, text-handling stages withhold messages.
        quoting = quoting or recipe.report.samples
        perform_stage(stage, run, recipe, options)
    except OutriderError as error:
        return _publish_mistake(failed, error)
    except KeyboardInterrupt:
        print(f"{stage.name}: interrupted", file=log)
        return INTERRUPTED
    except Exception as error:
        print(traceback_of(error, quoting), file=log)
        return UNEXPECTED
    finally:
        # The exit status is decided; a signal during the interpreter's exit must not change it.
        for number in INTERRUPTS:
            signal.signal(number, signal.SIG_IGN)
    return 0


def perform_stage(stage: Stage, run: RunDirectory, recipe: Recipe, options: Options) -> None:
    """Does a stage's work in this process and publishes its record last."""
    record = stage.record(run, recipe, options)
    started = stage.started_file(run)
    resume_or_clear(started, record.inputs, stage.unfinished(run))
    # Without a record the stage is not done, whatever stops it from here on.
    record.path.unlink(missing_ok=True)
    begin = datetime.datetime.now().astimezone()
    clock = time.monotonic()
    result = stage.work(run, recipe, options)
    record.put(
        result,
        stage=stage.name,
        artifact=path_digest(stage.identity(run)),
        files=stage.digests(run),
        started=begin.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - clock, 1),
    )
    started.unlink()


def _show_progress_on_the_terminal(stage: Stage) -> None:
    descriptor = os.environ.pop(TERMINAL_DESCRIPTOR, None)
    if descriptor is None:
        return
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s: %(message)s"
    )
    logging.captureWarnings(True)
    if stage.starts_engines:
        # vLLM's logger binds sys.stderr at import, so import it before sys.stderr is replaced.
        importlib.import_module("vllm.logger")
    os.set_inheritable(int(descriptor), False)
    sys.stdout = sys.stderr = Heartbeat(int(descriptor), stage.name)


ABOUT_THE_MACHINE = (
    OSError,
    MemoryError,
    ImportError,
    RuntimeError,
    AssertionError,
    subprocess.SubprocessError,
)
WITHHELD = "(message withheld, it may quote the traffic; report.samples=true shows it)"


def traceback_of(error: BaseException, quoting: bool) -> str:
    """Formats a traceback; unless `quoting`, withholds messages that may quote text."""
    if quoting:
        return "".join(traceback.format_exception(error))
    parts = []
    link: BaseException | None = error
    while link is not None:
        said = str(link) if isinstance(link, ABOUT_THE_MACHINE) else WITHHELD
        frames = "".join(traceback.format_tb(link.__traceback__))
        parts.append(f"Traceback (most recent call last):\n{frames}{type(link).__name__}: {said}\n")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\nfollowed by:\n\n".join(reversed(parts))


if __name__ == "__main__":
    name, root, *rest = sys.argv[1:]
    run_dir = RunDirectory(Path(root))
    stage = stage_of(name, run_dir.read_resolved())
    sys.exit(main(stage, run_dir, json.loads(rest[0]) if rest else {}))
