"""Export: the bundle of an evaluated speculator, loaded in vLLM as an endpoint would load it before anyone may have it.

deliver(run, recipe, force=False)                   # runs/NAME/bundle, verified
copy_bundle(run, recipe, "s3://bucket/prefix")      # the same where an endpoint finds it
"""

import shutil
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import file_digest, publish, read_json, value_digest
from outrider.data.ingest.stores import answering
from outrider.eval.config import EXIT_CODES, SHIP
from outrider.recipes.config.recipe import Recipe
from outrider.recipes.pipeline.run_dir import RunDirectory
from outrider.serving.bundle import export_bundle


class NotShipped(OutriderError):
    """The evaluation does not allow the export."""

    def __init__(self, verdict: str, reason: str) -> None:
        super().__init__(
            f"not exported, the verdict is `{verdict}`: {reason}; --force exports it all the same"
        )
        self.exit_code = EXIT_CODES[verdict]


def deliver(run: RunDirectory, recipe: Recipe, force: bool) -> dict[str, Any]:
    """Writes runs/NAME/bundle once it has shown the evaluated acceptance length in vLLM; then copies it to `export.to`."""
    judged = run.read_record("evaluate")["result"]
    if judged["verdict"] != SHIP and not force:
        raise NotShipped(judged["verdict"], judged["reason"])
    unverified = run.root / "bundle.unverified"
    _write(run, recipe, _evidence(run, recipe, judged), str(unverified))
    verification = _verify(run, recipe, unverified) if recipe.export.verify else None
    with publish(run.bundle) as temporary:
        shutil.move(unverified, temporary)
    copied = copy_bundle(run, recipe, recipe.export.to) if recipe.export.to else None
    return {"bundle": str(run.bundle), "verification": verification, "copied_to": copied}


def copy_bundle(run: RunDirectory, recipe: Recipe, to: str) -> str:
    """Writes the exported bundle to a directory or an fsspec URL as well, and returns where."""
    with answering(f"export to {to}"):
        _write(run, recipe, read_json(run.bundle / "bundle.json")["evidence"], to)
    return to


def _write(run: RunDirectory, recipe: Recipe, evidence: dict[str, Any], to: str) -> None:
    k, schedule = evidence["acceptance_length"]["k"], _schedule(recipe, evidence)
    export_bundle(
        speculator_dir=run.speculator,
        target=recipe.target,
        serving=recipe.serving,
        k=max([k, *(best for _, _, best in schedule or [])]),
        k_per_batch_size=schedule,
        evidence=evidence,
        out_dir=to,
    )


def _schedule(recipe: Recipe, evidence: dict[str, Any]) -> list[tuple[int, int, int]] | None:
    """(first batch size, last, k) as the bundle shall serve; None: one k."""
    if not recipe.export.k_per_batch_size:
        return None
    ranges = evidence["k_per_batch_size"]
    if ranges is None:
        raise OutriderError(
            "export.k_per_batch_size: true, but eval.k was set by hand, so no k was found for each batch size; set eval.k: auto, or "
            "export.k_per_batch_size: false"
        )
    return [tuple(row) for row in ranges]


def _evidence(run: RunDirectory, recipe: Recipe, judged: dict[str, Any]) -> dict[str, Any]:
    kept = ("verdict", "reason", "acceptance_length", "tokens_per_s", "replay_vs_engine")
    choice = read_json(run.root / "report.json")["choice"]
    return {
        "k_per_batch_size": choice["k_per_batch_size"],
        "recipe": recipe.name,
        "recipe_sha256": value_digest(recipe.model_dump(mode="json")),
        "report_sha256": file_digest(run.root / "report.json"),
        **{name: judged[name] for name in kept},
    }


def _verify(run: RunDirectory, recipe: Recipe, bundle: Any) -> dict[str, Any]:
    """Serves the bundle to the evaluation's own verification prompts, greedily, in the engine mode in which those ran."""
    from outrider.data.on_policy.quarantine import load_parts
    from outrider.data.sequences import load_sequences
    from outrider.eval.bench.prompts import evaluation_prompts
    from outrider.serving.bundle import verify_bundle
    from outrider.serving.client import Sampling

    heldout = load_sequences(run.sequences, load_parts(run.split, run.features)["heldout"])
    prompts, _ = evaluation_prompts(heldout, recipe.eval, recipe.serving)
    outputs = read_json(run.evaluation / "steps" / "verification_outputs.json")["result"]
    counted = outputs["greedy"]["custom"]["counters"]
    engine = recipe.serving.engine.model_copy(update={"mode": recipe.eval.engine_modes[0]})
    return verify_bundle(
        bundle,
        recipe.target,
        recipe.serving.model_copy(update={"engine": engine}),
        [prompt.token_ids for prompt in prompts],
        Sampling(temperature=0.0, top_p=1.0),
        recipe.eval.verification_max_tokens,
        expected=1 + counted["accepted_tokens"] / counted["drafts"],
        tolerance=recipe.export.tolerance,
        log_path=run.attempt() / "export.server.log",
        # Drafting by batch size, the evaluated k is the one of a request alone.
        concurrency=1 if recipe.export.k_per_batch_size else engine.max_num_seqs,
    )
