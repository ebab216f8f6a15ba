"""Outrider from Python: from logs to a verdict in six calls.

    import outrider

    recipe = outrider.init("logs/", target="/models/r1")        # a recipe file with safe defaults
    outrider.inspect(recipe)["lengths"]["completion"]["p90"]    # what the log contains
    outrider.plan(recipe)["memory"]                             # what training will cost
    run = outrider.train(recipe, stages="ingest,split,capture,train")
    report = outrider.evaluate(recipe)                          # report.verdict.verdict, .reason
    outrider.export(run, to="bundles/march")
    outrider.deploy("bundles/march", endpoint="resume.yaml")    # canary, then promotion or rollback
    outrider.adapt_endpoint(recipe, endpoint="resume.yaml", rounds=1)

Each function does the work of its command, in the same run directory, and raises `OutriderError`
with the same message. A recipe is a path, a shipped name or a run directory. Keys of the recipe are
overridden by strings such as "training.epochs=3", or by sections: `training={"epochs": 3}`. Stages
that are done and unchanged are skipped. The commands themselves call `open` and the methods of the
`Run` that it returns.

Notes go to the logger `outrider` at level INFO; stages print their progress to stderr.

The folders of the repository are subpackages of this module. It imports them inside its functions,
to keep `--help` fast.
"""

import contextlib
import dataclasses
import importlib.metadata
import logging
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from outrider.common.errors import OutriderError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from outrider.common.gpu_cards import Card
    from outrider.eval.results.report import Report
    from outrider.pipeline.recipe.load import LoadedRecipe
    from outrider.pipeline.recipe.recipe import Recipe
    from outrider.pipeline.run_dir import RunDirectory
    from outrider.pipeline.runner import Results
    from outrider.pipeline.stage import Options

__all__ = [
    "OutriderError",
    "Run",
    "__version__",
    "adapt_endpoint",
    "deploy",
    "evaluate",
    "export",
    "init",
    "inspect",
    "open",
    "plan",
    "train",
]

__version__ = importlib.metadata.version("outrider")

logger = logging.getLogger("outrider")

RUNS = Path("runs")
"""Parent of the run directories."""

Name = str | Path


def init(
    logs: Name,
    target: Name,
    to: Name | None = None,
    effort: str | None = None,
    force: bool = False,
    *,
    traffic: "Mapping[str, Any] | None" = None,
) -> Path:
    """Writes a recipe for `logs` and `target`; returns its path.

    `force` writes it even if the target has probably not written the logs. `traffic` has further
    keys of that section, such as `{"model": "r1"}`.
    """
    from outrider.pipeline.new_recipe import write_recipe

    path, _ = write_recipe(
        logs=str(logs),
        target=str(target),
        to=None if to is None else Path(to),
        effort=effort,
        force=force,
        traffic=list(_overrides_of({"traffic": traffic or {}})),
    )
    return path


def inspect(
    recipe: Name, *overrides: str, first: int | None = None, **sections: Any
) -> dict[str, Any]:
    """Counts what the recipe's log contains; `first` limits the rows per file."""
    from outrider.pipeline.inspection import inspect_recipe
    from outrider.pipeline.recipe.load import load_recipe

    words = [*overrides, *_overrides_of(sections)]
    facts, _ = inspect_recipe(load_recipe(str(recipe), words).recipe, first, 0)
    return facts


def plan(recipe: Name, *overrides: str, runs: Name = RUNS, **sections: Any) -> dict[str, Any]:
    """Estimates parameters, memory and disk (bytes), and seconds by stage, from config.json."""
    from outrider.pipeline.plan.training_cost import price

    run = open(recipe, *overrides, runs=runs, dry_run=True, **sections)
    return price(run.directory, run.recipe)


def train(
    recipe: Name,
    *overrides: str,
    runs: Name = RUNS,
    stages: str | None = None,
    force: bool = False,
    **sections: Any,
) -> "RunDirectory":
    """Runs the stages; returns the `RunDirectory`, which has all paths.

    `stages` are comma-separated names; None runs all. `force` exports even a speculator that is
    not better than the base.
    """
    run = open(recipe, *overrides, runs=runs, **sections)
    run.train(stages, force)
    return run.directory


def evaluate(
    recipe: Name,
    *overrides: str,
    runs: Name = RUNS,
    speculator: Name | None = None,
    **sections: Any,
) -> "Report":
    """Evaluates a speculator against the base and no speculation; returns the report.

    `speculator` is a directory, a lookup such as "ngram", or "none"; by default the trained one.
    It is not the recipe's section of that name, whose keys are overridden by strings here.
    """
    from outrider.eval.results.report import Report

    run = open(recipe, *overrides, runs=runs, **sections)
    run.evaluate(None if speculator is None else str(speculator))
    directory = run.directory
    folder = directory.root if speculator is None else directory.other_evaluation
    return Report.read(folder / "report.json")


def export(
    recipe: "Name | RunDirectory", to: Name, *overrides: str, runs: Name = RUNS, force: bool = False
) -> str:
    """Writes the verified bundle to the directory or address `to`; returns `to`."""
    from outrider.pipeline.run_dir import RunDirectory

    # Not by its attribute `root`, which a Path has too.
    name = recipe.root if isinstance(recipe, RunDirectory) else recipe
    open(name, *overrides, runs=runs).export(str(to), force)
    return str(to)


def deploy(
    bundle: "Name | RunDirectory | None" = None,
    *,
    endpoint: Name,
    status: bool = False,
    rollback: bool = False,
    promote: bool = False,
    recover: bool = False,
    in_place: bool = False,
) -> dict[str, Any]:
    """Deploys a bundle to a live endpoint; returns the JSON object of `outrider deploy`.

    `bundle` is a run directory, an exported bundle or an address; `endpoint` is the endpoint's
    file. Blocks until the canary is promoted or rolled back. Without a bundle, one of `status`,
    `rollback`, `promote` and `recover` acts on the endpoint, as the command's options do.

    Two options of the command have functions in `outrider.live`. `manifests.write_manifest` returns
    the YAML that `--manifest` prints. `local.local_endpoint` and `local.generate_load` are the
    contexts in which `--local` and `--load` run this function; they end the servers that they
    start.
    """
    from outrider.live import controller
    from outrider.live.actions import bundle_of, chosen_action
    from outrider.live.endpoint_file import load_endpoint
    from outrider.live.status import deployment_summary, endpoint_status
    from outrider.pipeline.run_dir import RunDirectory

    location = bundle.root if isinstance(bundle, RunDirectory) else bundle
    flags = {
        "--status": status,
        "--rollback": rollback,
        "--promote": promote,
        "--recover": recover,
    }
    action = chosen_action(None if location is None else str(location), flags)
    live = load_endpoint(str(endpoint))
    if action == "--recover":
        with controller.open_controller(live, logger.info) as recovering:
            recovering.recover()
    if action in ("--status", "--recover"):
        return dict(endpoint_status(live))
    if action is not None:
        ending: Literal["promote", "roll_back"] = "promote" if promote else "roll_back"
        return deployment_summary(live, controller.end_deployment(live, ending, say=logger.info))
    assert location is not None  # `chosen_action` requires one for what is left
    ended = controller.deploy_bundle(bundle_of(str(location)), live, in_place, logger.info)
    return deployment_summary(live, ended)


def adapt_endpoint(
    recipe: Name,
    *overrides: str,
    endpoint: Name,
    rounds: int | None = None,
    once: bool = False,
    **sections: Any,
) -> dict[str, object]:
    """Follows an endpoint's traffic; returns the JSON object of `outrider adapt`.

    It ends after `rounds` training rounds, with `once` where the log ends, else never; then an
    exception such as `KeyboardInterrupt` ends it, and the next call resumes.
    """
    from outrider.common.errors import UsageError
    from outrider.live.endpoint_file import load_endpoint

    if rounds is not None and rounds < 1:
        raise UsageError(f"--rounds {rounds}: give 1 or more, or leave it out")
    loaded = open(recipe, *overrides, **sections).loaded
    live = load_endpoint(str(endpoint))
    # Imports torch, so it comes after the checks, which do not need torch.
    from outrider.adapt.loop import adapter_summary, open_adapter
    from outrider.training.trackers import check_trackers

    check_trackers(loaded.recipe.training)
    with open_adapter(loaded, live) as adapter:
        adapter.run(rounds, once)
        return adapter_summary(adapter)


def open(
    recipe: Name,
    *overrides: str,
    runs: Name = RUNS,
    dry_run: bool = False,
    serve_command: str | None = None,
    measures_server: bool = False,
    **sections: Any,
) -> "Run":
    """Checks a recipe and its target; returns the `Run`.

    Values from `serve_command`, a `vllm serve` command or a file with one, replace the recipe's
    engine settings. A `dry_run` needs only the target's config.json. With `measures_server`, the
    target need not be one that can be trained.
    """
    from outrider.pipeline.paths import check_paths

    words = [*overrides, *_overrides_of(sections)]
    loaded = _load(str(recipe), words, serve_command)
    check_paths(loaded.recipe)

    # These import scipy, which takes seconds; a mistyped path is reported before.
    from outrider.pipeline.preflight import check_recipe, recipe_without_training
    from outrider.pipeline.recipe.for_target import resolve_for_target
    from outrider.pipeline.run_dir import RunDirectory

    resolved = recipe_without_training(loaded.recipe) if measures_server else None
    if resolved is None:
        resolved, notes = resolve_for_target(loaded.recipe)
        _log_notes(notes)
        check_recipe(resolved, dry_run, serves=not measures_server)
    loaded = dataclasses.replace(loaded, recipe=resolved)
    root = Path(recipe).expanduser()
    if root == loaded.files[0].parent:
        return Run(loaded, RunDirectory(root.resolve()))
    return Run(loaded, RunDirectory.of(resolved, Path(runs)))


def _load(recipe: str, overrides: "Sequence[str]", serve_command: str | None) -> "LoadedRecipe":
    """Loads a recipe with the values of a serve command, if any; logs what it leaves out."""
    from outrider.pipeline.recipe.load import load_recipe

    if serve_command is None:
        return load_recipe(recipe, list(overrides))
    from outrider.serving.commands.serve_command import check_known, read_serve_command
    from outrider.serving.engine import in_process

    command = read_serve_command(serve_command)
    loaded = load_recipe(recipe, list(overrides), command)
    _, differences = in_process(loaded.recipe.serving.engine)
    notes = [*command.notes, *(f"capture: {line}" for line in differences)]
    _log_notes([f"serve command: {note}" for note in notes])
    check_known(command, loaded.recipe.serving.ignored_flags)
    return loaded


def _overrides_of(sections: "Mapping[str, Any]", prefix: str = "") -> "Iterator[str]":
    """Yields nested sections as the command line has them: `section.key=value`."""
    import yaml

    for key, value in sections.items():
        if isinstance(value, dict):
            yield from _overrides_of(value, f"{prefix}{key}.")
        else:
            plain = str(value) if isinstance(value, Path) else value
            text = yaml.safe_dump(plain, default_flow_style=True, width=math.inf).strip()
            # PyYAML marks the end of a document that is a plain scalar.
            yield f"{prefix}{key}={text.removesuffix('...').strip()}"


def _log_notes(notes: "Sequence[str]") -> None:
    for note in notes:
        logger.info("%s", note)


@dataclasses.dataclass(frozen=True)
class Run:
    """A checked recipe and its run directory; the methods are the commands' work."""

    loaded: "LoadedRecipe"
    directory: "RunDirectory"

    @property
    def recipe(self) -> "Recipe":
        """The recipe with the values that the target determines."""
        return self.loaded.recipe

    def attempt(self) -> contextlib.AbstractContextManager[None]:
        """Locks the run directory and starts logs for one more attempt."""
        from outrider.pipeline.runner import attempt

        return attempt(self.directory, self.recipe, self.loaded.files)

    def run_stages(
        self,
        names: "Sequence[str]",
        options: "Options",
        end: float = math.inf,
        *,
        planned: "Sequence[str]" = (),
    ) -> "Results":
        """Within `attempt`: brings stages up to date; returns their results by name.

        `planned` are the stages whose planned time is printed before each.
        """
        from rich.console import Console

        from outrider.pipeline.runner import run_stages

        console = Console(stderr=True, force_jupyter=False)  # one line each, without widgets
        return run_stages(
            run=self.directory,
            recipe=self.recipe,
            names=names,
            options=options,
            console=console,
            end=end,
            planned=planned,
        )

    def plan(
        self,
        stages: str | None = None,
        force: bool = False,
        gpu_bytes: int | None = None,
        card: "Card | None" = None,
    ) -> tuple[dict[str, dict[str, str]], dict[str, Any]]:
        """Returns what each stage would do, and the cost; writes the resolved recipe."""
        from outrider.pipeline.plan.plan import plan_stages
        from outrider.pipeline.plan.training_cost import price
        from outrider.pipeline.stages.registry import stage_names

        names = stage_names(stages, self.recipe)
        with self.directory.locked():
            self.directory.write_resolved(self.recipe)
            cost = price(self.directory, self.recipe, gpu_bytes, card=card)
            rows = plan_stages(
                run=self.directory,
                recipe=self.recipe,
                names=names,
                options={"force": force},
                priced=cost,
            )
        return rows, cost

    def window(self, until: str | None, max_gpu_hours: float | None) -> float:
        """Returns the end of a window (pipeline/window.py) in Unix time, and logs it."""
        from outrider.pipeline.window import gpus_of, window_end, window_in_words

        now = time.time()
        end = window_end(until, max_gpu_hours, gpus_of(self.recipe), now)
        if end < math.inf:
            _log_notes([window_in_words(end, now)])
        return end

    def train(
        self, stages: str | None = None, force: bool = False, end: float = math.inf
    ) -> "Results":
        """Runs the requested stages until `end` (Unix time) at most.

        `force` exports regardless of the verdict.
        """
        from outrider.eval.config import SHIP
        from outrider.pipeline.stages.registry import stage_names
        from outrider.training.trackers import check_trackers

        names = stage_names(stages, self.recipe)
        options: Options = {"force": force}
        if any(name.startswith("train") for name in names):
            check_trackers(self.recipe.training)
        with self.attempt():
            first = [name for name in names if name != "export"]
            results = self.run_stages(first, options, end, planned=names)
            # Without an evaluation in this run, the export stage names what it needs.
            verdict = self.directory.result_of("evaluate").get("verdict", SHIP)
            if "export" in names and (force or verdict == SHIP):
                results |= self.run_stages(["export"], options, end, planned=names)
        return results

    def evaluate(
        self, speculator: str | None = None, again: bool = False, end: float = math.inf
    ) -> "Results":
        """Evaluates the run's speculator, or another: a directory, a lookup or `none`.

        `again` discards the speeds that an earlier evaluation measured; `end` is a Unix time.
        """
        from outrider.pipeline.stages.evaluate import discard_speeds, resolve_speculator
        from outrider.pipeline.stages.registry import stages_of

        stages = ["ingest", "split", "capture", "evaluate_other"]
        options: Options = {}
        if speculator is None:
            evaluations = ("choose_kind", "evaluate")
            stages = [name for name in stages_of(self.recipe) if name in evaluations]
        else:
            options = resolve_speculator(speculator, self.recipe)
        with self.attempt():
            if again:
                discard_speeds(self.directory, stages[-1])
            return self.run_stages(stages, options, end)

    def measure_server(self, url: str) -> dict[str, Any]:
        """Measures a running vLLM server on the held-out traffic; gives no verdict."""
        from outrider.pipeline.preflight import recipe_without_training

        with self.attempt():
            self.run_stages(
                ["ingest", "split"], {"measured": recipe_without_training(self.recipe) is not None}
            )
            # Slow to import, so imported only after the stages have run.
            from outrider.pipeline.running_server import measure_server

            return measure_server(self.directory, self.recipe, url)

    def export(self, to: str, force: bool = False) -> "Results":
        """Updates the bundle and copies it to a directory or an address."""
        from outrider.data.files.sources import storage_errors
        from outrider.serving.bundle.bundle_places import check_destination, put_bundle

        check_destination(to)
        with self.attempt():
            results = self.run_stages(["export"], {"force": force})
        # After the attempt: the run directory is not locked during an upload.
        with storage_errors(f"export to {to}"):
            put_bundle(self.directory.bundle, to)
        return results
