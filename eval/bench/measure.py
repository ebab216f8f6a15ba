"""What every evaluation does with the engine: timed blocks and the verification pass, each kept as a step, in servers of every mode.

blocks, verification = serve(steps, target, serving, speculators, k, evaluation, sampling, prompts, timed_prompts, traffic, ...)
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.eval.bench.closed_loop import measure
from outrider.eval.bench.measurement_cache import Steps
from outrider.eval.bench.open_loop import measure_rates, rates_done
from outrider.eval.bench.scenarios import Traffic
from outrider.eval.bench.server_pool import open_fleet
from outrider.eval.config import EvalConfig
from outrider.eval.lossless.task_accuracy import task_of
from outrider.eval.lossless.token_frequency_test import same_tokens
from outrider.eval.lossless.verification import Prompt, collect
from outrider.serving.client import Sampling
from outrider.serving.config import ServingConfig, TargetConfig
from outrider.serving.speculator import Speculator

VERSION = 7
"""Of the measurements: raise it when the same settings measure something else."""

JUDGED_ANEW = {
    "gate": True,
    "cost": True,
    "interpolation": True,
    "bootstrap_samples": True,
    "task": True,
    "answers": True,
    "parity": {"min_agreement", "max_difference"},
}
"""Settings that change what is made of the measurements, not the measurements."""


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


def serve(
    steps: Steps,
    target: TargetConfig,
    serving: ServingConfig,
    speculators: Mapping[str, Speculator | Path],
    k: int,
    evaluation: EvalConfig,
    sampling: Sampling,
    verification_prompts: list[Prompt],
    timed_prompts: list[Prompt],
    traffic: list[Traffic],
    log_dir: Path,
    say: Callable[[str], None],
    look: Callable[[dict[str, Any]], dict[str, Any]],
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """Timed blocks per engine mode, and the verification pass in the first mode: its outputs, and what `look` finds in them once the servers
    have ended. Servers start only for what is not measured yet."""
    from outrider.serving.load_generator import LoadGenerator

    blocks = {}
    for mode in evaluation.engine_modes:
        speed = f"speed_{mode}"
        verify = mode == evaluation.engine_modes[0] and not steps.done("verification_outputs")
        rates = not rates_done(steps, mode, traffic, evaluation)
        if verify or rates or not steps.done(speed):
            say(f"{mode}: starting servers")
            with open_fleet(
                target, serving, speculators, k, mode, log_dir, evaluation.side_by_side
            ) as fleet:
                if verify:
                    longest, widest = (
                        evaluation.verification_max_tokens,
                        serving.engine.max_num_seqs,
                    )
                    outputs = collect(fleet, verification_prompts, sampling, longest, widest, say)
                    steps.put("verification_outputs", outputs)
                if rates or not steps.done(speed):
                    with LoadGenerator(target, log_dir / "load.log") as load:
                        if not steps.done(speed):
                            texts = [prompt.text for prompt in timed_prompts]
                            steps.put(speed, measure(fleet, load, texts, sampling, evaluation, say))
                        measure_rates(steps, fleet, load, mode, traffic, sampling, evaluation, say)
        blocks[mode] = steps.get(speed)
    outputs = steps.get("verification_outputs")
    return blocks, {
        "outputs": outputs,
        "findings": steps.run("verification_findings", lambda: look(outputs)),
    }


def same_text(outputs: dict[str, Any], evaluation: EvalConfig) -> dict[str, Any]:
    """The permutation test of base and custom against none, on the sampled responses."""
    sampled = {variant: recorded["token_ids"] for variant, recorded in outputs["sampled"].items()}
    samples, seed = (
        max(evaluation.bootstrap_samples, round(2 / (evaluation.gate.min_same_text_p or 1))),
        evaluation.seed,
    )
    return {
        variant: same_tokens(sampled["none"], sampled[variant], samples=samples, seed=seed)
        for variant in ("base", "custom")
    }
