"""Capture: the target's hidden states, and which sequences are on-policy."""

from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import Options, Result, Settings, Stage
from outrider.pipeline.stages.sources import section_settings, target_digest
from outrider.speculators.base import stored_features
from outrider.speculators.checkpoints.model_config import read_config
from outrider.speculators.features import FeatureSpec

SPEED_ONLY = {"mode", "max_num_seqs", "kv_cache_gb", "gpu_memory_utilization"}
"""Engine settings that do not change the captured states."""


def _work(run: RunDirectory, recipe: Recipe, options: Options) -> Result:
    from outrider.data.features.capture import capture
    from outrider.data.on_policy.check import check_on_policy
    from outrider.data.split.split import read_parts

    parts = read_parts(run.split)
    # Nothing reads the training part's states if nothing is trained.
    unread = recipe.training.streams or not recipe.speculator.kinds
    streamed = ("train",) if unread else ()
    captured = capture(
        target=recipe.target,
        sequences_dir=run.tables,
        parts={name: value for name, value in parts.items() if name not in streamed},
        capture=recipe.capture,
        engine=recipe.serving.engine,
        out_dir=run.features,
        features=features_of(recipe),
        cluster=recipe.cluster,
    )
    on_policy = check_on_policy(
        sequences_dir=run.tables,
        split_dir=run.split,
        features_dir=run.features,
        min_on_policy=recipe.capture.min_on_policy,
        streamed=streamed,
    )
    return {**captured, "on_policy": on_policy}


def features_of(recipe: Recipe) -> FeatureSpec:
    """The union of the states that the recipe's drafter kinds read."""
    config = read_config(recipe.target.training_directory() / "config.json")
    return stored_features(recipe.speculator, config)


def _settings(recipe: Recipe) -> Settings:
    reads = {"kind": recipe.speculator.kinds, "streams": list(features_of(recipe).names)}
    # Only where it is set, so that stores of earlier runs, whose records lack the key, stay valid.
    up_to = recipe.answers_up_to
    settings: Settings = {
        "target": section_settings(recipe.target),
        "capture": section_settings(recipe.capture, set() if up_to else {"answers_up_to"}),
        "speculator": reads,
        "serving": {"engine": section_settings(recipe.serving.engine, SPEED_ONLY)},
    }
    if recipe.training.streams:
        settings["training"] = {"features": "streamed"}
    return settings


CAPTURE = Stage(
    name="capture",
    version=3,
    needs=("ingest", "split"),
    settings=_settings,
    sources=target_digest,
    work=_work,
    reads=lambda run: (run.sequences,),
    artifact=lambda run: run.features / "manifest.json",
    identity=lambda run: run.features / "quarantine.json",
    # The manifest has the digests of the shards, which are terabytes for R1.
    outputs=lambda run: tuple(sorted(run.features.glob("*.json"))),
    starts_engines=True,
)
