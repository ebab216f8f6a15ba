"""Train: the speculator, after its base has been compared in trainer and engine.

In a run of several kinds, TRAIN_KINDS trains one after another on the same captured states. Each
has a record of its own (stages/train_KIND.json), so a kind that is done is not trained again.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.common.files import read_json, write_json
from outrider.recipes.config.recipe import Recipe
from outrider.recipes.pipeline.run_dir import RunDirectory
from outrider.recipes.pipeline.stage import Options, Stage
from outrider.recipes.pipeline.stages.sources import (
    parts_in_use,
    speculator_section,
    target_and_base_digests,
    training_section,
)


def _work(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    from outrider.recipes.pipeline.draft_parity_check import check_warm_start

    parts = parts_in_use(run)
    check_warm_start(run, recipe, parts["validation"])
    return train_on(run, recipe, parts)


def train_on(run: RunDirectory, recipe: Recipe, parts: Mapping[str, list[str]]) -> dict[str, Any]:
    """Trains on parts of the run's sequences and publishes its speculator."""
    from outrider.data.sequences import load_sequences
    from outrider.training.distributed.launch import train

    rows = load_sequences(run.tables).select_columns(["sequence_id", "temperature", "top_p"])
    return train(
        target_dir=recipe.target.training_directory(),
        features_dir=run.features,
        sampling={row["sequence_id"]: (row["temperature"], row["top_p"]) for row in rows},
        parts=parts,
        speculator=recipe.speculator,
        training=recipe.training,
        out_dir=run.training,
        publish_dir=run.speculator,
        log_dir=run.trained,
        probabilistic_drafts=recipe.speculator.draft_sample_method == "probabilistic",
        cluster=recipe.cluster,
    )


TRAIN = Stage(
    name="train",
    version=2,
    needs=("split", "capture"),
    settings=lambda recipe: {
        "speculator": speculator_section(recipe, {"parity"}),
        "training": training_section(recipe, {"parity", "tokens_per_s"}),
    },
    sources=target_and_base_digests,
    work=_work,
    reads=lambda run: (run.sequences, run.features / "manifest.json"),
    artifact=lambda run: run.speculator / "model.safetensors",
    identity=lambda run: run.speculator,
    unfinished=lambda run: (run.training, run.metrics, run.trained / "train.log"),
    imports=("outrider.eval.replay.draft_parity", "outrider.training.distributed.launch"),
    starts_engines=True,
    begins_with_engine=True,
)


def train_of(kind: str) -> Stage:
    """The training of one of several kinds, as a stage with its own record."""

    def work(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
        return _work(run.of_kind(kind), recipe.of_kinds([kind]), options)

    return dataclasses.replace(
        TRAIN,
        name=f"train_{kind}",
        settings=lambda recipe: TRAIN.settings(recipe.of_kinds([kind])),
        work=work,
        artifact=lambda run: TRAIN.artifact(run.of_kind(kind)),
        identity=lambda run: TRAIN.identity(run.of_kind(kind)),
        unfinished=lambda run: TRAIN.unfinished(run.of_kind(kind)),
    )


def _work_of_each(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    from rich.console import Console

    console, results = Console(stderr=True, highlight=False), {}
    for kind in recipe.speculator.kinds:
        stage = train_of(kind)
        state = stage.state(run, recipe, options)
        why = "nothing changed, kept" if state.done else "; ".join(state.reasons)
        console.print(f"{kind}: {why}", soft_wrap=True)
        if not state.done:
            stage.perform(run, recipe, options)
        results[kind] = run.result_of(stage.name)
    digests = {kind: (run.read_record(f"train_{kind}") or {})["artifact"] for kind in results}
    write_json(_digests(run), digests)
    return results


def _digests(run: RunDirectory) -> Path:
    return run.root / "speculators" / "digests.json"


def _all_trained(run: RunDirectory) -> Path:
    """The first speculator that is missing, else the file of their digests."""
    kinds = read_json(_digests(run)) if _digests(run).is_file() else {}
    paths = (TRAIN.artifact(run.of_kind(kind)) for kind in kinds)
    return next((path for path in paths if not path.exists()), _digests(run))


TRAIN_KINDS = dataclasses.replace(
    TRAIN,
    work=_work_of_each,
    artifact=_all_trained,
    identity=_digests,
    unfinished=lambda run: (),
)
"""`train` in a run of several kinds."""
