"""Export: writes a speculator's bundle and verifies it in vLLM before publishing."""

import shutil
from pathlib import Path

from pydantic import BaseModel

from outrider.common.errors import OutriderError
from outrider.common.files import publish
from outrider.common.fingerprint import file_digest, value_digest
from outrider.common.json_forms import read_form
from outrider.eval.config import EXIT_CODES, SHIP
from outrider.eval.results.report import Report
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.retention import deletion_of
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import Options, Result, Stage
from outrider.pipeline.stages.sources import (
    evaluation_settings,
    parts_in_use,
    section_settings,
    target_digest,
)
from outrider.serving.bundle.bundle import export_bundle, speculation_profile, verify_bundle
from outrider.serving.client import Sampling
from outrider.serving.config import ServingConfig
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_version import vllm_version
from outrider.speculators.kinds import kind_named


def _work(run: RunDirectory, recipe: Recipe, options: Options) -> Result:
    """Publishes the bundle once vLLM has reproduced the evaluated acceptance length."""
    results = Report.read(run.root / "report.json")
    verdict = results.verdict
    # Also checked here: an export alone (`--stages export`, `outrider export`) comes past it.
    if verdict.verdict != SHIP and not options.get("force"):
        raise OutriderError(
            f"not exported, the verdict is `{verdict.verdict}`: {verdict.reason}; to export"
            " anyway: --force",
            exit_code=EXIT_CODES[verdict.verdict],
        )
    unverified = run.root / "bundle.unverified"
    evidence = _evidence(run, recipe, results)
    profile = _profile(run, recipe, results)
    _write(run, recipe, results, evidence=evidence, profile=profile, to=str(unverified))
    verification = None
    if recipe.export.tolerance is not None:
        verification = _verify(
            run=run,
            recipe=recipe,
            bundle=unverified,
            results=results,
            tolerance=recipe.export.tolerance,
        )
    # Moved only after vLLM has served it, so that run.bundle is always a verified one.
    with publish(run.bundle) as temporary:
        shutil.move(unverified, temporary)
    return {"bundle": str(run.bundle), "verification": verification}


def _write(
    run: RunDirectory,
    recipe: Recipe,
    results: Report,
    *,
    evidence: dict[str, object],
    profile: dict[str, object],
    to: str,
) -> None:
    """Writes the bundle of the evaluated speculator."""
    speculator = _evaluated(run, results)
    schedule = _schedule(results)
    longest = results.choice.k.custom
    if schedule is not None:
        longest = max(longest, *(k for _, _, k in schedule))
    draft_sample_method = recipe.speculator.draft_sample_method
    drafting = Drafting(speculator, longest, draft_sample_method, schedule)
    # K was chosen in this mode.
    engine = recipe.serving.engine.model_copy(update={"mode": recipe.eval.engine_modes[0]})
    formats = recipe.export.other_formats
    export_bundle(
        drafting=drafting,
        target=recipe.target,
        engine=engine,
        evidence=evidence,
        out_dir=to,
        other_formats=formats,
        profile=profile,
    )


def _evaluated(run: RunDirectory, results: Report) -> Speculator:
    """The evaluated speculator: a directory of weights, or a lookup with its history."""
    from outrider.eval.lookups import lookup_folder

    identity = results.speculator
    if kind_named(identity.kind).has_weights:
        return Speculator.from_name(run.speculator)
    folder = None
    if identity.history is not None:
        folder = lookup_folder(run.evaluation, identity.kind)
        if not folder.is_dir():
            raise OutriderError(
                f"{folder}: the history of {identity.kind} lookup was deleted"
                f" ({deletion_of(run, folder) or 'by hand'}); run `outrider eval` again"
            )
    return Speculator(identity.kind, folder, identity.settings)


def _schedule(results: Report) -> list[tuple[int, int, int]] | None:
    """Rows of (first batch size, last batch size, k), as evaluated; None for a fixed k."""
    if not results.by_batch_size:
        return None
    schedules = results.choice.k_per_batch_size
    if schedules is None:
        raise OutriderError(
            "export.k_per_batch_size: true, but eval.k was set by hand, so the best k for each "
            "batch size is unknown; set eval.k: auto, or export.k_per_batch_size: false"
        )
    return schedules.custom


def _evidence(run: RunDirectory, recipe: Recipe, results: Report) -> dict[str, object]:
    from outrider.eval.summary import report_summary

    judged = report_summary(results)
    keys = ("verdict", "reason", "k", "acceptance_length", "tokens_per_s", "replay_vs_engine")
    schedules = results.choice.k_per_batch_size
    return {
        "k_per_batch_size": None if schedules is None else schedules.custom,
        "recipe": recipe.name,
        "recipe_sha256": value_digest(recipe.model_dump(mode="json")),
        "report_sha256": file_digest(run.root / "report.json"),
        **{name: judged[name] for name in keys},
    }


class _Times(BaseModel):
    hours: float


class _Traffic(BaseModel):
    """What is read of the log's summary."""

    time: _Times | None


def _profile(run: RunDirectory, recipe: Recipe, results: Report) -> dict[str, object]:
    """Acceptance by position from exact replay, else from vLLM's counters."""
    replay = results.replay
    # Replay has intervals and every K; the counters are for kinds that cannot be replayed.
    counted = results.counted.custom
    lengths = dict(enumerate(replay.by_k["custom"], start=1)) if replay else {}
    traffic = run.traffic / "summary.json"
    fix = "delete it and rerun the command to repeat ingest"
    times = read_form(_Traffic, traffic, fix).time if traffic.is_file() else None
    conditions = {
        "source": "exact replay of held-out traffic" if replay else "vLLM's counters",
        "responses": results.acceptance_ratio.observations,
        "over": results.acceptance_ratio.over,
        "traffic_days": times and round(times.hours / 24, 2),
        **results.sampling.model_dump(),
        "draft_sample_method": results.draft_sample_method,
        "engine": f"vLLM {vllm_version()}",
    }
    return speculation_profile(
        method=results.speculator.kind,
        target=recipe.target,
        marginal=replay.cumulative["custom"] if replay else counted.cumulative,
        intervals=replay.cumulative_ci95 if replay else [None] * len(counted.cumulative),
        lengths=lengths or {results.choice.k.custom: counted.acceptance_length},
        depth=max(recipe.speculator.depth, results.choice.k.custom),  # a lookup has no depth
        conditions=conditions,
    )


def _verify(
    run: RunDirectory, recipe: Recipe, bundle: Path, results: Report, tolerance: float
) -> dict[str, object]:
    """Serves the bundle and compares its greedy acceptance with the evaluated one."""
    from outrider.data.sequences import load_sequences
    from outrider.eval.bench.prompts import evaluation_prompts
    from outrider.eval.bench.request_fields import request_fields
    from outrider.eval.lookups import separates_tenants

    mode = recipe.eval.engine_modes[0]
    serving = ServingConfig(engine=recipe.serving.engine.model_copy(update={"mode": mode}))
    heldout = load_sequences(run.sequences, parts_in_use(run)["heldout"])
    prompts, _ = evaluation_prompts(heldout, evaluation_settings(run, recipe), serving)
    salted = separates_tenants([Speculator.from_name(bundle)])
    fields = request_fields(heldout, recipe.target, serving.engine, salted=salted)
    expected = results.verification.modes[mode].greedy_acceptance_length.custom
    if expected is None:
        raise OutriderError(
            f"{run.evaluation}: the evaluated speculator drafted nothing, so the bundle cannot be "
            "compared with an acceptance length; set export.tolerance: null"
        )
    return verify_bundle(
        location=bundle,
        target=recipe.target,
        engine=serving.engine,
        prompts=[prompt.token_ids for prompt in prompts],
        fields=[fields.get(prompt.text, {}) for prompt in prompts],
        sampling=Sampling(temperature=0.0, top_p=1.0),
        max_tokens=recipe.eval.verification_max_tokens,
        expected=expected,
        tolerance=tolerance,
        log_path=run.attempt() / "export.server.log",
        concurrency=1 if results.by_batch_size else serving.engine.seats,
        # The evaluation was verified with this k; a schedule may use another for a single request.
        k=results.choice.k.custom,
    )


EXPORT = Stage(
    name="export",
    version=4,
    needs=("evaluate",),
    settings=lambda recipe: {
        "export": section_settings(recipe.export),
        "serving": section_settings(recipe.serving, {"ignored_flags", "production_release"}),
        "speculator": {"draft_sample_method": recipe.speculator.draft_sample_method},
    },
    sources=target_digest,
    work=_work,
    reads=lambda run: (run.sequences, run.root / "report.json"),
    artifact=lambda run: run.bundle / "bundle.json",
    identity=lambda run: run.bundle / "bundle.json",
    options=("force",),
    starts_engines=True,
)
