"""The evaluation of a speculator that Outrider does not compute itself: an EAGLE-3 head, n-grams, or no speculation.

    evaluate_counted(recipe="resume_screening", speculator=Speculator.named("ngram"), target=target, ...)

What exact replay and draft parity would say is not measured, and the verdict says so; it rests on what the engine counted and on the
clock, base and custom each on a server of their own. Everything else, the lossless checks among it, is as in evaluate.py.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outrider.common.fingerprint import value_digest
from outrider.data.sequences import Tables
from outrider.eval.bench.measure import serve
from outrider.eval.bench.metrics import counted_passes, noise_of, summarise
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
from outrider.eval.evaluate import check_settings
from outrider.eval.lossless.token_frequency_test import same_text
from outrider.eval.lossless.verification import examine_text, judge_tasks
from outrider.eval.report.drift import heldout_time
from outrider.eval.stats.bootstrap import bootstrap
from outrider.eval.summary import conclude
from outrider.serving.config import ServingConfig, TargetConfig
from outrider.serving.speculator import Speculator
from outrider.speculators.checkpoints.compatibility import check_speculator


def evaluate_counted(
    *,
    recipe: str,
    run_dir: Path,
    target: TargetConfig,
    base_dir: Path,
    speculator: Speculator,
    sequences_dir: Tables,
    parts: Mapping[str, list[str]],
    depth: int,
    serving: ServingConfig,
    evaluation: EvalConfig,
    out_dir: Path,
    report_dir: Path,
    log_dir: Path,
) -> dict[str, Any]:
    """Measures `speculator` against the base and against none on the held-out part; returns the line for scripts. `eval.k: auto`
    is `depth` here, for both: k is chosen by replay."""
    from outrider.data.sequences import load_sequences

    check_settings(evaluation, serving, parts, depth)
    target_dir = target.directory()
    if speculator.directory is not None:
        check_speculator(speculator.directory, target_dir)
    speculators = {"base": Speculator.named(base_dir), "custom": speculator}
    if base_dir != target_dir:
        check_speculator(base_dir, target_dir)
    context = EvaluationContext(
        recipe=recipe,
        target=target,
        serving=serving,
        settings=evaluation,
        depth=depth,
        speculators=speculators,
        data=EvaluationData(sequences_dir, parts),
        folders=EvaluationFolders(run_dir, out_dir, report_dir, log_dir),
    )
    weights, steps = context.weights, context.cache
    heldout = load_sequences(sequences_dir, parts["heldout"])
    k = depth if evaluation.k == "auto" else evaluation.k
    sampling = customers_sampling(heldout)
    prompts, timed_prompts = evaluation_prompts(heldout, evaluation, serving)
    # By rate, acceptance is accepted drafts over drafts: n-gram lookup drafts in some steps only.
    traffic = (
        []
        if speculator.speculates and not speculator.drafts_every_step
        else select(heldout, evaluation, serving)
    )

    def look(outputs: Mapping[str, Any]) -> dict[str, Any]:
        scratch = out_dir / "verification_states"
        return examine_text(
            outputs, prompts, target=target, serving=serving, evaluation=evaluation, scratch=scratch
        )

    requests = HeldoutRequests(sampling, prompts, timed_prompts, traffic)
    with context.open_servers() as servers, context.open_load() as load:
        measured = serve(context, servers, load, k, requests)
    blocks, outputs, noise = measured.blocks, measured.outputs, noise_of(measured.blocks)
    findings = steps.run("verification_findings", lambda: look(outputs))
    passes = {mode: _passes(measured) for mode, measured in blocks.items()}
    sampled = {v: (outputs["sampled"][v]["counters"], len(prompts)) for v in speculators}
    everything = [one for mode in passes.values() for one in mode] + [("verification", sampled)]
    results: dict[str, Any] = {
        "version": VERSION,
        "recipe": recipe,
        "run_dir": str(run_dir),
        "target": target.model,
        "speculator": {
            "kind": speculator.kind,
            "in_words": speculator.in_words,
            "weights_sha256": value_digest(weights) if weights else None,
        },
        "heldout_time": heldout_time(heldout),
        "not_measured": not_measured(speculator),
        "k": k,
        "choice": {
            "k": k,
            "k_per_batch_size": None,
            "acceptance_length": None,
            "step_ms": None,
            "source": "the recipe's speculator.depth"
            if evaluation.k == "auto"
            else "the recipe's eval.k",
            "requested": evaluation.k,
            "sequences": 0,
        },
        "sampling": {"temperature": sampling.temperature, "top_p": sampling.top_p},
        "draft_sample_method": serving.draft_sample_method,
        "own_text": None,
        "replay": None,
        "general": None,
        "interpolation": [],
        "slices": {},
        "counted": delivered_acceptance(everything, speculators, k, evaluation),
        "served": {
            mode: {
                "speed": summarise(measured, evaluation, noise),
                "acceptance": delivered_acceptance(passes[mode], speculators, k, evaluation),
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
            "parity": {},
            "replay_vs_engine": None,
            "same_text": same_text(outputs, evaluation),
            "task": judge_tasks(outputs, prompts, target, evaluation),
        },
        "predicted": {},
        "samples": None,
        "settings": evaluation.model_dump(mode="json"),
    }
    return conclude(results, evaluation, run_dir, out_dir, report_dir)


def not_measured(speculator: Speculator) -> dict[str, str]:
    """What the gate could not check, and why."""
    why = f"Outrider does not compute {speculator.in_words}"
    return {
        "exact replay": f"no exact replay of {speculator.in_words}: acceptance is the engine's count",
        "general traffic": f"no exact replay of {speculator.in_words}",
        "replay against engine": why,
        "drafts of trainer and engine": why,
    }


Pass = tuple[str, dict[str, tuple[Mapping[str, Any], int]]]
"""What passes with the same prompts are called, and per variant the engine's counters and how many responses there were."""


def delivered_acceptance(
    passes: Sequence[Pass], speculators: Mapping[str, Speculator], k: int, evaluation: EvalConfig
) -> dict[str, dict[str, Any]]:
    """Tokens a step for base, custom and their ratio, pooled over passes; the ratio's interval draws groups of passes with the same prompts.

    In the delivered form, (tokens - responses) / steps, since the counters' own does not compare here: n-gram lookup makes steps without a
    draft, which are not counted as drafts and deliver one token. So its steps are tokens less accepted drafts.
    """
    counts = {
        variant: [_steps(counters[variant], speculators[variant]) for _, counters in passes]
        for variant in speculators
    }
    result: dict[str, dict[str, Any]] = {}
    for variant in speculators:
        tokens, steps = np.sum(counts[variant], axis=0)
        counters = [each[variant][0] for _, each in passes]
        cumulative = np.zeros(k)
        for one in counters:
            reached = one["accepted_per_position"][:k]
            cumulative[: len(reached)] += reached
        result[variant] = {
            "acceptance_length": float(tokens / steps),
            "drafts": sum(one["drafts"] for one in counters),
            "accepted_tokens": sum(one["accepted_tokens"] for one in counters),
            "steps": int(steps),
            "cumulative": (cumulative / steps).tolist(),
        }
    result["ratio"] = bootstrap(
        np.concatenate([counts["base"], counts["custom"]], axis=1),
        [name for name, _ in passes],
        lambda s: (s[..., 2] / s[..., 3]) / (s[..., 0] / s[..., 1]),
        samples=evaluation.bootstrap_samples,
        seed=evaluation.seed,
    ).as_dict()
    return result


def _steps(counted: tuple[Mapping[str, Any], int], speculator: Speculator) -> tuple[int, int]:
    """Tokens after each response's first, and the steps that delivered them."""
    counters, responses = counted
    tokens = counters["generation_tokens"] - responses
    return tokens, counters["drafts"] if speculator.drafts_every_step else tokens - counters[
        "accepted_tokens"
    ]


def _passes(blocks: Sequence[Mapping[str, Any]]) -> list[Pass]:
    """The timed blocks, base and custom of one repeat and concurrency together."""
    responses = {(b["repeat"], b["concurrency"]): len(b["request_tokens"]) for b in blocks}
    named = dict(
        zip((one.prompts for one in counted_passes(blocks)), responses.values(), strict=True)
    )
    return [
        (
            one.prompts,
            {variant: (counters, named[one.prompts]) for variant, counters in one.counters.items()},
        )
        for one in counted_passes(blocks)
    ]
