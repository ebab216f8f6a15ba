"""`outrider init`: writes a commented recipe for your logs and target."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from outrider.cli.options import Flag


def init(
    logs: str,
    *traffic: Annotated[str, Parameter(help="Keys of the logs, such as traffic.model=NAME.")],
    target: Annotated[str, Parameter(help="A checkpoint's directory, a hub id, or nano_r1.")],
    to: Path | None = None,
    effort: Literal["trial", "standard", "thorough"] | None = None,
    force: Annotated[bool, Flag] = False,
) -> int:
    """Examine logs and target, and write a commented recipe with safe defaults.

    Downloads no weights: for a hub model, only config.json and the tokenizer.

    Parameters
    ----------
    logs
        A file, folder, glob or URL of request logs, or the name of shipped traffic.
    traffic
        Keys of the recipe's section `traffic`, which are written into it.
    to
        File to write. Default: the log's name in the current directory.
    effort
        Controls the maximum sizes of the split's parts, the number of epochs, and how much is
        measured. Default: the value in the template for this target.
    force
        Write the recipe even if the target has probably not written the log.
    """
    from outrider.common.process_tree import stopped_by_signal
    from outrider.pipeline.new_recipe import write_recipe

    with stopped_by_signal():
        path, facts = write_recipe(
            logs=logs, target=target, to=to, effort=effort, force=force, traffic=traffic
        )

    from rich.console import Console

    from outrider.pipeline.inspection import print_facts, print_lookup, print_wrong_target
    from outrider.pipeline.provenance import gpus

    console = Console(highlight=False, soft_wrap=True)
    print_wrong_target(facts, console)
    print_facts(facts, console)
    print_lookup(facts["lookup"], console)
    console.print(f"{facts['speculator']}\nwrote {path}", markup=False)
    card = "" if gpus() else "  (--gpu CARD, such as H100: its hours; no GPU is visible here)"
    console.print(f"next: outrider train {path} --dry-run{card}", markup=False)
    return 0
