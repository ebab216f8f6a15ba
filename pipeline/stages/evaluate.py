"""Evaluate: compares the trained speculator, or another, with base and no speculation.

In a run of several kinds, CHOOSE_KIND selects the one that is fastest on the validation part, and
EVALUATE_KINDS publishes and evaluates it, and then a lookup that is faster in servers.
"""

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from outrider.common.files import link_or_copy, publish, write_json
from outrider.common.fingerprint import path_digest
from outrider.common.json_forms import read_form
from outrider.eval.config import SHIP
from outrider.eval.results.report import Report
from outrider.eval.results.sections import KindSpeed
from outrider.pipeline.preflight import check_servable
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import Options, Result, Settings, Stage
from outrider.pipeline.stages.sources import (
    evaluation_settings,
    parts_in_use,
    section_settings,
    served_base_of,
    served_speculator,
    sessions_of_split,
    target_and_base_digests,
)
from outrider.serving.bundle.bundle_digest import MANIFEST, bundle_digest
from outrider.serving.speculator import Speculator
from outrider.speculators.checkpoints.safetensors_headers import tensor_headers
from outrider.speculators.kinds import check_speculator, kind_named

if TYPE_CHECKING:
    from outrider.eval.context import EvaluationContext


Kinds = Annotated[list[KindSpeed], Field(min_length=1)]
"""`kind_choice`: the kinds with their speeds, the fastest first."""


def read_kinds(run: RunDirectory) -> list[KindSpeed]:
    """Reads what choose_kind wrote."""
    fix = "delete it and rerun the command to repeat choose_kind"
    return read_form(Kinds, run.kind_choice, fix)


def _evaluate(
    run: RunDirectory,
    recipe: Recipe,
    *,
    speculator: str,
    out: Path,
    report: Path,
    kinds: Sequence[KindSpeed] = (),
) -> Result:
    """Evaluates a speculator; `kinds` are the kinds that it was chosen from."""
    from outrider.eval.evaluate import run_evaluation

    context = evaluation_context(
        run=run, recipe=recipe, speculator=speculator, out=out, report=report
    )
    return run_evaluation(dataclasses.replace(context, kinds=kinds))


def _evaluate_own(run: RunDirectory, recipe: Recipe, options: Options) -> Result:
    """Evaluates the run's speculator, trained or a lookup."""
    (kind,) = recipe.speculator.candidates
    speculator = str(run.speculator) if kind_named(kind).has_weights else kind
    return _evaluate(run, recipe, speculator=speculator, out=run.evaluation, report=run.root)


def _evaluate_other(run: RunDirectory, recipe: Recipe, options: Options) -> Result:
    """Evaluates the speculator of `--speculator`."""
    out = run.other_evaluation
    speculator = str(options["speculator"])
    return _evaluate(run, recipe, speculator=speculator, out=out, report=out)


def _choose_kind(run: RunDirectory, recipe: Recipe, options: Options) -> Result:
    """Ranks trained kinds and lookup by exact replay and timed steps."""
    from outrider.eval.choose_kind import choose_kind

    contexts = {}
    facts = {}
    for kind in recipe.speculator.candidates:
        kind_run = run.of_kind(kind)
        one = recipe.of_kinds([kind])
        speculator = str(kind_run.speculator) if kind_named(kind).has_weights else kind
        contexts[kind] = evaluation_context(
            run=kind_run,
            recipe=one,
            speculator=speculator,
            out=kind_run.evaluation,
            report=kind_run.evaluation,
        )
    for kind in recipe.speculator.kinds:
        headers = tensor_headers(run.of_kind(kind).speculator).values()
        record = run.read_record(f"train_{kind}") or {}
        facts[kind] = {
            "parameters": sum(header.floats for header in headers),
            "training_minutes": record["seconds"] / 60,
        }
    # The first of the ranked kinds is the one that EVALUATE_KINDS publishes.
    kinds = choose_kind(contexts, facts)
    write_json(run.kind_choice, [speed.model_dump(mode="json") for speed in kinds])
    return {
        "chosen": kinds[0].kind,
        "tokens_per_s": {speed.kind: speed.tokens_per_s(recipe.eval.main) for speed in kinds},
    }


def _evaluate_kinds(run: RunDirectory, recipe: Recipe, options: Options) -> Result:
    """Evaluates the kind that choose_kind selected, and a lookup that is faster in servers.

    A trained kind that does not ship, because the lookup that it was served with is as fast, is
    followed by that lookup. Its own report is then in its folder.
    """
    kinds = read_kinds(run)
    first = kinds[0].kind
    result = _evaluate_kind(run, recipe, kinds)
    if result["verdict"] == SHIP:
        return result
    report = Report.read(run.root / "report.json")
    lookup = next((speed for speed in kinds if speed.kind == report.better_lookup), None)
    if lookup is None:
        return result
    folder = run.of_kind(first).evaluation
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("report.json", "report.html", "report.md"):
        shutil.copyfile(run.root / name, folder / name)
    kinds.remove(lookup)
    return _evaluate_kind(run, recipe, [lookup, *kinds])


def _evaluate_kind(run: RunDirectory, recipe: Recipe, kinds: Sequence[KindSpeed]) -> Result:
    """Publishes and evaluates the first of the kinds."""
    kind = kinds[0].kind
    chosen = publish_chosen(run, kind)
    one = recipe.of_kinds([kind])
    return _evaluate(run, one, speculator=chosen, out=run.evaluation, report=run.root, kinds=kinds)


def publish_chosen(run: RunDirectory, kind: str) -> str:
    """Publishes a kind's speculator and metrics, if any, as the run's.

    Returns the speculator as `--speculator` names it.
    """
    kind_run = run.of_kind(kind)
    if not kind_named(kind).has_weights:
        shutil.rmtree(run.speculator, ignore_errors=True)
        run.metrics.unlink(missing_ok=True)
        return kind
    # Hard links where the file system allows it: no second copy of the weights.
    with publish(run.speculator) as temporary:
        shutil.copytree(kind_run.speculator, temporary, copy_function=link_or_copy)
    with publish(run.metrics) as temporary:
        shutil.copyfile(kind_run.metrics, temporary)
    return str(run.speculator)


def evaluation_context(
    run: RunDirectory, recipe: Recipe, speculator: str, out: Path, report: Path
) -> "EvaluationContext":
    """Returns the context for evaluating a speculator, named as in `--speculator`."""
    from outrider.data.split.slices import load_slices
    from outrider.eval.context import EvaluationContext, EvaluationData, EvaluationFolders

    data = EvaluationData(
        sequences=run.tables,
        parts=parts_in_use(run),
        features=run.features,
        slices=load_slices(run.split),
        sessions=sessions_of_split(run),
        users=recipe.traffic.users,
    )
    base = served_base_of(run, recipe)
    return EvaluationContext(
        recipe=recipe.name,
        target=recipe.target,
        serving=recipe.serving,
        draft_sample_method=recipe.speculator.draft_sample_method,
        settings=evaluation_settings(run, recipe),
        depth=recipe.speculator.depth,
        lookup=recipe.lookup,
        speculators={
            "base": base,
            "custom": served_speculator(Speculator.from_name(speculator), run, recipe),
        },
        data=data,
        folders=EvaluationFolders(
            run=run.root, out=out, report=report, logs=run.attempt(), trained=run.trained
        ),
        show_samples=recipe.report.samples,
        k_per_batch_size=recipe.export.k_per_batch_size,
        cluster=recipe.cluster,
    )


def _settings(recipe: Recipe) -> Settings:
    left_out = {"ignored_flags"}
    # Only where it is set, so that the records of earlier runs, which lack the key, stay valid.
    if recipe.serving.production_release is None:
        left_out.add("production_release")
    return {
        "serving": section_settings(recipe.serving, left_out),
        "eval": section_settings(recipe.eval),
        "speculator": section_settings(recipe.speculator),
        "lookup": section_settings(recipe.lookup),
        "users": recipe.traffic.users,
        "report": section_settings(recipe.report),
        "export": {"k_per_batch_size": recipe.export.k_per_batch_size},
    }


EVALUATE = Stage(
    name="evaluate",
    version=6,
    needs=("split", "capture", "train"),
    settings=_settings,
    sources=target_and_base_digests,
    work=_evaluate_own,
    reads=lambda run: (run.sequences, run.features / "manifest.json"),
    artifact=lambda run: run.root / "report.json",
    identity=lambda run: run.root / "report.json",
    handles_text=True,
    starts_engines=True,
)

CHOOSE_KIND = dataclasses.replace(
    EVALUATE,
    name="choose_kind",
    version=2,
    work=_choose_kind,
    artifact=lambda run: run.kind_choice,
    identity=lambda run: run.kind_choice,
)

EVALUATE_KINDS = dataclasses.replace(EVALUATE, work=_evaluate_kinds)

EVALUATE_OTHER = dataclasses.replace(
    EVALUATE,
    name="evaluate_other",
    needs=("split", "capture"),
    work=_evaluate_other,
    artifact=lambda run: run.other_evaluation / "report.json",
    identity=lambda run: run.other_evaluation / "report.json",
    options=("speculator", "weights"),
)
"""`outrider eval --speculator DIR|LOOKUP|none`: one that this run did not train."""


def discard_speeds(run: RunDirectory, stage: str) -> None:
    """Deletes measured speeds, so that the stage measures them again; keeps the rest."""
    out = run.evaluation if stage == EVALUATE.name else run.other_evaluation
    for name in ("speed_*.json", "rates_*.json", "capacity_*.json"):
        for path in (out / "steps").glob(name):
            path.unlink()
    run.stage_record(stage).unlink(missing_ok=True)


def resolve_speculator(name: str, recipe: Recipe) -> Options:
    """Checks `--speculator` against the target, before anything runs; returns its options."""
    speculator = Speculator.from_name(name)
    directory = speculator.directory
    if directory is None:
        return {"speculator": speculator.kind, "weights": None}
    if (directory / MANIFEST).exists():
        bundle_digest(directory)  # raises if a file differs from the manifest
    check_speculator(directory, recipe.target.training_directory())
    check_servable(speculator, recipe, f"--speculator {name}")
    return {"speculator": str(directory.resolve()), "weights": path_digest(directory)}
