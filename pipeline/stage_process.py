"""Runs a stage in its own process, isolating memory, threads and environment.

    python -m outrider.pipeline.stage_process capture runs/resume_screening

File descriptors 1 and 2 of this process and its children are the stage's log, which loggers also
use. sys.stdout and sys.stderr become the command's terminal, for progress. An `OutriderError` is
written to logs/attempt_N/STAGE.failed.json, which the command prints. Any other error leaves a
traceback in the log, which quotes customer text only if `report.samples` is true.
"""

import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.common.process_tree import TERMINAL_DESCRIPTOR
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import Options, Stage
from outrider.pipeline.stages.registry import stage_of

INTERRUPTED = 75
UNEXPECTED = 70


def main(stage: Stage, run: RunDirectory, options: Options) -> int:
    """Runs the stage, publishes its record and returns the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    failed = run.attempt() / f"{stage.name}.failed.json"
    log = sys.stderr
    quoting = not stage.handles_text
    try:
        _show_progress_on_the_terminal(stage.starts_engines)
        recipe = run.read_resolved()
        quoting = quoting or recipe.report.samples
        stage.perform(run, recipe, options)
    except OutriderError as error:
        write_json(failed, {"message": str(error), "exit_code": error.exit_code})
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{stage.name}: interrupted", file=log)
        return INTERRUPTED
    except Exception as error:
        print(traceback_of(error, quoting), file=log)
        return UNEXPECTED
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    return 0


def _show_progress_on_the_terminal(starts_engines: bool) -> None:
    descriptor = os.environ.pop(TERMINAL_DESCRIPTOR, None)
    if descriptor is None:
        return
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s: %(message)s"
    )
    logging.captureWarnings(True)
    if starts_engines:
        # vLLM's logger binds sys.stderr at import, so import it before sys.stderr is replaced.
        importlib.import_module("vllm.logger")
    os.set_inheritable(int(descriptor), False)
    sys.stdout = sys.stderr = os.fdopen(int(descriptor), "w", buffering=1, encoding="utf-8")


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
