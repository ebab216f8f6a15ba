"""The four commands. They parse, say one clear thing when that fails, and start the stages; torch is never imported here.

    inspect-traffic --recipe resume_screening.yaml
    train-speculator --recipe resume_screening.yaml
    evaluate-speculator --recipe resume_screening.yaml --speculator DIR|ngram|none
    export-speculator --recipe resume_screening.yaml --to DIR

What people read goes to stderr; the last line of stdout is one JSON object (`inspect-traffic` is read on stdout, and prints the
object with --json instead). Exit status: 0 the custom speculator ships, 1 a
mistake or a failure, 2 it was measured and does not ship, 75 ended by a signal and ready to go on, 130 the same by Ctrl-C.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console
from rich.table import Table

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.eval.config import DO_NOT_SHIP, EXIT_CODES
from outrider.recipes.config.load import LoadedRecipe, load_overrides, load_recipe, shipped_recipes
from outrider.recipes.config.recipe import Recipe
from outrider.recipes.pipeline.fingerprints import path_identity
from outrider.recipes.pipeline.preflight import check
from outrider.recipes.pipeline.run import run_stages
from outrider.recipes.pipeline.run_dir import RunDirectory
from outrider.recipes.pipeline.stages import Options, stage_names
from outrider.recipes.pipeline.supervise import Interrupted, stopped_by_signal

RecipeName = Annotated[
    str,
    Parameter(
        help="Path of a recipe, or the name of a shipped one: " + ", ".join(shipped_recipes())
    ),
]
Runs = Annotated[Path, Parameter(help="Where run directories stand; this run's is RUNS/NAME.")]
Overrides = Annotated[
    str,
    Parameter(
        allow_leading_hyphen=True,
        help="section.key=value or --section.key value, such as training.epochs=3; the keys are in docs/recipes.md.",
    ),
]
Flag = Parameter(negative="")

SAMPLES = 2
"""Sequences that `inspect-traffic` prints on a terminal."""


def inspect_traffic() -> None:
    """Console script."""
    _main("inspect-traffic", _inspect)


def train_speculator() -> None:
    """Console script."""
    _main("train-speculator", _train)


def evaluate_speculator() -> None:
    """Console script."""
    _main("evaluate-speculator", _evaluate)


def export_speculator() -> None:
    """Console script."""
    _main("export-speculator", _export)


def _inspect(
    *overrides: Overrides,
    recipe: RecipeName | None = None,
    first: int | None = None,
    samples: int | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    runs: Runs = Path("runs"),
) -> int:
    """Say what is in a log, what of it can be learned from, and what that would cost; nothing is kept.

    Of a recipe's log, or of bare logs: --traffic.path LOGS [--target.model DIR].

    Parameters
    ----------
    first
        A quick look: read no more than the first N rows of each file.
    samples
        Print N sequences with what is trained on marked. They are customer text. Default: 2 on a terminal, else none.
    as_json
        Print one JSON object instead, without customer text.
    """
    for option, value, least in (("--first", first, 1), ("--samples", samples, 0)):
        if value is not None and value < least:
            raise OutriderError(f"{option} {value}: give a number from {least}")
    if as_json and samples:
        raise OutriderError(
            "--samples prints customer text, and --json never holds any; give one of them"
        )
    if recipe is None and not any("traffic.path" in word for word in overrides):
        raise OutriderError(
            "nothing to inspect: give --recipe R, or --traffic.path LOGS for logs without a recipe"
        )
    loaded = load_recipe(recipe, list(overrides)) if recipe else load_overrides(list(overrides))
    run = RunDirectory.of(loaded.recipe, runs)
    shown = (
        samples if samples is not None else SAMPLES if sys.stdout.isatty() and not as_json else 0
    )

    from outrider.recipes.dry_run.inspect_traffic import inspect_recipe
    from outrider.recipes.dry_run.inspect_traffic_page import print_inspection

    with stopped_by_signal():
        found, sequences = inspect_recipe(loaded.recipe, run, first, shown)
    if as_json:
        _print_json(found)
    else:
        console = Console()
        print_inspection(found, console)
        for sequence in sequences:
            console.print(sequence, soft_wrap=True)
    if found["problems"]:
        raise OutriderError("\n".join(found["problems"]))
    return 0


def _train(
    *overrides: Overrides,
    recipe: RecipeName,
    dry_run: Annotated[bool, Flag] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    gpu_memory: float | None = None,
    stages: str | None = None,
    runs: Runs = Path("runs"),
    force: Annotated[bool, Flag] = False,
) -> int:
    """Turn traffic into a speculator: ingest, split, capture, train, evaluate, export; what is done already is kept.

    Parameters
    ----------
    dry_run
        Write recipe.resolved.yaml, print what each stage would do and cost and what training takes (parameters, memory by part and
        whether it fits, disk, time), and stop. The target's config.json is enough for it.
    as_json
        With --dry-run: print the one JSON object and no table.
    gpu_memory
        With --dry-run: memory of one GPU in GB. Default: that of the GPUs here, else this machine's, else 141, said so.
    stages
        Run these alone, separated by commas: ingest, split, capture, train, evaluate, export.
    force
        Export even a speculator that is not better than the base.
    """
    for option, given in (("--json", as_json), ("--gpu-memory", gpu_memory is not None)):
        if given and not dry_run:
            raise OutriderError(
                f"{option} goes with --dry-run; a run's last line on stdout is JSON anyway"
            )
    if gpu_memory is not None and gpu_memory <= 0:
        raise OutriderError(f"--gpu-memory {gpu_memory:g}: give one GPU's memory in GB, such as 80")
    loaded, run = _open(recipe, overrides, runs, dry_run)
    wanted, options = stage_names(stages), {"force": force}
    if dry_run:
        return _plan(
            loaded,
            run,
            wanted,
            options,
            None if gpu_memory is None else int(gpu_memory * 1e9),
            as_json,
        )
    with _attempt(loaded, run) as go:
        results = go([name for name in wanted if name != "export"], options)
        if "export" in wanted and (force or _result(run, "evaluate").get("verdict") != DO_NOT_SHIP):
            results |= go(["export"], options)
    return _finish(loaded, run, results)


def _evaluate(
    *overrides: Overrides,
    recipe: RecipeName | None = None,
    speculator: str | None = None,
    endpoint: str | None = None,
    compare: Annotated[tuple[Path, ...], Parameter(consume_multiple=True, negative="")] = (),
    html: Path | None = None,
    runs: Runs = Path("runs"),
) -> int:
    """Measure a speculator against the base and against no speculation, on the held-out traffic of a recipe.

    Parameters
    ----------
    speculator
        A speculator's directory (an MTP layer or an EAGLE-3 head: config.json, model.safetensors), `ngram` for vLLM's lookup of n-grams, or
        `none`. Default: the one that this recipe trained.
    endpoint
        The address of a vLLM server that is running, http://HOST:PORT: measures its acceptance (from its /metrics) and speed on the
        held-out traffic, and judges nothing.
    compare
        Run directories that have been evaluated: puts them side by side and measures nothing. A speculator that several of them have
        evaluated is followed over time.
    html
        With --compare: the file to which the same is written as a page.
    """
    if compare:
        return _compare(compare, html)
    if html is not None:
        raise OutriderError(
            f"--html {html} goes with --compare RUN_A RUN_B; an evaluation writes its page to the run directory"
        )
    if recipe is None:
        raise OutriderError(
            "nothing to evaluate: give --recipe R, or --compare RUN_A RUN_B for runs that have been"
        )
    loaded, run = _open(recipe, overrides, runs)
    if endpoint is not None:
        return _endpoint(loaded, run, endpoint)
    if speculator is None:
        with _attempt(loaded, run) as go:
            return _finish(loaded, run, go(["evaluate"], {}))
    options = _named_speculator(speculator, loaded.recipe)
    with _attempt(loaded, run) as go:
        results = go(["ingest", "split", "capture", "evaluate_other"], options)
    return _finish(loaded, run, results, "evaluate_other")


def _named_speculator(name: str, recipe: Recipe) -> Options:
    """What `--speculator` names, checked against the target before anything is started."""
    from outrider.serving.speculator import Speculator
    from outrider.speculators.checkpoints.compatibility import check_speculator

    directory = Speculator.named(name).directory
    if directory is None:
        return {"speculator": name, "weights": None}
    check_speculator(directory, recipe.target.training_directory())
    return {"speculator": str(directory.resolve()), "weights": path_identity(directory)}


def _endpoint(loaded: LoadedRecipe, run: RunDirectory, url: str) -> int:
    with _attempt(loaded, run) as go:
        go(["ingest", "split"], {})
        from outrider.data.sequences import load_sequences
        from outrider.eval.bench.endpoint import measure_endpoint, print_endpoint
        from outrider.eval.bench.prompts import customers_sampling, evaluation_prompts

        recipe, console = loaded.recipe, Console(stderr=True, highlight=False)
        heldout = load_sequences(run.sequences, read_json(run.split / "parts.json")["heldout"])
        _, prompts = evaluation_prompts(heldout, recipe.eval, recipe.serving)
        with stopped_by_signal():
            results = measure_endpoint(
                url,
                recipe.target,
                [prompt.text for prompt in prompts],
                customers_sampling(heldout),
                recipe.eval,
                run.attempt(),
                console.print,
            )
    print_endpoint(results, console)
    _print_json({"recipe": recipe.name, **results})
    return 0


def _compare(compared: tuple[Path, ...], html: Path | None) -> int:
    from outrider.eval.report.compare import (
        names_of,
        over_time,
        print_comparison,
        print_history,
        print_workloads,
        side_by_side,
        workloads,
    )
    from outrider.eval.report.compare_page import write_page

    (rows, notes), table = side_by_side(compared), workloads(compared)
    series, console = over_time(compared), Console(stderr=True)
    print_comparison(rows, notes, compared, console)
    print_workloads(table, console)
    print_history(series, console)
    if html is not None:
        write_page(html, names_of(compared), table, series, rows, notes)
        console.print(f"page: {html}", soft_wrap=True, highlight=False)
    runs = [str(run) for run in compared]
    _print_json(
        {"runs": runs, "figures": rows, "workloads": table, "notes": notes, "history": series}
    )
    return 0


def _export(
    *overrides: Overrides,
    recipe: RecipeName,
    to: str,
    runs: Runs = Path("runs"),
    force: Annotated[bool, Flag] = False,
) -> int:
    """Make the bundle of an evaluated speculator, verify it in vLLM, and copy it where an endpoint finds it.

    Parameters
    ----------
    to
        A directory or an fsspec URL such as s3://bucket/prefix.
    force
        Export even a speculator that is not better than the base.
    """
    from outrider.recipes.pipeline.export import copy_bundle

    loaded, run = _open(recipe, overrides, runs)
    with _attempt(loaded, run) as go:
        results = go(["export"], {"force": force})
    place = copy_bundle(run, loaded.recipe, to)
    print(f"bundle copied to {place}", file=sys.stderr)
    return _finish(loaded, run, results, bundle=place)


def _main(name: str, command: Callable[..., int]) -> None:
    app = App(name=name, version_flags=[], help=command.__doc__, result_action="return_value")
    app.default(command)
    console = Console(stderr=True)
    try:
        status = app(exit_on_error=False, print_error=False)
    except CycloptsError as error:
        console.print(f"{name}: {error}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"{name} --help says what there is.", markup=False)
        status = 1
    except OutriderError as error:
        console.print(f"{name}: {error}", markup=False, highlight=False, soft_wrap=True)
        status = error.exit_code
    except Interrupted as signal:
        console.print(
            f"{name}: ended by {signal}; the same command goes on from here", markup=False
        )
        status = signal.exit_code
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)


def _open(
    recipe: str, overrides: tuple[str, ...], runs: Path, dry_run: bool = False
) -> tuple[LoadedRecipe, RunDirectory]:
    loaded = load_recipe(recipe, list(overrides))
    check(loaded.recipe, dry_run)
    return loaded, RunDirectory.of(loaded.recipe, runs)


def _plan(
    loaded: LoadedRecipe,
    run: RunDirectory,
    wanted: list[str],
    options: Options,
    gpu_bytes: int | None,
    as_json: bool,
) -> int:
    from outrider.recipes.dry_run.plan import plan
    from outrider.recipes.dry_run.training_cost import price
    from outrider.recipes.dry_run.training_cost_page import print_price

    with run.locked():
        run.write_resolved(loaded.recipe)
        rows = plan(run, loaded.recipe, wanted, options)
        priced = price(run, loaded.recipe, gpu_bytes)
    if not as_json:
        table = Table(
            title=f"{loaded.recipe.name}: what would be done", title_justify="left", width=80
        )
        for column in ("stage", "now", "cost"):
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(row.stage, row.action, row.cost)
        console = Console(stderr=True)
        console.print(table)
        print_price(priced, console)
        console.print(f"every key with its value: {run.resolved_recipe}", soft_wrap=True)
    stages = {row.stage: {"action": row.action, "cost": row.cost} for row in rows}
    _print_json(
        {"recipe": loaded.recipe.name, "run_dir": str(run.root), "dry_run": stages, "price": priced}
    )
    return 0


@contextlib.contextmanager
def _attempt(
    loaded: LoadedRecipe, run: RunDirectory
) -> Iterator[Callable[[list[str], Options], dict[str, dict[str, Any]]]]:
    """Holds the run directory and yields what runs stages in it."""
    with run.locked():
        run.begin_attempt(loaded.recipe, loaded.files, sys.argv)
        yield lambda wanted, options: run_stages(
            run, loaded.recipe, wanted, options, Console(stderr=True)
        )


def _result(run: RunDirectory, stage: str) -> dict[str, Any]:
    record = run.read_record(stage)
    return record["result"] if record else {}


def _finish(
    loaded: LoadedRecipe,
    run: RunDirectory,
    results: dict[str, dict[str, Any]],
    judged: str = "evaluate",
    bundle: str | None = None,
) -> int:
    """Prints the JSON object that scripts read and returns the exit status that the verdict asks for."""
    found = results.get(judged) or (_result(run, judged) if "export" in results else {})
    if bundle is None and "export" in results:
        bundle = str(run.bundle)
    keys = ("verdict", "acceptance_length", "tokens_per_s", "replay_vs_engine", "report")
    summary = {"recipe": loaded.recipe.name, "run_dir": str(run.root)}
    summary |= {key: found.get(key) for key in keys} | {"bundle": bundle, "stages": [*results]}
    _print_json(summary)
    return EXIT_CODES[found["verdict"]] if found else 0


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False), flush=True)
