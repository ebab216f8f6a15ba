"""Speed at a synthetic acceptance profile against the throughput simulator.

vLLM's synthetic rejection sampler (GPU only) accepts by chosen rates. Step times come from one
profile, the speed at another is predicted from them and measured. On a CPU the simulator is
compared with a literal loop over steps.
"""

import time
from pathlib import Path
from typing import Any

from outrider.pipeline.gpu_check.check import CheckFailed, Figures
from outrider.pipeline.gpu_check.inputs import TARGET, K, engine_config, logged_prompts

PROFILES = {"high": [0.9, 0.8, 0.7, 0.6], "low": [0.5, 0.25, 0.12, 0.06]}
"""Unconditional acceptance rates by draft position."""
CONCURRENCY = (1, 8)
TOKENS = 256
REPEATS = 4
LARGEST = 0.1
"""Largest relative difference of predicted and measured seconds."""
LARGEST_COUNT = 0.05
"""Largest relative difference of chosen and counted acceptance length."""


def on_gpu(folder: Path) -> Figures:
    """Step times at the high profile predict the low one's seconds."""
    from outrider.eval.prediction.throughput_simulator import closed_loop_seconds
    from outrider.serving.step_times import StepCosts

    high, low = ({size: s for size, s in _served(rates)} for rates in PROFILES.values())
    lengths = {name: 1 + sum(rates) for name, rates in PROFILES.items()}
    step_s = {size: seconds / (TOKENS / lengths["high"]) for size, seconds in high.items()}
    figures: Figures = {}
    for size, measured in low.items():
        steps = [TOKENS / lengths["low"]] * size
        predicted = closed_loop_seconds(steps, size, StepCosts(step_s, 0.0), 0.0)
        figures[f"predicted_over_measured_{size}"] = predicted / measured
        figures[f"tokens_per_s_{size}"] = size * TOKENS / measured
        if abs(predicted / measured - 1) > LARGEST:
            raise CheckFailed(
                f"{size} requests: {predicted:.2f} s predicted, {measured:.2f} s measured"
            )
    return figures


def _served(rates: list[float]) -> list[tuple[int, float]]:
    """(requests at once, seconds until all have their tokens) at a profile."""
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    from outrider.serving.engine import engine_arguments

    arguments = engine_arguments(TARGET, engine_config(True), TARGET.directory(), K)
    arguments["speculative_config"] |= {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": rates,
    }
    llm = LLM(**arguments)
    sampling = SamplingParams(
        temperature=0.6, max_tokens=TOKENS + 1, ignore_eos=True, detokenize=False
    )
    found = []
    try:
        for size in CONCURRENCY:
            prompts = [TokensPrompt(prompt_token_ids=ids) for ids in logged_prompts(size)]
            llm.generate(prompts, sampling, use_tqdm=False)  # warm-up
            before = _counts(llm)
            seconds = 0.0
            for _ in range(REPEATS):
                began = time.monotonic()
                llm.generate(prompts, sampling, use_tqdm=False)
                seconds += (time.monotonic() - began) / REPEATS
            drafts, accepted = (n - t for n, t in zip(_counts(llm), before, strict=True))
            counted, chosen = 1 + accepted / drafts, 1 + sum(rates)
            if abs(counted / chosen - 1) > LARGEST_COUNT:
                raise CheckFailed(f"acceptance length {counted:.3f} counted, {chosen:.3f} chosen")
            found.append((size, seconds))
    finally:
        llm.llm_engine.engine_core.shutdown(timeout=20.0)
    return found


def _counts(llm: Any) -> tuple[float, float]:
    """The engine's drafts and accepted tokens since its start."""
    sums = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    return (
        sums.get("vllm:spec_decode_num_drafts", 0),
        sums.get("vllm:spec_decode_num_accepted_tokens", 0),
    )


def on_cpu(folder: Path) -> Figures:
    """The simulator against one step after another, for requests of equal arrival."""
    import numpy as np

    from outrider.eval.prediction.throughput_simulator import closed_loop_seconds
    from outrider.serving.step_times import StepCosts

    costs = StepCosts({1: 0.02, 8: 0.034}, 0.0)
    random = np.random.default_rng(0)
    rates = np.asarray(PROFILES["low"])
    conditional = rates / np.concatenate([[1.0], rates[:-1]])
    worst = 0.0
    for size in CONCURRENCY:
        steps = []
        for _ in range(size):
            tokens = count = 0
            while tokens < TOKENS:
                tokens += 1 + int(np.cumprod(random.random(K) < conditional).sum())
                count += 1
            steps.append(count)
        literal = costs.seconds(size)  # the step that delivers every request's first token
        for step in range(max(steps)):
            literal += costs.seconds(sum(count > step for count in steps))
        worst = max(worst, abs(closed_loop_seconds(steps, size, costs, 0.0) / literal - 1))
    if worst > 1e-9:
        raise CheckFailed(f"the simulator differs from a literal loop by {worst:.1e}")
    mean = 1 + float((random.random((20000, K)) < conditional).cumprod(1).sum(1).mean())
    return {"largest_difference": worst, "drawn_over_chosen": mean / (1 + rates.sum())}
