"""Ingest: logs to a table of token sequences."""

import shutil
from pathlib import Path
from typing import Any

from outrider.common.fingerprint import path_digest
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import Options, Stage
from outrider.pipeline.stages.sources import (
    general_digests,
    section,
    target_digest,
    traffic_digests,
)


def _work(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    from outrider.data.ingest.ingest import ingest
    from outrider.data.split.general_traffic import PREFIX
    from outrider.pipeline.preflight import check_target

    target_dir = recipe.target.training_directory()
    check_target(
        target_dir, recipe.speculator
    )  # the preflight could not: a hub model is downloaded only now
    result = ingest(
        target_dir, recipe.traffic, run.traffic, privacy=recipe.privacy, cluster=recipe.cluster
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
        prefix=PREFIX,
        cluster=recipe.cluster,
    )
    counts = {name: ingested[name] for name in ("rows", "exchanges", "rejects")}
    return {**result, "general": counts}


def _settings(recipe: Recipe) -> dict[str, Any]:
    # `path` and `general` count by the digests of the logs.
    privacy = {"mode": "off"}
    if recipe.privacy.mode != "off":
        privacy = section(recipe.privacy, {"retention"})
    return {"traffic": section(recipe.traffic, {"path", "general"}), "privacy": privacy}


def _sources(recipe: Recipe) -> dict[str, str]:
    digests = target_digest(recipe) | traffic_digests(recipe) | general_digests(recipe)
    key_file = recipe.privacy.key_file
    if key_file:
        digests["privacy.key_file"] = path_digest(Path(key_file).expanduser())
    return digests


INGEST = Stage(
    name="ingest",
    version=7,
    needs=(),
    settings=_settings,
    sources=_sources,
    work=_work,
    artifact=lambda run: run.sequences,
    identity=lambda run: run.sequences,
    handles_text=True,
)
