"""The evaluation from end to end: choose k, replay, serve, verify, judge, report.

    evaluate(recipe="resume_screening", run_dir=run, target=target, speculator_dir=run / "speculator", ...)

Leaves `results.json` (everything, for machines), the report, and the servers' logs. Each measurement is kept as a step on its own, so an
interrupted evaluation goes on; what is computed from them (intervals, verdict, report) is made anew each time.
"""

import random
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.fingerprint import value_digest
from outrider.data.sequences import Tables
from outrider.eval.bench.measure import serve
from outrider.eval.bench.metrics import (
    CountedPass,
    counted_acceptance,
    counted_passes,
    noise_of,
    summarise,
)
from outrider.eval.bench.open_loop import summarise_rates
from outrider.eval.bench.prompts import customers_sampling, evaluation_prompts
from outrider.eval.bench.scenarios import select
from outrider.eval.config import EvalConfig
from outrider.eval.context import (
    VERSION,
    EvaluationContext,
    EvaluationData,
    EvaluationFolders,
    HeldoutRequests,
)
from outrider.eval.lossless.task_accuracy import task_of
from outrider.eval.lossless.token_frequency_test import same_text
from outrider.eval.lossless.verification import examine, judge_tasks
from outrider.eval.prediction.choose_k import choose, recipe_times
from outrider.eval.prediction.predicted import predict_served
from outrider.eval.replay.example_traces import sample_responses
from outrider.eval.replay.on_policy_check import own_text
from outrider.eval.replay.replay import ReplaySums, compare, replay
from outrider.eval.replay.slices import Slices, by_prompt_length, sliced
from outrider.eval.replay.weight_interpolation import sweep
from outrider.eval.report.drift import heldout_time
from outrider.eval.summary import conclude
from outrider.serving.config import ServingConfig, TargetConfig
from outrider.serving.speculator import Speculator
from outrider.speculators.checkpoints.compatibility import check_speculator
from outrider.speculators.checkpoints.interpolate import interpolate

MIXTURE = "mixture "
"""Of base and custom, by the custom one's share: the name of its replays."""


def evaluate(
    *,
    recipe: str,
    run_dir: Path,
    target: TargetConfig,
    base_dir: Path,
    speculator_dir: Path,
    features_dir: Path,
    sequences_dir: Tables,
    parts: Mapping[str, list[str]],
    slices: Slices,
    depth: int,
    serving: ServingConfig,
    evaluation: EvalConfig,
    out_dir: Path,
    report_dir: Path,
    log_dir: Path,
    show_samples: bool = False,
) -> dict[str, Any]:
    """Measures `speculator_dir` against the base, the speculator in use, and against none; returns the line for scripts.

    `parts` names the sequences of the validation part (k is chosen there), of the held-out part (everything else is measured there) and,
    where the recipe has general traffic, of its part, on which it is measured what was forgotten. `slices` are the split's, by which acceptance is broken down.
    `show_samples` puts example responses, customer text, into results and report.
    """
    from outrider.data.features.feature_store import FeatureStore
    from outrider.data.sequences import load_sequences

    check_settings(evaluation, serving, parts, depth)
    target_dir = target.directory()
    check_speculator(speculator_dir, target_dir)
    speculators = {"base": base_dir, "custom": Path(speculator_dir)}
    if base_dir != target_dir:
        check_speculator(base_dir, target_dir)
    context = EvaluationContext(
        recipe=recipe,
        target=target,
        serving=serving,
        settings=evaluation,
        depth=depth,
        speculators={v: Speculator.named(path) for v, path in speculators.items()},
        data=EvaluationData(sequences_dir, parts, features_dir, slices),
        folders=EvaluationFolders(run_dir, out_dir, report_dir, log_dir),
        show_samples=show_samples,
    )
    say, weights, steps = context.say, context.weights, context.cache
    store = FeatureStore.open(features_dir)
    heldout = load_sequences(sequences_dir, parts["heldout"])
    traffic = select(heldout, evaluation, serving)

    def replayed(part: str, ids: list[str], variant: str) -> ReplaySums:
        def work() -> dict[str, Any]:
            begin = time.monotonic()
            sums = replay(
                speculators.get(variant) or mixture(variant),
                target_dir,
                store,
                load_sequences(sequences_dir, ids).select_columns(
                    ["sequence_id", "session", "temperature", "top_p"]
                ),
                depth,
                serving.draft_sample_method,
                dtype=evaluation.replay_dtype,
                by_region=part == "heldout",
            )
            seconds = time.monotonic() - begin
            say(f"exact replay, {part}, {variant}: {len(ids)} sequences in {seconds:.0f} s")
            return {"sums": sums.as_dict(), "seconds": seconds}

        return ReplaySums.from_dict(steps.run(f"replay_{part}_{variant}", work)["sums"])

    def mixture(variant: str) -> Path:
        directory = out_dir / "mixtures" / variant
        if not directory.is_dir():
            interpolate(base_dir, speculator_dir, float(variant.removeprefix(MIXTURE)), directory)
        return directory

    with context.open_servers() as servers, context.open_load() as load:
        if times_steps(context):
            servers.fleet(evaluation.engine_modes[0])  # they start while replay runs
            load.start()
        replay_ids = _subset(parts["heldout"], evaluation)
        base, custom = (replayed("heldout", replay_ids, variant) for variant in ("base", "custom"))
        validation = replayed("validation", parts["validation"], "custom")
        sampling = customers_sampling(heldout)
        verification_prompts, timed_prompts = evaluation_prompts(heldout, evaluation, serving)
        choice, times = choose(
            steps,
            serving,
            depth,
            evaluation,
            sampling,
            [prompt.text for prompt in timed_prompts],
            validation.acceptance_length(),
            servers.fleet,
            load,
            say,
        )
        k = choice["k"]
        say(f"k = {k}")

        part_ids, base_of, general = {"heldout": replay_ids}, {"heldout": base}, None
        if general_ids := _subset(parts.get("general", []), evaluation):
            part_ids["general"], base_of["general"] = (
                general_ids,
                replayed("general", general_ids, "base"),
            )
            general = _replay_results(
                base_of["general"], replayed("general", general_ids, "custom"), k, evaluation
            )
        swept = sweep(
            evaluation,
            k,
            base_of,
            lambda share, part: replayed(part, part_ids[part], f"{MIXTURE}{share:g}"),
        )
        shutil.rmtree(out_dir / "mixtures", ignore_errors=True)

        def look(outputs: dict[str, Any]) -> dict[str, Any]:
            return examine(
                outputs,
                verification_prompts,
                target=target,
                serving=serving,
                speculators=speculators,
                k=k,
                depth=depth,
                evaluation=evaluation,
                scratch=out_dir / "verification_states",
            )

        requests = HeldoutRequests(sampling, verification_prompts, timed_prompts, traffic)
        measured = serve(context, servers, load, k, requests)
        blocks, outputs = measured.blocks, measured.outputs
    findings = steps.run("verification_findings", lambda: look(outputs))
    noise = noise_of(blocks)
    passes = {mode: counted_passes(measured) for mode, measured in blocks.items()}
    sampled = {v: outputs["sampled"][v]["counters"] for v in ("base", "custom")}
    everything = [one for mode in passes.values() for one in mode] + [
        CountedPass("verification", sampled)
    ]
    results: dict[str, Any] = {
        "version": VERSION,
        "recipe": recipe,
        "run_dir": str(run_dir),
        "target": target.model,
        "speculator": {
            "kind": Speculator.named(speculator_dir).kind,
            "in_words": Speculator.named(speculator_dir).in_words,
            "weights_sha256": value_digest(weights),
        },
        "heldout_time": heldout_time(heldout),
        "k": k,
        "choice": {**choice, "requested": evaluation.k, "sequences": len(validation.sequence_ids)},
        "sampling": {"temperature": sampling.temperature, "top_p": sampling.top_p},
        "draft_sample_method": serving.draft_sample_method,
        "not_measured": {},
        "own_text": own_text(store, heldout),
        "replay": _replay_results(base, custom, k, evaluation),
        "general": general,
        "interpolation": swept,
        "slices": _sliced(base, custom, k, slices, heldout, evaluation),
        "counted": counted_acceptance(everything, evaluation),
        "served": {
            mode: {
                "speed": summarise(measured, evaluation, noise),
                "acceptance": counted_acceptance(passes[mode], evaluation),
            }
            for mode, measured in blocks.items()
        },
        "rates": {
            mode: summarise_rates(steps, mode, traffic, evaluation, noise)
            for mode in blocks
            if traffic
        },
        "scenarios": {asked.name: asked.described for asked in traffic},
        "verification": {
            **findings,
            "same_text": same_text(outputs, evaluation),
        },
        "settings": evaluation.model_dump(mode="json"),
    }
    prompt_tokens = sum(len(prompt.token_ids) for prompt in timed_prompts) / len(timed_prompts)
    timed = {evaluation.engine_modes[0]: times}
    results["predicted"] = {
        mode: predict_served(
            served["speed"],
            blocks[mode],
            k,
            {"base": base, "custom": custom},
            timed.get(mode),
            prompt_tokens,
        )
        for mode, served in results["served"].items()
    }
    results["verification"]["task"] = judge_tasks(outputs, verification_prompts, target, evaluation)
    results["samples"] = None
    if show_samples:
        results["samples"] = steps.run(
            "samples",
            lambda: sample_responses(
                base, custom, k, speculators, target_dir, store, evaluation.replay_dtype
            ),
        )
    return conclude(results, evaluation, run_dir, out_dir, report_dir, private=show_samples)


def check_settings(
    evaluation: EvalConfig, serving: ServingConfig, parts: Mapping[str, list[str]], depth: int
) -> None:
    """Mistakes that would show only when the servers have been started, or after."""
    task_of(evaluation)
    widest, seats = max(evaluation.concurrency), serving.engine.max_num_seqs
    if widest > seats:
        raise OutriderError(
            f"eval.concurrency has {widest}, but serving.engine.max_num_seqs is {seats}: requests would queue, and the queue be measured; "
            f"raise serving.engine.max_num_seqs to {widest} or lower eval.concurrency"
        )
    if evaluation.k != "auto" and evaluation.k > depth:
        raise OutriderError(
            f"eval.k = {evaluation.k}, but the speculator was trained to speculator.depth = {depth}; lower eval.k"
        )
    for name in ("validation", "heldout"):
        if not parts[name]:
            raise OutriderError(
                f"evaluate: the {name} part has no sequence; raise split.{name}_fraction or bring more traffic"
            )


def times_steps(context: EvaluationContext) -> bool:
    """Whether steps have to be timed to choose k."""
    return (
        context.settings.k == "auto"
        and recipe_times(context.serving, context.depth) is None
        and not context.cache.done("step_times")
    )


def _subset(ids: list[str], evaluation: EvalConfig) -> list[str]:
    if evaluation.replay_sequences is None or evaluation.replay_sequences >= len(ids):
        return ids
    return sorted(
        random.Random(evaluation.seed).sample(ids, evaluation.replay_sequences), key=ids.index
    )


def _sliced(
    base: ReplaySums,
    custom: ReplaySums,
    k: int,
    slices: Slices,
    heldout: Any,
    evaluation: EvalConfig,
) -> dict[str, Any]:
    starts = dict(zip(heldout["sequence_id"], heldout["completion_start"], strict=True))
    everything = {**slices, "prompt length": by_prompt_length(starts)}
    return sliced(
        base, custom, k, everything, samples=evaluation.bootstrap_samples, seed=evaluation.seed
    )


def _replay_results(
    base: ReplaySums, custom: ReplaySums, k: int, evaluation: EvalConfig
) -> dict[str, Any]:
    estimates = compare(base, custom, k, samples=evaluation.bootstrap_samples, seed=evaluation.seed)
    lengths = {"base": base.acceptance_length(), "custom": custom.acceptance_length()}
    return {
        **{name: estimate.as_dict() for name, estimate in estimates.items()},
        "sequences": len(base.sequence_ids),
        "sessions": len(set(base.sessions)),
        "tokens": int(base.tokens_R.sum()),
        "by_k": lengths,
        "cumulative": {"base": base.cumulative(k), "custom": custom.cumulative(k)},
        "conditional": {"base": base.conditional(k), "custom": custom.conditional(k)},
    }
