"""Console scripts of the commands.

Each parses its arguments and prints one clear message when that fails; torch is not imported here.
Messages for people go to stderr. The last line of stdout is one JSON object; `inspect-traffic`
prints its findings on stdout, and the object only with --json.

Exit status: 0: the custom speculator ships; 1: a mistake or a failure; 2: it was measured and does
not ship, or was rolled back; 75: stopped by a signal, rerun to resume; 130: stopped by Ctrl-C.
"""

import importlib
import sys

try:
    from cyclopts import App, CycloptsError
    from rich.console import Console
except ModuleNotFoundError as error:  # a server's installation
    sys.exit(
        f"{error.name} is missing: the commands need `pip install -e '.[train]'` in Outrider's"
        " checkout"
    )

from outrider.common.errors import OutriderError
from outrider.common.supervision import Interrupted
from outrider.pipeline.recipe.shipped import shipped_recipes


def inspect_traffic() -> None:
    """Console script."""
    _run_command("inspect-traffic")


def train_speculator() -> None:
    """Console script."""
    _run_command("train-speculator")


def evaluate_speculator() -> None:
    """Console script."""
    _run_command("evaluate-speculator")


def export_speculator() -> None:
    """Console script."""
    _run_command("export-speculator")


def deploy_speculator() -> None:
    """Console script."""
    _run_command("deploy-speculator")


def adapt_speculator() -> None:
    """Console script."""
    _run_command("adapt-speculator")


def _versions() -> str:
    """For `--version`: Outrider, and what determines what it computes."""
    from outrider.pipeline.provenance import versions

    return "\n".join(f"{package} {version}" for package, version in versions().items())


def _run_command(name: str) -> None:
    function = name.replace("-", "_")
    command = getattr(importlib.import_module(f"outrider.cli.{function}"), function)
    app = App(
        name=name,
        version=_versions,
        help=command.__doc__,
        help_format="plaintext",
        result_action="return_value",
    )
    app.default(command)
    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    try:
        status = app(exit_on_error=False, print_error=False)
    except CycloptsError as error:
        text = str(error)
        if "--recipe requires" in text:
            text += f" Give the path of a YAML file, or one of {', '.join(shipped_recipes())}"
        console.print(f"{name}: {text}\n{name} --help lists the options")
        status = 1
    except OutriderError as error:
        console.print(f"{name}: {error}")
        status = error.exit_code
    except Interrupted as signal:
        console.print(f"{name}: stopped by {signal}; rerun the command to resume")
        status = signal.exit_code
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
