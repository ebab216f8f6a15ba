"""Capture: the target's hidden states over the sequences, and which sequences are on-policy."""

from typing import Any

from outrider.common.files import read_json
from outrider.common.fingerprint import value_digest
from outrider.recipes.config.recipe import Recipe
from outrider.recipes.pipeline.run_dir import RunDirectory
from outrider.recipes.pipeline.stage import Options, Stage
from outrider.recipes.pipeline.stages.sources import section, target_digest
from outrider.speculators.kinds import trainable_kind
from outrider.speculators.planned import planned, warm_directory

SPEED_ONLY = {
    "mode",
    "max_num_seqs",
    "kv_cache_gb",
    "gpu_memory_utilization",
    "cpu_cores",
    "seed",
    "prefix_caching",
}
"""Engine settings that do not change the captured states."""


def _work(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    from outrider.data.features.capture import capture
    from outrider.data.on_policy.check import check_traffic

    target_config = read_json(recipe.target.directory() / "config.json")
    kind = trainable_kind(recipe.speculator.kind)
    captured = capture(
        target=recipe.target,
        sequences_dir=run.tables,
        parts=read_json(run.split / "parts.json"),
        capture=recipe.capture,
        engine=recipe.serving.engine,
        out_dir=run.features,
        features=kind.features(planned(recipe.speculator, target_config), target_config),
    )
    judged = check_traffic(run.tables, run.split, run.features, recipe.capture.min_on_policy)
    return {**captured, "on_policy": judged}


def _reads(recipe: Recipe) -> dict[str, Any]:
    """What decides which states are captured: the kind and, for a head, its layers."""
    speculator = recipe.speculator
    found: dict[str, Any] = {"kind": speculator.kind}
    if trainable_kind(speculator.kind).head_keys:
        found["layers"] = speculator.head.layers
        if (base := warm_directory(speculator)) is not None:
            found["base"] = value_digest(read_json(base / "config.json"))
    return found


CAPTURE = Stage(
    name="capture",
    version=2,
    needs=("ingest", "split"),
    settings=lambda recipe: {
        "target": section(recipe.target),
        "capture": section(recipe.capture, {"tokens_per_s"}),
        "speculator": _reads(recipe),
        "serving": {"engine": section(recipe.serving.engine, SPEED_ONLY)},
    },
    sources=target_digest,
    work=_work,
    reads=lambda run: (run.sequences,),
    artifact=lambda run: run.features / "manifest.json",
    identity=lambda run: run.features / "quarantine.json",
    starts_engines=True,
)
