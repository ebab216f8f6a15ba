"""One attempt at a run: checks its recipe and runs its stages.

    loaded, run = open_run("resume_screening.yaml", ("training.epochs=3",), Path("runs"))
    with attempt(loaded, run) as go:
        results = go(["ingest", "split"], {})

Imports are inside the functions, here and in the commands, to keep `--help` fast.
"""

import contextlib
import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.pipeline.recipe.load import LoadedRecipe
    from outrider.pipeline.recipe.recipe import Recipe
    from outrider.pipeline.run_dir import RunDirectory
    from outrider.pipeline.stage import Options, Results

SUMMARY_KEYS = (
    "kind",
    "verdict",
    "k",
    "lookup",
    "acceptance_length",
    "tokens_per_s",
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
    """Returns the checked recipe and its run directory.

    `recipe` is a file, a shipped name, or a run directory, which contains its recipe.
    Values from `serve_command` replace the recipe's engine settings.
    """
    from outrider.pipeline.paths import check_paths
    from outrider.pipeline.recipe.load import load_recipe

    command = None
    if serve_command is not None:
        from outrider.serving.engine import in_process
        from outrider.serving.serve_command import check_known, read_serve_command

        command = read_serve_command(serve_command)
    loaded = load_recipe(recipe, list(overrides), command)
    if command is not None:
        differs = [f"capture: {line}" for line in in_process(loaded.recipe.serving.engine)[1]]
        for note in [*command.notes, *differs]:
            print(f"serve command: {note}", file=sys.stderr)
        check_known(command, loaded.recipe.serving.ignored_flags)
    check_paths(loaded.recipe)

    # These import scipy, which takes seconds.
    from outrider.pipeline.kinds import with_kinds
    from outrider.pipeline.preflight import check
    from outrider.pipeline.run_dir import RunDirectory

    loaded = dataclasses.replace(loaded, recipe=with_kinds(loaded.recipe))
    check(loaded.recipe, dry_run)
    if (root := Path(recipe).expanduser()) == loaded.files[0].parent:
        return loaded, RunDirectory(root.resolve())
    return loaded, RunDirectory.of(loaded.recipe, runs)


@contextlib.contextmanager
def attempt(
    loaded: "LoadedRecipe", run: "RunDirectory"
) -> Iterator["Callable[[list[str], Options], Results]"]:
    """Locks the run, starts an attempt, and yields its stage runner."""
    from rich.console import Console

    from outrider.pipeline.run_stages import run_stages

    with run.locked():
        run.begin_attempt(loaded.recipe, loaded.files, sys.argv)
        yield functools.partial(run_stages, run, loaded.recipe, console=Console(stderr=True))


def train_run(
    loaded: "LoadedRecipe", run: "RunDirectory", names: list[str], force: bool
) -> "Results":
    """Runs the requested stages; `force` exports regardless of the verdict."""
    from outrider.eval.config import SHIP

    options = {"force": force}
    with attempt(loaded, run) as go:
        results = go([name for name in names if name != "export"], options)
        may_ship = force or run.result_of("evaluate").get("verdict", SHIP) == SHIP
        if "export" in names and may_ship:
            results |= go(["export"], options)
    return results


def evaluate_run(
    loaded: "LoadedRecipe",
    run: "RunDirectory",
    speculator: str | None = None,
    again: bool = False,
) -> "Results":
    """Evaluates the run's speculator, or another: a directory, `ngram`, `suffix` or `none`.

    `again` discards the speeds that an earlier evaluation measured.
    """
    from outrider.pipeline.stages.registry import stages_of

    stages = ["ingest", "split", "capture", "evaluate_other"]
    options = {}
    if speculator is None:
        stages = [name for name in stages_of(loaded.recipe) if name in ("choose_kind", "evaluate")]
    else:
        options = _named_speculator(speculator, loaded.recipe)
    with attempt(loaded, run) as go:
        if again:
            _discard_speeds(run, stages[-1])
        return go(stages, options)


def _discard_speeds(run: "RunDirectory", stage: str) -> None:
    out = run.evaluation if stage == "evaluate" else run.other_evaluation
    for name in ("speed_*.json", "rates_*.json"):
        for path in (out / "steps").glob(name):
            path.unlink()
    run.stage_record(stage).unlink(missing_ok=True)


def export_run(loaded: "LoadedRecipe", run: "RunDirectory", to: str, force: bool) -> "Results":
    """Updates the bundle and copies it to a directory or an address."""
    from outrider.data.formats.sources import answering
    from outrider.serving.bundle.bundle_places import put_bundle

    with attempt(loaded, run) as go:
        results = go(["export"], {"force": force})
    with answering(f"export to {to}"):
        put_bundle(run.bundle, to)
    return results


def _named_speculator(name: str, recipe: "Recipe") -> "Options":
    """Resolves `--speculator` and checks it against the target before anything runs."""
    from outrider.common.fingerprint import path_digest
    from outrider.pipeline.preflight import check_served
    from outrider.serving.bundle.bundle_digest import MANIFEST, bundle_digest
    from outrider.serving.speculator import Speculator
    from outrider.speculators.kinds import check_speculator

    resolved = Speculator.named(name)
    directory = resolved.directory
    if directory is None:
        return {"speculator": resolved.kind, "weights": None}
    if (directory / MANIFEST).exists():
        bundle_digest(directory)  # raises if a file differs from the manifest
    check_speculator(directory, recipe.target.training_directory())
    check_served(resolved, recipe, f"--speculator {name}")
    return {"speculator": str(directory.resolve()), "weights": path_digest(directory)}


def print_json(value: dict[str, Any]) -> None:
    """Prints one line of JSON to stdout."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def print_summary(
    loaded: "LoadedRecipe",
    run: "RunDirectory",
    results: "Results",
    judged: str = "evaluate",
    bundle: str | None = None,
) -> int:
    """Prints a run's JSON summary and returns its verdict's exit status."""
    from outrider.eval.config import EXIT_CODES

    evaluation = results.get(judged) or (run.result_of(judged) if "export" in results else {})
    if bundle is None and "export" in results:
        bundle = str(run.bundle)
    summary: dict[str, Any] = {"recipe": loaded.recipe.name, "run_dir": str(run.root)}
    summary |= {key: evaluation.get(key) for key in SUMMARY_KEYS}
    print_json(summary | {"bundle": bundle, "stages": [*results]})
    return EXIT_CODES[evaluation["verdict"]] if evaluation else 0
