"""Ingest: logs to a table of sequences. Split: table to parts."""

import shutil
from pathlib import Path

from outrider.common.files import read_json
from outrider.common.fingerprint import path_digest
from outrider.common.inert import printable
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import Options, Result, Settings, Stage
from outrider.pipeline.stages.sources import (
    general_digests,
    section_settings,
    target_digest,
    traffic_digests,
)


def _ingest(run: RunDirectory, recipe: Recipe, options: Options) -> Result:
    from outrider.data.ingest.ingest import ingest
    from outrider.data.split.split import PREFIX
    from outrider.pipeline.preflight import check_target_and_base

    target_dir = recipe.target.training_directory()
    if not options.get("measured"):
        # The preflight cannot check a hub model, which is downloaded only now.
        check_target_and_base(target_dir, recipe.speculator)
    result = ingest(
        target_dir,
        recipe.traffic,
        run.traffic,
        privacy=recipe.privacy,
        hard_labels=recipe.speculator.hard_labels,
        generation=recipe.serving.engine.generation,
    )
    if recipe.traffic.general is None:
        shutil.rmtree(run.general, ignore_errors=True)
        return result
    general = recipe.traffic.model_copy(update={"path": recipe.traffic.general})
    ingested = ingest(
        target_dir,
        general,
        run.general,
        privacy=recipe.privacy,
        hard_labels=recipe.speculator.hard_labels,
        generation=recipe.serving.engine.generation,
        prefix=PREFIX,
    )
    return result | {"general": {name: ingested[name] for name in ("rows", "exchanges", "rejects")}}


def _settings(recipe: Recipe) -> Settings:
    # `path` and `general` are covered by the digests of the logs.
    is_off = recipe.privacy.mode == "off"
    return {
        "traffic": section_settings(recipe.traffic, {"path", "general", "users"}),
        "privacy": {"mode": "off"} if is_off else section_settings(recipe.privacy, {"retention"}),
        # Under its whole name, because `outrider adapt` merges these settings with capture's.
        "speculator.draft_sample_method": recipe.speculator.draft_sample_method,
        "serving.engine.generation": recipe.serving.engine.generation,
    }


def _sources(recipe: Recipe) -> dict[str, str]:
    digests = target_digest(recipe) | traffic_digests(recipe) | general_digests(recipe)
    if key_file := recipe.privacy.key_file:
        digests["privacy.key_file"] = path_digest(Path(key_file).expanduser())
    return digests


INGEST = Stage(
    name="ingest",
    version=31,
    needs=(),
    settings=_settings,
    sources=_sources,
    work=_ingest,
    artifact=lambda run: run.sequences,
    identity=lambda run: run.sequences,
    outputs=lambda run: (run.traffic,),
    handles_text=True,
)


def _split(run: RunDirectory, recipe: Recipe, options: Options) -> Result:
    from rich.console import Console

    from outrider.data.ingest.inspection import advise, wrong_target
    from outrider.data.sequences import load_sequences
    from outrider.data.split.split import split
    from outrider.eval.lossless.task_accuracy import try_task

    general = run.general / "sequences" if recipe.traffic.general is not None else None
    parts = split(
        sequences_dir=run.sequences,
        split=recipe.split,
        out_dir=run.split,
        general_dir=general,
        answers_up_to=recipe.answers_up_to,
    )
    ingested = read_json(run.traffic / "summary.json")
    console = Console(stderr=True)
    heldout = load_sequences(run.sequences, parts["heldout"])
    task_advice = try_task(
        recipe.eval, heldout, recipe.target.training_directory(), recipe.report.samples
    )
    if wrong := wrong_target(ingested):
        console.print(
            printable(f"warning: {wrong}"), style="bold red", markup=False, soft_wrap=True
        )
    for text in [*advise(ingested, parts["summary"], recipe.split), *task_advice]:
        console.print(printable(f"advice: {text}"), style="yellow", markup=False, soft_wrap=True)
    return parts["summary"]


def _split_settings(recipe: Recipe) -> Settings:
    # `eval.task` is an input because it is tried on the held-out part.
    settings: Settings = {
        "split": section_settings(recipe.split),
        "eval": {"task": recipe.eval.task},
    }
    # General traffic is a share of all that is trained on.
    if recipe.answers_up_to and recipe.traffic.general is not None:
        settings["capture"] = {"answers_up_to": recipe.answers_up_to}
    return settings


SPLIT = Stage(
    name="split",
    version=5,
    needs=("ingest",),
    settings=_split_settings,
    sources=general_digests,
    work=_split,
    reads=lambda run: (run.sequences,),
    artifact=lambda run: run.split / "parts.json",
    identity=lambda run: run.split / "parts.json",
    outputs=lambda run: (run.split,),
    handles_text=True,
)
