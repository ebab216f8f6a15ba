"""Train: the speculator, after its base has been compared in trainer and engine."""

from typing import Any

from outrider.recipes.config.recipe import Recipe
from outrider.recipes.pipeline.run_dir import RunDirectory
from outrider.recipes.pipeline.stage import Options, Stage
from outrider.recipes.pipeline.stages.sources import parts_in_use, section, target_and_base_digests


def _work(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    from outrider.data.sequences import load_sequences
    from outrider.recipes.pipeline.draft_parity_check import check_warm_start
    from outrider.training.distributed.launch import train

    parts = parts_in_use(run)
    check_warm_start(run, recipe, parts["validation"])
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
        log_dir=run.root,
        probabilistic_drafts=recipe.speculator.draft_sample_method == "probabilistic",
    )


TRAIN = Stage(
    name="train",
    version=2,
    needs=("split", "capture"),
    settings=lambda recipe: {
        "speculator": section(recipe.speculator, {"parity"}),
        "training": section(recipe.training, {"parity", "tokens_per_s"}),
    },
    sources=target_and_base_digests,
    work=_work,
    reads=lambda run: (run.sequences, run.features / "manifest.json"),
    artifact=lambda run: run.speculator / "model.safetensors",
    identity=lambda run: run.speculator,
    unfinished=lambda run: (run.training, run.root / "metrics.jsonl", run.root / "train.log"),
    starts_engines=True,
)
