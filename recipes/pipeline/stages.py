"""The six stages: what each reads, what it leaves, and when it can be skipped.

    STAGES["capture"].state(run, recipe, {})      # done, or why it runs
    STAGES["capture"].perform(run, recipe, {})    # in its own process: recipes/pipeline/stage_process.py

A stage is skipped when its artifact exists and its inputs are what they were: its part of the recipe, the artifacts of the
stages it needs, the target, the log, and the version of its own code. Heavy imports stand inside the functions that need them.
"""

import dataclasses
import datetime
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, value_digest, write_json
from outrider.recipes.config.recipe import Recipe
from outrider.recipes.pipeline.fingerprints import changes, path_identity, source_identity
from outrider.recipes.pipeline.retention import deletion_of
from outrider.recipes.pipeline.run_dir import RunDirectory

Options = dict[str, Any]
"""What the command line says beside the recipe: `force` for export."""

SPEED_ONLY = {"mode", "max_num_seqs", "kv_cache_gb", "gpu_memory_utilization", "cpu_cores", "seed"}
"""Engine settings that do not change the states that are captured."""


@dataclasses.dataclass(frozen=True)
class State:
    """Whether a stage is done; if not, why it runs."""

    done: bool
    reasons: tuple[str, ...] = ()
    deleted: str | None = None
    """When and by which setting retention deleted what a stage that is done has left."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage. Raise `version` when its code starts to leave something else from the same inputs."""

    name: str
    version: int
    needs: tuple[str, ...]
    settings: Callable[[Recipe], dict[str, Any]]
    """The part of the recipe that it follows."""
    sources: Callable[[Recipe], dict[str, str]]
    """Digests of what it reads from outside the run directory."""
    work: Callable[[RunDirectory, Recipe, Options], dict[str, Any]]
    artifact: Callable[[RunDirectory], Path]
    """The file or directory that must exist when it is done."""
    identity: Callable[[RunDirectory], Path]
    """The part of the artifact whose digest stands for it downstream."""
    unfinished: Callable[[RunDirectory], tuple[Path, ...]] = lambda run: ()
    """Work in progress that is of no use once the inputs have changed."""
    takes: tuple[str, ...] = ()
    """Options of the command line that count as inputs."""
    reads: Callable[[RunDirectory], tuple[Path, ...]] = lambda run: ()
    """What of the customer's text, which retention may have deleted, it opens."""

    def inputs(self, run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
        """All that the result depends on, as digests and values."""
        upstream = {
            name: (run.read_record(name) or {}).get("artifact", "absent") for name in self.needs
        }
        return {
            "code": {self.name: f"version {self.version}"},
            "recipe": self.settings(recipe),
            "source": self.sources(recipe),
            "output of": upstream,
            "option": {name: options.get(name) for name in self.takes},
        }

    def state(self, run: RunDirectory, recipe: Recipe, options: Options) -> State:
        """Done, or why it runs."""
        record = run.read_record(self.name)
        if record is None:
            started = self._started(run).is_file()
            return State(False, ("goes on where it stopped" if started else "not done yet",))
        deleted = deletion_of(run, self.artifact(run))
        if deleted and recipe.privacy.retention == "keep":
            return State(
                False,
                (
                    f"made anew, retention deleted {self.artifact(run).name} after the export ({deleted})",
                ),
            )
        if not deleted and not self.artifact(run).exists():
            return State(False, (f"{self.artifact(run).name} is gone",))
        changed = changes(record["inputs"], self.inputs(run, recipe, options))
        return State(not changed, tuple(changed), None if changed else deleted)

    def require_what_it_reads(self, run: RunDirectory, reasons: tuple[str, ...]) -> None:
        """Whoever runs a stage whose input was deleted on purpose has to ask for it in so many words."""
        for path in self.reads(run):
            if deleted := deletion_of(run, path):
                raise OutriderError(
                    f"{self.name} must run ({'; '.join(reasons)}), but {path}, which it reads, was deleted after the export ({deleted}). "
                    "To make it anew from the logs: privacy.retention=keep, in the recipe or on the command line, without --stages. "
                    "To leave it deleted: undo the change, or run under another --name"
                )

    def perform(self, run: RunDirectory, recipe: Recipe, options: Options) -> None:
        """Does the work and publishes the record, last."""
        inputs = self.inputs(run, recipe, options)
        started = self._started(run)
        if not started.is_file() or read_json(started) != value_digest(inputs):
            for path in self.unfinished(run):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(
                    missing_ok=True
                )
        write_json(started, value_digest(inputs))
        run.stage_record(self.name).unlink(missing_ok=True)
        begin, clock = datetime.datetime.now().astimezone(), time.monotonic()
        result = self.work(run, recipe, options)
        record = {
            "stage": self.name,
            "inputs": inputs,
            "artifact": path_identity(self.identity(run)),
            "result": result,
            "started": begin.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - clock, 1),
        }
        write_json(run.stage_record(self.name), record)
        started.unlink()

    def _started(self, run: RunDirectory) -> Path:
        return run.root / "stages" / f"{self.name}.started.json"


def _dump(section: Any, leave_out: set[str] | None = None) -> dict[str, Any]:
    return section.model_dump(mode="json", exclude=leave_out or set())


def _target(recipe: Recipe) -> dict[str, str]:
    directory = recipe.target.training_directory()
    # Of a hub's model the commit decides, by which its folder is named, and not which of its files are here yet.
    return {
        "target": value_digest([recipe.target.model, directory.name])
        if recipe.target.on_hub
        else path_identity(directory)
    }


def _logs(paths: str | list[str] | None) -> dict[str, str]:
    return {
        path: source_identity(path) for path in ([paths] if isinstance(paths, str) else paths or [])
    }


def _traffic(recipe: Recipe) -> dict[str, str]:
    return _logs(recipe.traffic.path) | _general(recipe)


def _general(recipe: Recipe) -> dict[str, str]:
    return {f"general {path}": identity for path, identity in _logs(recipe.traffic.general).items()}


def _privacy_settings(recipe: Recipe) -> dict[str, Any]:
    """What the ingest does with personal data; retention comes after everything else."""
    return _dump(recipe.privacy, {"retention"}) if recipe.privacy.mode != "off" else {"mode": "off"}


def _privacy_key(recipe: Recipe) -> dict[str, str]:
    named = recipe.privacy.mode == "surrogate" and recipe.privacy.key_file
    return (
        {"privacy.key_file": path_identity(Path(recipe.privacy.key_file).expanduser())}
        if named
        else {}
    )


def _ingest(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    from outrider.data.ingest.ingest import ingest
    from outrider.data.split.general_traffic import PREFIX
    from outrider.recipes.pipeline.preflight import check_target

    target_dir = recipe.target.training_directory()
    check_target(target_dir)  # a target from the hub is here only now
    result = ingest(target_dir, recipe.traffic, run.traffic, privacy=recipe.privacy)
    if recipe.traffic.general is None:
        shutil.rmtree(run.general, ignore_errors=True)
        return result
    general = recipe.traffic.model_copy(update={"path": recipe.traffic.general})
    ingested = ingest(target_dir, general, run.general, privacy=recipe.privacy, prefix=PREFIX)
    return {
        **result,
        "general": {name: ingested[name] for name in ("rows", "exchanges", "rejects")},
    }


def _split(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    from outrider.data.split.split import split

    general = run.general / "sequences" if recipe.traffic.general is not None else None
    parts = split(run.sequences, recipe.split, run.split, general)
    return parts["summary"]


def _capture(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    from outrider.data.features.capture import capture
    from outrider.data.on_policy.check import check_traffic

    captured = capture(
        target=recipe.target,
        sequences_dir=run.tables,
        parts=read_json(run.split / "parts.json"),
        capture=recipe.capture,
        engine=recipe.serving.engine,
        out_dir=run.features,
    )
    judged = check_traffic(run.tables, run.split, run.features, recipe.capture.min_on_policy)
    return {**captured, "on_policy": judged}


def _train(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    from outrider.data.sequences import load_sequences
    from outrider.recipes.pipeline.draft_parity_check import check_warm_start
    from outrider.training.distributed.launch import train

    check_warm_start(run, recipe, _parts(run)["validation"])
    rows = load_sequences(run.tables).select_columns(["sequence_id", "temperature", "top_p"])
    return train(
        target_dir=recipe.target.training_directory(),
        features_dir=run.features,
        sampling={row["sequence_id"]: (row["temperature"], row["top_p"]) for row in rows},
        parts=_parts(run),
        speculator=recipe.speculator,
        training=recipe.training,
        out_dir=run.training,
        publish_dir=run.speculator,
        log_dir=run.root,
        probabilistic_drafts=recipe.serving.draft_sample_method == "probabilistic",
    )


def _evaluate(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    return _measure(run, recipe, speculator=run.speculator, out=run.evaluation, report=run.root)


def _evaluate_other(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    from outrider.eval.counted import evaluate_counted
    from outrider.serving.speculator import Speculator

    out, speculator = run.other_evaluation, Speculator.named(options["speculator"])
    if speculator.has_unroll:
        return _measure(run, recipe, speculator=speculator.directory, out=out, report=out)
    return evaluate_counted(speculator=speculator, **_evaluated(run, recipe, out, report=out))


def _measure(
    run: RunDirectory, recipe: Recipe, speculator: Path, out: Path, report: Path
) -> dict[str, Any]:
    from outrider.data.split.slices import load_slices
    from outrider.eval.evaluate import evaluate

    return evaluate(
        speculator_dir=speculator,
        features_dir=run.features,
        slices=load_slices(run.split),
        show_samples=recipe.report.samples,
        **_evaluated(run, recipe, out, report),
    )


def _evaluated(run: RunDirectory, recipe: Recipe, out: Path, report: Path) -> dict[str, Any]:
    """What every evaluation is given, whichever kind of speculator it is of."""
    return {
        "recipe": recipe.name,
        "run_dir": run.root,
        "target": recipe.target,
        "sequences_dir": run.tables,
        "parts": _parts(run),
        "depth": recipe.speculator.depth,
        "serving": recipe.serving,
        "evaluation": recipe.eval,
        "out_dir": out,
        "report_dir": report,
        "log_dir": run.attempt(),
    }


def _export(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    from outrider.recipes.pipeline.export import deliver

    return deliver(run, recipe, force=bool(options.get("force")))


def _parts(run: RunDirectory) -> dict[str, Any]:
    """Without what capture has set aside; capture itself takes every sequence."""
    from outrider.data.on_policy.quarantine import load_parts

    return load_parts(run.split, run.features)


def _evaluate_settings(recipe: Recipe) -> dict[str, Any]:
    # Only where it is on: what was evaluated without it need not be judged anew to stay without.
    report = {"report": {"samples": True}} if recipe.report.samples else {}
    sections = {name: _dump(getattr(recipe, name)) for name in ("serving", "eval", "speculator")}
    return sections | report


STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage(
            name="ingest",
            version=4,
            needs=(),
            settings=lambda recipe: {
                "traffic": _dump(recipe.traffic, {"path", "general"}),
                "privacy": _privacy_settings(recipe),
            },
            sources=lambda recipe: _target(recipe) | _traffic(recipe) | _privacy_key(recipe),
            work=_ingest,
            artifact=lambda run: run.sequences,
            identity=lambda run: run.sequences,
        ),
        Stage(
            name="split",
            version=2,
            needs=("ingest",),
            settings=lambda recipe: {"split": _dump(recipe.split)},
            sources=_general,
            work=_split,
            reads=lambda run: (run.sequences,),
            artifact=lambda run: run.split / "parts.json",
            identity=lambda run: run.split / "parts.json",
        ),
        Stage(
            name="capture",
            version=2,
            needs=("ingest", "split"),
            settings=lambda recipe: {
                "target": _dump(recipe.target),
                "capture": _dump(recipe.capture, {"tokens_per_s"}),
                "serving": {"engine": _dump(recipe.serving.engine, SPEED_ONLY)},
            },
            sources=_target,
            work=_capture,
            reads=lambda run: (run.sequences,),
            artifact=lambda run: run.features / "manifest.json",
            identity=lambda run: run.features / "quarantine.json",
        ),
        Stage(
            name="train",
            version=2,
            needs=("split", "capture"),
            settings=lambda recipe: {
                "speculator": _dump(recipe.speculator),
                "training": _dump(recipe.training, {"parity", "tokens_per_s"}),
                "serving": {"draft_sample_method": recipe.serving.draft_sample_method},
            },
            sources=_target,
            work=_train,
            reads=lambda run: (run.sequences, run.features / "manifest.json"),
            artifact=lambda run: run.speculator / "model.safetensors",
            identity=lambda run: run.speculator,
            unfinished=lambda run: (
                run.training,
                run.root / "metrics.jsonl",
                run.root / "train.log",
            ),
        ),
        Stage(
            name="evaluate",
            version=3,
            needs=("split", "capture", "train"),
            settings=_evaluate_settings,
            sources=_target,
            work=_evaluate,
            reads=lambda run: (run.sequences, run.features / "manifest.json"),
            artifact=lambda run: run.root / "report.json",
            identity=lambda run: run.root / "report.json",
        ),
        Stage(
            name="export",
            version=1,
            needs=("train", "evaluate"),
            settings=lambda recipe: {
                "export": _dump(recipe.export),
                "serving": _dump(recipe.serving),
            },
            sources=_target,
            work=_export,
            reads=lambda run: (run.sequences, run.evaluation / "steps"),
            artifact=lambda run: run.bundle / "bundle.json",
            identity=lambda run: run.bundle / "bundle.json",
            takes=("force",),
        ),
    )
}

OTHER_EVALUATION = Stage(
    name="evaluate_other",
    version=3,
    needs=("split", "capture"),
    settings=_evaluate_settings,
    sources=_target,
    work=_evaluate_other,
    reads=lambda run: (run.sequences, run.features / "manifest.json"),
    artifact=lambda run: run.other_evaluation / "report.json",
    identity=lambda run: run.other_evaluation / "report.json",
    takes=("speculator", "weights"),
)
"""`evaluate-speculator --speculator DIR|ngram|none`: a speculator that this run did not train."""


def stage_of(name: str) -> Stage:
    """The stage of that name."""
    return OTHER_EVALUATION if name == OTHER_EVALUATION.name else STAGES[name]


def stage_names(text: str | None) -> list[str]:
    """The stages that `--stages a,b` names, in the order in which they run; all of them without it."""
    if text is None:
        return list(STAGES)
    named = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in named if name not in STAGES]
    if unknown or not named:
        raise OutriderError(
            f"--stages {text}: no stage `{', '.join(unknown)}`; the stages are {', '.join(STAGES)}"
        )
    return [name for name in STAGES if name in named]
