"""Train: trains the speculator after checking draft parity with the engine.

With several kinds, `train_stage_for_kind` builds a stage for each; all read the same captured
states.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from outrider.common.fingerprint import file_digest
from outrider.common.own_code import code_file
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import Options, Result, Settings, Stage
from outrider.pipeline.stages.capture import features_of
from outrider.pipeline.stages.sources import parts_in_use, section_settings, target_and_base_digests

if TYPE_CHECKING:
    from outrider.data.streamed import StreamedCapture

Paths = TypeVar("Paths", Path, tuple[Path, ...])


def _work(run: RunDirectory, recipe: Recipe, options: Options) -> Result:
    from outrider.data.features.answers import with_further
    from outrider.data.features.feature_store import FeatureStore
    from outrider.pipeline.draft_parity_check import check_warm_start

    parts = parts_in_use(run)
    # Before hours of training: a mismatch would improve a model that is not served.
    check_warm_start(run, recipe, parts["validation"])
    if not recipe.training.streams:
        captured = FeatureStore.open(run.features).sequence_ids
        return train_on(run, recipe, parts | {"train": with_further(parts["train"], captured)})
    from outrider.data.streamed import stream_features
    from outrider.training.distributed.launch import processes_here

    ranks = processes_here(recipe.training, recipe.cluster)
    streamed = _streamed(run, recipe, parts["train"])
    directory = run.training / "stream"
    with stream_features(streamed, ranks, directory):
        return train_on(run, recipe, parts | {"train": streamed.train}, directory)


def train_on(
    run: RunDirectory,
    recipe: Recipe,
    parts: Mapping[str, list[str]],
    stream_dir: Path | None = None,
) -> Result:
    """Trains on parts of the run's sequences and publishes the speculator.

    The training part may have further answers, which the logged sequences' sampling applies to.

    `stream_dir`: directory of a stream of states; None: the run's feature store.
    """
    from outrider.data.features.answers import logged_id
    from outrider.data.features.feature_store import FeatureStore
    from outrider.data.sequences import load_sequences
    from outrider.training.distributed.launch import launch_training
    from outrider.training.distributed.spec import SequenceSampling, TrainingSpec

    # Here and not in the ranks, each of which reads all shards. A stream's sequences are in none.
    FeatureStore.open(run.features).verify([*parts["train"], *parts["validation"]])
    names = ["sequence_id", "temperature", "top_p", "top_k", "constraint", "grammar"]
    rows = load_sequences(run.tables).select_columns(names)
    grammars = sorted({text for text in rows["grammar"] if text})
    grammar_index = {text: number for number, text in enumerate(grammars)}
    sampling = {
        row["sequence_id"]: SequenceSampling(
            temperature=row["temperature"],
            top_p=row["top_p"],
            top_k=row["top_k"],
            hard=bool(row["constraint"]),
            grammar=grammar_index.get(row["grammar"], -1),
        )
        for row in rows
    }
    train_ids = parts["train"]
    spec = TrainingSpec(
        target_dir=recipe.target.training_directory(),
        features_dir=stream_dir or run.features,
        sampling=sampling | {name: sampling[logged_id(name)] for name in train_ids},
        grammars=grammars,
        structured_outputs=recipe.serving.engine.structured_outputs,
        train=train_ids,
        validation=parts["validation"],
        speculator=recipe.speculator,
        training=recipe.training,
        out_dir=run.training,
        publish_dir=run.speculator,
        log_dir=run.trained,
    )
    return launch_training(spec, recipe.cluster)


def _streamed(run: RunDirectory, recipe: Recipe, train: list[str]) -> "StreamedCapture":
    """Configures in-training capture of the `train` sequences that fit the engine's context."""
    from outrider.data.features.capture_plan import drop_overlong_rows
    from outrider.data.sequences import load_sequences
    from outrider.data.streamed import StreamedCapture

    table, lengths = drop_overlong_rows(
        load_sequences(run.tables, train), recipe.serving.engine.max_model_len
    )
    return StreamedCapture(
        target=recipe.target,
        engine=recipe.serving.engine,
        capture=recipe.capture,
        cluster=recipe.cluster,
        spec=features_of(recipe),
        tables=run.tables,
        train=table["sequence_id"][:],
        limit=lengths.limit,
        store=run.features,
    )


def _settings(recipe: Recipe) -> Settings:
    # How strictly parity is checked does not change the trained weights, nor do trackers.
    left_out = {"parity", "trackers", "tracking_project", "wandb_project"}
    training = section_settings(recipe.training, left_out)
    own_loss = recipe.training.own_loss
    if own_loss is not None:
        # Its name stays when it is edited.
        training["code of loss"] = file_digest(Path(code_file(own_loss, key="training.loss")))
    return {"speculator": section_settings(recipe.speculator), "training": training}


TRAIN = Stage(
    name="train",
    version=4,
    needs=("split", "capture"),
    settings=_settings,
    sources=target_and_base_digests,
    work=_work,
    reads=lambda run: (run.sequences, run.features / "manifest.json"),
    artifact=lambda run: run.speculator / "model.safetensors",
    identity=lambda run: run.speculator,
    unfinished=lambda run: (run.training, run.metrics, run.trained / "train.log"),
    starts_engines=True,
)


def train_stage_for_kind(kind: str) -> Stage:
    """The training stage of a kind in a run of several kinds."""

    def settings(recipe: Recipe) -> Settings:
        return TRAIN.settings(recipe.of_kinds([kind]))

    def work(run: RunDirectory, recipe: Recipe, options: Options) -> Result:
        return _work(run.of_kind(kind), recipe.of_kinds([kind]), options)

    def of_kind(paths: Callable[[RunDirectory], Paths]) -> Callable[[RunDirectory], Paths]:
        """The same paths in the kind's part of the run directory."""
        return lambda run: paths(run.of_kind(kind))

    return dataclasses.replace(
        TRAIN,
        name=f"train_{kind}",
        settings=settings,
        work=work,
        artifact=of_kind(TRAIN.artifact),
        identity=of_kind(TRAIN.identity),
        unfinished=of_kind(TRAIN.unfinished),
    )
