"""Chooses k: the number of drafts with the most tokens/s, for every batch size.

    choose_k(acceptance_length=[1.8, 2.4, 2.8, 3.0], step_s={1: [...], 8: [...]}).k

A step of B requests that drafts k tokens takes T(k, B) seconds (serving/step_times.py) and delivers
AL(k) tokens per request, so

    tokens/s (k, B) = B AL(k) / T(k, B)

AL is replayed on the validation part, T measured in the engine. T(0, B) is the target's own step.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from outrider.eval.bench.server_pool import ServerPool
from outrider.eval.context import EvaluationContext, HeldoutRequests
from outrider.eval.replay.replay import ReplaySums
from outrider.eval.results.prediction import Choice, PromptCost
from outrider.serving.config import ServingConfig
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.step_times import StepTimes


def choose(
    context: EvaluationContext,
    servers: ServerPool,
    load: LoadGenerator,
    requests: HeldoutRequests,
    validation: ReplaySums | None,
) -> tuple[Choice, StepTimes | None]:
    """The choice of k, and the step times where they were measured.

    `validation` is custom's replay of the validation part; None where exact replay is not measured,
    and then k is the recipe's or the trained depth.
    """
    settings, depth = context.settings, context.depth
    lengths = validation.acceptance_length() if validation else None
    sequences = len(validation.sequence_ids) if validation else 0
    if settings.k != "auto" or lengths is None:
        k, source = settings.k, "the recipe's eval.k"
        if k == "auto":
            k, source = depth, "the recipe's speculator.depth"
        choice = Choice(
            k=k,
            acceptance_length=lengths,
            source=source,
            requested=settings.k,
            sequences=sequences,
        )
        return choice, None
    if named := recipe_times(context.serving, depth):
        return choose_k(lengths, named, source="the recipe's times", sequences=sequences), None
    times = step_times(context, servers, load, requests)
    none, drafting = times.prompt_token_s
    choice = choose_k(
        lengths,
        times.step_s,
        source=f"steps of the {settings.engine_modes[0]} engine, timed",
        sequences=sequences,
        prompt_token_ms=PromptCost(none=1000 * none, drafting=1000 * drafting),
    )
    return choice, times


def times_steps(context: EvaluationContext) -> bool:
    """Whether steps have to be timed to choose k."""
    return (
        context.settings.k == "auto"
        and context.can_replay
        and recipe_times(context.serving, context.depth) is None
        and not context.cache.done("step_times")
    )


def step_times(
    context: EvaluationContext, servers: ServerPool, load: LoadGenerator, requests: HeldoutRequests
) -> StepTimes:
    """Step times of the first engine mode, measured once and cached."""
    settings, depth = context.settings, context.depth
    mode = settings.engine_modes[0]

    def measured() -> dict[str, Any]:
        context.say(f"timing steps of the {mode} engine, up to {depth} drafts")
        times = context.backends.step_times(
            servers.fleet(mode),
            load,
            depth,
            settings.concurrency,
            requests.timed_texts,
            requests.sampling,
            settings.max_tokens,
        )
        return times.as_dict()

    return StepTimes.from_dict(context.cache.run("step_times", measured))


def recipe_times(serving: ServingConfig, depth: int) -> dict[int, list[float]] | None:
    """T(k, 1) in seconds for k = 0..depth from the recipe's times; None where it has none."""
    target, draft, fixed = serving.target_step_ms, serving.draft_step_ms, serving.fixed_step_ms
    if target is None or draft is None or fixed is None:
        return None
    return {1: [(target + fixed + draft * k) / 1000 for k in range(depth + 1)]}


def choose_k(
    acceptance_length: Sequence[float],
    step_s: Mapping[int, Sequence[float]],
    *,
    source: str = "",
    requested: int | Literal["auto"] = "auto",
    sequences: int = 0,
    prompt_token_ms: PromptCost | None = None,
) -> Choice:
    """The best k at the smallest batch size, and the best for each range of batch sizes.

    `acceptance_length[k - 1]` is of k = 1..K drafts, `step_s[B][k]` of k = 0..K. The smaller k wins
    a tie. A range ends at a measured batch size; beyond the last one its k holds.
    """
    sizes = sorted(step_s)
    speeds = {size: _tokens_per_s(size, acceptance_length, step_s[size]) for size in sizes}
    best = {size: 1 + values.index(max(values)) for size, values in speeds.items()}
    return Choice(
        k=best[sizes[0]],
        k_per_batch_size=_ranges(best),
        acceptance_length=list(acceptance_length),
        step_ms={str(size): [1000 * seconds for seconds in step_s[size]] for size in sizes},
        tokens_per_s={str(size): values for size, values in speeds.items()},
        prompt_token_ms=prompt_token_ms,
        source=source,
        requested=requested,
        sequences=sequences,
    )


def _tokens_per_s(
    size: int, acceptance_length: Sequence[float], step_s: Sequence[float]
) -> list[float]:
    """By k = 1..K."""
    return [
        size * length / seconds
        for length, seconds in zip(acceptance_length, step_s[1:], strict=True)
    ]


def _ranges(best: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """(first batch size, last, k), with adjacent sizes of the same k in one range."""
    ranges: list[tuple[int, int, int]] = []
    first = 1
    for size, k in best.items():
        if ranges and ranges[-1][2] == k:
            ranges[-1] = (ranges[-1][0], size, k)
        else:
            ranges.append((first, size, k))
        first = size + 1
    return ranges
