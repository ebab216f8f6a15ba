"""One stage in a process of its own: its memory, threads and environment end with it.

    python -m outrider.recipes.pipeline.stage_process capture runs/resume_screening

Descriptors 1 and 2 are the stage's log, and so are those of every process that it starts; Python's own sys.stdout and
sys.stderr are the terminal of the command that started it, for progress. Loggers are bound to the log before that. A user's
mistake is left as logs/attempt_N/STAGE.failed.json for the command to say; anything else is a traceback in the log, which quotes
customer text only where `report.samples` allows it.
"""

import errno
import importlib
import json
import logging
import os
import signal
import sys
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.common.supervision import TERMINAL_DESCRIPTOR
from outrider.recipes.pipeline.run_dir import RunDirectory
from outrider.recipes.pipeline.stages import stage_of
from outrider.recipes.pipeline.tracebacks import traceback_of

INTERRUPTED = 75
UNEXPECTED = 70

READS_TEXT = ("ingest", "split", "evaluate", "evaluate_other")
STARTS_ENGINES = ("capture", "train", "evaluate", "evaluate_other", "export")


def main(stage: str, run: RunDirectory, options: dict) -> int:
    """Runs the stage and publishes its record; the exit status tells how it ended."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    failed = run.attempt() / f"{stage}.failed.json"
    log, quoting = sys.stderr, stage not in READS_TEXT
    try:
        _show_progress_on_the_terminal(stage)
        recipe = run.read_resolved()
        quoting = quoting or recipe.report.samples
        stage_of(stage).perform(run, recipe, options)
    except OutriderError as error:
        write_json(failed, {"message": str(error), "exit_code": error.exit_code})
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{stage}: interrupted", file=log)
        return INTERRUPTED
    except Exception as error:
        print(traceback_of(error, quoting), file=log)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = error.filename or run.root
            message = (
                f"{where}: no space left on the disk; free some and run the same command again"
            )
            write_json(failed, {"message": message, "exit_code": 1})
        return UNEXPECTED
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    return 0


def _show_progress_on_the_terminal(stage: str) -> None:
    descriptor = os.environ.pop(TERMINAL_DESCRIPTOR, None)
    if descriptor is None:
        return
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s: %(message)s"
    )
    logging.captureWarnings(True)
    if stage in STARTS_ENGINES:
        importlib.import_module("vllm.logger")
    os.set_inheritable(int(descriptor), False)
    sys.stdout = sys.stderr = os.fdopen(int(descriptor), "w", buffering=1, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(
        main(
            sys.argv[1],
            RunDirectory(Path(sys.argv[2])),
            json.loads(sys.argv[3]) if len(sys.argv) > 3 else {},
        )
    )
