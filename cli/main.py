"""The command `outrider` and its verbs, with three console scripts as aliases.

    outrider train resume_screening          # train-speculator --recipe resume_screening

Each verb parses its arguments and prints one clear message if that fails; torch is not imported
here. Human-readable messages go to stderr. The last line of stdout is one JSON object, except that
`init`, `inspect` and `doctor` print their findings as text; the last two print JSON with --json.

Exit status: 0: the custom speculator ships, or the command succeeded; 1: an error; 2: an invalid
command line; 3: the verdict is not to ship, the release was rolled back, or production is worse
than reported; 4: undecided; 75: stopped by a signal or at the end of its window, rerun to resume;
130: stopped by Ctrl-C.
"""

import contextlib
import functools
import logging
import os
import select
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

try:
    from cyclopts import App, CycloptsError
    from rich.console import Console
except ModuleNotFoundError as error:  # installed without the `train` extra
    sys.exit(
        f"{error.name} is missing: the commands need `pip install -e '.[train]'` in Outrider's"
        " checkout"
    )

from outrider.cli import adapt, confirm, deploy, erase, evaluate, export, inspect, train
from outrider.cli.doctor import doctor
from outrider.cli.init import init
from outrider.common.errors import OutriderError, UsageError
from outrider.common.inert import printable
from outrider.common.process_tree import Interrupted
from outrider.common.redaction import redact

VERBS: dict[str, Callable[..., int]] = {
    "doctor": doctor,
    "init": init,
    "inspect": inspect.inspect_traffic,
    "train": train.train_speculator,
    "eval": evaluate.evaluate_speculator,
    "export": export.export_speculator,
    "confirm": confirm.confirm_report,
    "deploy": deploy.deploy_speculator,
    "adapt": adapt.adapt_speculator,
    "erase": erase.erase,
}
"""Verbs in the order in which users need them."""

HELP = """Train a speculator on an endpoint's traffic, and ship it only if it is faster.

First run: outrider init LOGS --target MODEL, then outrider train RECIPE

Every verb takes --help, and --quiet: nothing on stderr but errors."""


UNEXPECTED = (
    "an error in Outrider or in a library, not in what you gave it; report it where you got"
    " Outrider, with the traceback above and the output of `outrider --version`. Logs of a"
    " run's stages are in its folder logs/"
)


class _OnStderr(logging.Handler):
    """Prints the package's notes to where stderr is now: --quiet redirects it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Prints one note."""
        print(printable(record.getMessage()), file=sys.stderr, flush=True)


def _print_notes() -> None:
    logger = logging.getLogger("outrider")
    logger.setLevel(logging.INFO)
    if not logger.handlers:  # tests run several commands in a process
        logger.addHandler(_OnStderr())
    logger.propagate = False


def _run(name: str, *verb: str) -> None:
    """Runs `verb` (default: the command line's) and exits with its status."""
    _print_notes()
    # --quiet is no parameter of the verbs: it works at any position of any of them.
    words = [*verb, *(word for word in sys.argv[1:] if word != "--quiet")]
    if not verb and words and words[0] in VERBS:
        name = f"{name} {words[0]}"
    status, message = _outcome(name, words, quiet="--quiet" in sys.argv[1:])
    if message:
        console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
        console.print(printable(f"{name}: {message}"))
    sys.exit(status)


def _outcome(name: str, words: list[str], quiet: bool) -> tuple[int, str]:
    """Runs the command line; returns the exit status, and a message if it failed."""
    try:
        with contextlib.ExitStack() as stack:
            if quiet:
                nowhere = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
                stack.enter_context(contextlib.redirect_stderr(nowhere))
            return command_app()(words, exit_on_error=False, print_error=False), ""
    except OutriderError as error:
        return error.exit_code, _mistake(error, error.exit_code, name, words)
    except CycloptsError as error:
        return UsageError.exit_code, _mistake(error, UsageError.exit_code, name, words)
    except Interrupted as signal:
        return signal.exit_code, f"stopped by {signal}; rerun the command to resume"
    except KeyboardInterrupt:
        return 130, ""  # as shells report it: 128 + SIGINT
    except BrokenPipeError:
        if not _lost_its_reader():
            traceback.print_exc()
            return 1, UNEXPECTED
        return 141, ""  # 128 + SIGPIPE
    except Exception:
        traceback.print_exc()
        return 1, UNEXPECTED


def _lost_its_reader() -> bool:
    """Whether stdout is a pipe whose reader has ended, such as `head`; nothing is written then."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    # Python flushes stdout again at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _mistake(error: Exception, status: int, name: str, words: list[str]) -> str:
    """The message for a user's mistake, without the secrets that the command line may contain."""
    message = str(error)
    # Messages quote the command line, which may hold a URL with a password.
    for word in words:
        message = message.replace(word, redact(word))
    if "Unknown option" in message and _takes_keys(words[0]):
        message += " Keys of a recipe: section.key=value"
    if "--recipe requires" in message:
        message = (
            "no recipe: give the path of a YAML file, a run directory, or the name of a shipped"
            " recipe (`outrider train --help` lists them); `outrider init LOGS --target MODEL`"
            " writes one for your logs"
        )
    if status == UsageError.exit_code:
        message += f"\n{name} --help lists the options"
    return message


def _takes_keys(verb: str) -> bool:
    """Whether a verb takes keys of a recipe."""
    return verb in VERBS and "overrides" in VERBS[verb].__annotations__


def command_app() -> App:
    """Builds the parser for all verbs."""
    app = App(
        name="outrider",
        version=_versions,
        # Markdown would join the lines.
        version_format="plaintext",
        help=HELP,
        help_format="markdown",
        # By default cyclopts ends the process with what the verb returns.
        result_action="return_value",
    )
    for order, (verb, function) in enumerate(VERBS.items()):
        app.command(function, name=verb, sort_key=order)
    app.register_install_completion_command()
    return app


def _versions() -> str:
    """Text of `--version`: Outrider with its commit, and the packages that affect its results."""
    from outrider.pipeline.provenance import commit_of, installed_commit, versions

    lines = [f"{package} {version}" for package, version in versions().items()]
    commit = commit_of() or installed_commit()
    if commit is not None:
        lines[0] += f" (commit {commit})"
    return "\n".join(lines)


main = functools.partial(_run, "outrider")
train_speculator = functools.partial(_run, "train-speculator", "train")
evaluate_speculator = functools.partial(_run, "evaluate-speculator", "eval")
export_speculator = functools.partial(_run, "export-speculator", "export")
