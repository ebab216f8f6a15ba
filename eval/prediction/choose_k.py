"""How many tokens to draft: the k of the most tokens a second, for every batch size, from the validation part and the engine's steps.

A step of B requests that drafts k tokens takes T(k, B) seconds (`serving/step_times.py`) and delivers AL(k) tokens for each, so

    tokens/s (k, B) = B AL(k) / T(k, B)

T(0, B) is the target's own step.

    choose_k(acceptance_length=[1.8, 2.4, 2.8, 3.0], step_s={1: [...], 8: [...]})["k"]
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outrider.eval.bench.measurement_cache import Steps
from outrider.eval.bench.server_pool import Fleet
from outrider.eval.bench.step_timing import time_steps
from outrider.eval.config import EvalConfig
from outrider.serving.client import Sampling
from outrider.serving.config import ServingConfig
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.step_times import StepTimes


def choose(
    steps: Steps,
    serving: ServingConfig,
    depth: int,
    evaluation: EvalConfig,
    sampling: Sampling,
    texts: Sequence[str],
    acceptance_length: Sequence[float],
    open_fleet: Callable[[str], Fleet],
    load: LoadGenerator,
    say: Callable[[str], None],
) -> tuple[dict[str, Any], StepTimes | None]:
    """The choice as the recipe wants it, and the step times where they were measured. `texts` are rendered prompts to time steps with,
    `acceptance_length` is the validation part's, for 1..depth drafts."""
    if evaluation.k != "auto":
        none = {"k_per_batch_size": None, "step_ms": None, "source": "the recipe's eval.k"}
        return {"k": evaluation.k, "acceptance_length": list(acceptance_length), **none}, None
    if named := recipe_times(serving, depth):
        return {**choose_k(acceptance_length, named), "source": "the recipe's times"}, None
    mode, sizes = evaluation.engine_modes[0], evaluation.concurrency

    def measured() -> dict[str, Any]:
        say(f"timing the {mode} engine's steps, up to {depth} drafts")
        longest = evaluation.max_tokens
        fleet = open_fleet(mode)
        return time_steps(fleet, load, depth, sizes, texts, sampling, longest).as_dict()

    times = StepTimes.from_dict(steps.run("step_times", measured))
    none, drafting = times.prompt_token_s
    return {
        **choose_k(acceptance_length, times.step_s),
        "prompt_token_ms": {"none": 1000 * none, "drafting": 1000 * drafting},
        "source": f"steps of the {mode} engine, timed",
    }, times


def recipe_times(serving: ServingConfig, depth: int) -> dict[int, list[float]] | None:
    """T(k, 1) in seconds for k = 0..depth from the times that the recipe names; None where it names none."""
    times = (serving.target_step_ms, serving.draft_step_ms, serving.fixed_step_ms)
    if None in times:
        return None
    target, draft, fixed = times
    return {1: [(target + fixed + draft * k) / 1000 for k in range(depth + 1)]}


def choose_k(
    acceptance_length: Sequence[float], step_s: Mapping[int, Sequence[float]]
) -> dict[str, Any]:
    """`acceptance_length[k - 1]` of k = 1..K drafts, `step_s[B][k]` of k = 0..K. The best k at the smallest batch size, the best for each
    range of batch sizes, and what they were chosen from; the smaller k where two promise the same. A range ends at a size that was measured; beyond the last, its k holds."""
    speeds = {
        size: [
            size * length / seconds
            for length, seconds in zip(acceptance_length, step_s[size][1:], strict=True)
        ]
        for size in sorted(step_s)
    }
    best = {size: 1 + values.index(max(values)) for size, values in speeds.items()}
    ranges, first = [], 1
    for size, k in best.items():
        if ranges and ranges[-1][2] == k:
            ranges[-1][1] = size
        else:
            ranges.append([first, size, k])
        first = size + 1
    return {
        "k": next(iter(best.values())),
        "k_per_batch_size": ranges,
        "acceptance_length": list(acceptance_length),
        "step_ms": {str(size): [1000 * seconds for seconds in step_s[size]] for size in speeds},
        "tokens_per_s": {str(size): values for size, values in speeds.items()},
    }
