"""One attempt at a run: its recipe checked, its directory locked, stages run in it.

    loaded, run = open_run("resume_screening.yaml", ("training.epochs=3",), Path("runs"))
    with attempt(loaded, run) as go:
        results = go(["ingest", "split"], {})

Imports are inside the functions here and in the commands: `--help` needs none of them.
"""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.pipeline.recipe.load import LoadedRecipe
    from outrider.pipeline.run_dir import RunDirectory
    from outrider.pipeline.stage import Options

Results = dict[str, dict[str, Any]]
"""Results of stages by name."""

SUMMARY_KEYS = (
    "kind",
    "verdict",
    "k",
    "acceptance_length",
    "tokens_per_s",
    "same_k",
    "replay_vs_engine",
    "report",
)


def open_run(
    recipe: str,
    overrides: tuple[str, ...],
    runs: Path,
    dry_run: bool = False,
    serve_command: str | None = None,
) -> tuple["LoadedRecipe", "RunDirectory"]:
    """The checked recipe and its run directory; `serve_command` fills the recipe's engine.

    `recipe` is a file, a shipped name, or a run directory, whose own recipe is read.
    """
    from rich.console import Console

    from outrider.pipeline.kinds import with_kinds
    from outrider.pipeline.preflight import check
    from outrider.pipeline.recipe.load import load_recipe
    from outrider.pipeline.run_dir import RunDirectory

    command = None
    if serve_command is not None:
        from outrider.serving.engine import in_process
        from outrider.serving.serve_command import read_serve_command

        command = read_serve_command(serve_command)
    loaded = load_recipe(recipe, list(overrides), command)
    if command is not None:
        differs = [f"capture: {line}" for line in in_process(loaded.recipe.serving.engine)[1]]
        for note in [*command.notes, *differs]:
            Console(stderr=True).print(
                f"serve command: {note}", highlight=False, markup=False, soft_wrap=True
            )
    loaded = dataclasses.replace(loaded, recipe=with_kinds(loaded.recipe))
    check(loaded.recipe, dry_run)
    if (root := Path(recipe).expanduser()) == loaded.files[0].parent:
        return loaded, RunDirectory(root.resolve())
    return loaded, RunDirectory.of(loaded.recipe, runs)


@contextlib.contextmanager
def attempt(
    loaded: "LoadedRecipe", run: "RunDirectory"
) -> Iterator[Callable[[list[str], "Options"], Results]]:
    """Locks the run directory, starts an attempt and yields a function that runs stages in it."""
    from rich.console import Console

    from outrider.pipeline.run_stages import run_stages

    def go(wanted: list[str], options: "Options") -> Results:
        return run_stages(run, loaded.recipe, wanted, options, Console(stderr=True))

    with run.locked():
        run.begin_attempt(loaded.recipe, loaded.files, sys.argv)
        yield go


def print_json(value: dict[str, Any]) -> None:
    """Prints one line of JSON on stdout."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def print_summary(
    loaded: "LoadedRecipe",
    run: "RunDirectory",
    results: Results,
    judged: str = "evaluate",
    bundle: str | None = None,
) -> int:
    """Prints the JSON object of a run and returns the exit status of its verdict."""
    from outrider.eval.config import EXIT_CODES

    found = results.get(judged) or (run.result_of(judged) if "export" in results else {})
    if bundle is None and "export" in results:
        bundle = str(run.bundle)
    summary: dict[str, Any] = {"recipe": loaded.recipe.name, "run_dir": str(run.root)}
    summary |= {key: found.get(key) for key in SUMMARY_KEYS}
    print_json(summary | {"bundle": bundle, "stages": [*results]})
    return EXIT_CODES[found["verdict"]] if found else 0
