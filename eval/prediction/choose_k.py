"""Chooses k of base and of custom: the fewest drafts with the most tokens/s, by batch size.

    choose_k({"base": [1.8, 2.2], "custom": [1.9, 2.7]}, fit, none_s={1: 0.005}, main=1).k.base

A step of B requests that drafts k tokens takes T(k, B) seconds (serving/step_times.py) and delivers
AL(k) tokens per request, so

    tokens/s (k, B) = B AL(k) / T(k, B)

AL is replayed on the validation part, T measured in the engine and fitted (step_fit.py). Where base
and custom take turns in one engine they have the same T; speculators of two kinds have a server and
a T each. AL differs in any case, so each has its own best k.

A larger k must gain more than MIN_GAIN over the smaller one. Which is so is a matter of chance
where the times are known too badly: three demos of the same commit chose 5, 4 and 4. So rounds are
timed until the intervals of all gains that matter exclude MIN_GAIN, with the levels of repeated
looks (eval/stats/sequential.py). Where the time limit ends this first, the estimate decides, and
the report names what it could not tell apart. An interval would not do better: what noise makes it
exclude depends on the noise, which changes from day to day; a fixed threshold does not.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from outrider.eval.bench.server_pool import DraftPlan, ServerPool
from outrider.eval.bench.step_timing import LOOKS
from outrider.eval.context import EvaluationContext, HeldoutRequests
from outrider.eval.prediction.step_fit import StepFit, fit_steps
from outrider.eval.replay.replay import ReplaySums
from outrider.eval.results.parts import CURRENT, DRAFTERS, SAME_K, Drafter, Drafters
from outrider.eval.results.prediction import Choice, KGain, KReason, PromptCost
from outrider.eval.stats.intervals import LEVEL, percentile_interval
from outrider.serving.config import ServingConfig
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.step_times import StepTimes

MIN_GAIN = 0.01
"""Least gain in tokens/s of a larger k; less is not worth its longer steps at higher load."""

RESAMPLES = 4000
"""Of the rounds of timed steps: 12 lie beyond each end of the narrowest look's interval."""

Lengths = Mapping[Drafter, Sequence[float]]
Array = NDArray[np.float64]


def choose(
    context: EvaluationContext,
    servers: ServerPool,
    load: LoadGenerator,
    requests: HeldoutRequests,
    validation: Mapping[Drafter, ReplaySums] | None,
) -> tuple[Choice, Mapping[Drafter, StepTimes] | None]:
    """The choice of k, and the step times of each speculator where they were measured.

    `validation` is the replay of the validation part; None where exact replay is not measured, and
    then k is the recipe's or the trained depth.
    """
    settings, depth = context.settings, context.depth
    lengths, sequences = None, 0
    if validation is not None:
        lengths = {name: validation[name].acceptance_length() for name in DRAFTERS}
        sequences = len(validation["custom"].sequence_ids)
    fixed = [name for name in DRAFTERS if context.speculators[name].fixed_k]
    if settings.k != "auto" or lengths is None or fixed:
        k, source = Drafters[int](base=depth, custom=depth), "the recipe's speculator.depth"
        if settings.k != "auto":
            k, source = Drafters[int](base=settings.k, custom=settings.k), "the recipe's eval.k"
        elif lengths is not None and (timed := set(DRAFTERS) - set(fixed)):
            k, source = _beside_fixed(context, servers, load, requests, lengths, timed.pop())
        choice = Choice(
            k=k,
            acceptance_length=Drafters[list[float] | None](**lengths) if lengths else None,
            source=source,
            requested=settings.k,
            sequences=sequences,
        )
        return choice, None
    main = settings.gated_concurrency
    if named := recipe_times(context.serving, depth):
        fit = StepFit({size: row[1:] for size, row in named.items()}, {})
        none_s = {size: row[0] for size, row in named.items()}
        return choose_k(
            lengths, fit, none_s, 1, source="the recipe's times", sequences=sequences
        ), None
    times = step_times(context, servers, load, requests, lengths)
    fit = fit_steps(round_table(times), RESAMPLES, settings.seed)
    of_base, base_fit = times, None
    if not context.one_engine:
        of_base = step_times(context, servers, load, requests, lengths, "base")
        base_fit = fit_steps(round_table(of_base), RESAMPLES, settings.seed)
    none, drafting = times.prompt_token_s
    choice = choose_k(
        lengths,
        fit,
        {size: row[0] for size, row in times.step_s.items()},
        main,
        source=f"steps of the {settings.engine_modes[0]} engine, timed",
        sequences=sequences,
        prompt_token_ms=PromptCost(none=1000 * none, drafting=1000 * drafting),
        rounds={size: len(rows) for size, rows in times.rounds.items()},
        further=times.further,
        looks=times.looks,
        base_fit=base_fit,
        base_looks=of_base.looks,
    )
    return choice, {
        "custom": _fitted(times, fit, depth),
        "base": _fitted(of_base, base_fit or fit, depth),
    }


def _beside_fixed(
    context: EvaluationContext,
    servers: ServerPool,
    load: LoadGenerator,
    requests: HeldoutRequests,
    lengths: Lengths,
    timed: Drafter,
) -> tuple[Drafters[int], str]:
    """K of both, where `timed` alone can draft another number than its engine was started for."""
    depth, named = context.depth, recipe_times(context.serving, context.depth)
    if named:
        fit, size, source = StepFit({1: named[1][1:]}, {}), 1, "the recipe's times"
    else:
        times = step_times(context, servers, load, requests, lengths, timed)
        fit = fit_steps(round_table(times), RESAMPLES, context.settings.seed)
        size = context.settings.gated_concurrency
        source = f"steps of the {context.settings.engine_modes[0]} engine, timed"
    k = {name: depth for name in DRAFTERS}
    k[timed] = best_k(lengths[timed], fit, size, least=1).k
    other = next(name for name in DRAFTERS if name != timed)
    words = context.speculators[other].in_words
    return Drafters[int](**k), f"{source} for {timed}; {words} always drafts speculator.depth"


def _fitted(times: StepTimes, fit: StepFit, depth: int) -> StepTimes:
    """Step times with the fitted ones in place of the means."""
    step_s = {size: [row[0], *fit.step_s[size][-depth:]] for size, row in times.step_s.items()}
    return replace(times, step_s=step_s)


def draft_plan(
    choice: Choice, current_k: int | None, by_batch_size: bool, fixed: bool = False
) -> DraftPlan:
    """The drafts of every measured variant.

    With `by_batch_size` each speculator drafts as its own best schedule. Base at custom's K and at
    `current_k` are left out where they equal another variant of base, and where base is `fixed`:
    its server drafts one number.
    """
    plan: dict[str, Any] = {name: choice.k.of(name) for name in DRAFTERS}
    if by_batch_size and choice.k_per_batch_size is not None:
        plan = {name: choice.k_per_batch_size.of(name) or plan[name] for name in DRAFTERS}
    if fixed:
        return plan
    if current_k is not None and current_k != plan["base"]:
        plan[CURRENT] = current_k
    if plan["custom"] not in (plan["base"], plan.get(CURRENT)):
        plan[SAME_K] = plan["custom"]
    return plan


def times_steps(context: EvaluationContext) -> bool:
    """Whether steps have to be timed to choose k."""
    whose: set[Drafter] = {"custom"} if context.one_engine else set(DRAFTERS)
    whose -= {name for name in DRAFTERS if context.speculators[name].fixed_k}
    return (
        context.settings.k == "auto"
        and context.can_replay
        and recipe_times(context.serving, context.depth) is None
        and not all(context.cache.done(times_of(name)) for name in whose)
    )


def times_of(drafter: Drafter) -> str:
    """Name of the cached step times of a speculator."""
    return "step_times" if drafter == "custom" else f"step_times_{drafter}"


def undecided_numbers(
    context: EvaluationContext, lengths: Lengths, drafters: Sequence[Drafter], times: StepTimes
) -> dict[int, list[int]]:
    """By batch size, the numbers of drafts between which these times do not decide.

    Those of the `drafters` that share the times. At the main concurrency, or everywhere with k by
    batch size.
    """
    settings = context.settings
    fit = fit_steps(round_table(times), RESAMPLES, settings.seed)
    found = {}
    for size in settings.concurrency if context.by_batch_size else [settings.gated_concurrency]:
        least, numbers = int(size == settings.gated_concurrency), set()
        for drafter in drafters:
            reason = best_k(lengths[drafter], fit, size, least, LOOKS.level(times.looks))
            if reason.undecided:
                numbers |= {reason.k, *reason.undecided}
        if numbers:
            found[size] = sorted(numbers)
    return found


def step_times(
    context: EvaluationContext,
    servers: ServerPool,
    load: LoadGenerator,
    requests: HeldoutRequests,
    lengths: Lengths,
    drafter: Drafter = "custom",
) -> StepTimes:
    """Step times of the first engine mode with one speculator, measured once and cached."""
    settings, depth = context.settings, context.depth
    mode = settings.engine_modes[0]
    sharing: Sequence[Drafter] = DRAFTERS if context.one_engine else [drafter]

    def measured() -> dict[str, Any]:
        whose = "" if context.one_engine else f", {drafter}"
        context.say(f"timing steps of the {mode} engine{whose}, up to {depth} drafts")
        times = context.backends.step_times(
            servers.fleet(mode),
            load,
            depth,
            settings.concurrency,
            requests.timed_texts,
            requests.sampling,
            settings.max_tokens,
            0 if context.by_batch_size else 1,
            **({} if drafter == "custom" else {"drafter": drafter}),
            undecided=functools.partial(undecided_numbers, context, lengths, sharing),
        )
        return times.as_dict()

    return StepTimes.from_dict(context.cache.run(times_of(drafter), measured))


def round_table(times: StepTimes) -> dict[int, Array]:
    """Rounds [R, K] by batch size, NaN where a time is missing.

    A batch size at which some number was never timed in a run has one round, of the mean times.
    """
    table = {}
    for size, step_s in times.step_s.items():
        rows = np.array(times.rounds.get(size) or [[None]], dtype=np.float64)
        timed = rows.shape[1] >= len(step_s) - 1 and np.isfinite(rows).any(axis=0).all()
        table[size] = rows if timed else np.array([step_s[1:]])
    return table


def recipe_times(serving: ServingConfig, depth: int) -> dict[int, list[float]] | None:
    """T(k, 1) in seconds for k = 0..depth from the recipe's times; None where it has none."""
    target, draft, fixed = serving.target_step_ms, serving.draft_step_ms, serving.fixed_step_ms
    if target is None or draft is None or fixed is None:
        return None
    return {1: [(target + fixed + draft * k) / 1000 for k in range(depth + 1)]}


def choose_k(
    acceptance_length: Lengths,
    fit: StepFit,
    none_s: Mapping[int, float],
    main: int,
    *,
    source: str = "",
    requested: int | Literal["auto"] = "auto",
    sequences: int = 0,
    prompt_token_ms: PromptCost | None = None,
    rounds: Mapping[int, int] | None = None,
    base_fit: StepFit | None = None,
    further: Mapping[int, int] | None = None,
    looks: int = 1,
    base_looks: int | None = None,
) -> Choice:
    """Each speculator's k at batch size `main`, and its k for each range of batch sizes.

    `acceptance_length[drafter][k - 1]` is of k = 1..K drafts. The fit has k = 1..K, or 0..K where
    the drafting engine was also timed without drafts; then k by batch size may be 0. `none_s` is
    the target's own step. A range ends at a measured batch size; beyond the last one its k holds.
    `base_fit` and `base_looks` are of base's steps where they are not custom's, in an engine of
    their own. `further` counts the rounds of the numbers that were undecided at one of the `looks`.
    """
    fits: dict[Drafter, StepFit] = {"base": base_fit or fit, "custom": fit}
    levels = {"base": LOOKS.level(base_looks or looks), "custom": LOOKS.level(looks)}
    found = {
        name: {
            size: best_k(acceptance_length[name], fits[name], size, level=levels[name])
            for size in fit.step_s
        }
        for name in DRAFTERS
    }
    at_main = {
        name: best_k(acceptance_length[name], fits[name], main, 1, levels[name])
        for name in DRAFTERS
    }
    ranges = {
        name: _ranges(
            {size: at_main[name].k if size == main else own.k for size, own in table.items()}
        )
        for name, table in found.items()
    }
    depth = len(acceptance_length["custom"])
    speeds = {
        name: {
            str(size): (size * np.array(lengths) / np.array(row[-depth:])).tolist()
            for size, row in fits[name].step_s.items()
        }
        for name, lengths in acceptance_length.items()
    }
    return Choice(
        k=Drafters[int](**{name: at_main[name].k for name in DRAFTERS}),
        reason=Drafters[KReason](**at_main),
        k_per_batch_size=Drafters[list[tuple[int, int, int]] | None](**ranges),
        acceptance_length=Drafters[list[float] | None](
            **{name: list(lengths) for name, lengths in acceptance_length.items()}
        ),
        step_ms={
            str(size): [1000 * seconds for seconds in (none_s[size], *row[-depth:])]
            for size, row in fit.step_s.items()
        },
        base_step_ms=(
            {
                str(size): [1000 * seconds for seconds in (none_s[size], *row[-depth:])]
                for size, row in base_fit.step_s.items()
            }
            if base_fit
            else None
        ),
        step_ms_ci95={
            str(size): [
                (1000 * low, 1000 * high)
                for low, high in map(percentile_interval, draws_SK.T[-depth:])
            ]
            for size, draws_SK in fit.draws_S.items()
        }
        or None,
        idle_step_ms=(
            {str(size): 1000 * row[0] for size, row in fit.step_s.items()}
            if len(fit.step_s[main]) > depth
            else None
        ),
        rounds={str(size): count for size, count in (rounds or {}).items()} or None,
        further_rounds={str(size): count for size, count in (further or {}).items()} or None,
        looks=looks if rounds else None,
        tokens_per_s=Drafters[dict[str, list[float]] | None](**speeds),
        prompt_token_ms=prompt_token_ms,
        source=source,
        requested=requested,
        sequences=sequences,
    )


def best_k(
    lengths: Sequence[float], fit: StepFit, size: int, least: int = 0, level: float = LEVEL
) -> KReason:
    """The smallest k, from `least`, over which no larger one is estimated to gain MIN_GAIN.

    It is decided when the intervals, of that level, say the same: a larger one is shown to gain
    more over every smaller k, and each larger one is shown not to gain more over this.
    """
    step_K = np.array(fit.step_s[size])
    first = max(least, len(lengths) + 1 - len(step_K))
    tokens_K = np.array([1.0, *lengths])[first:]
    log_K = np.log(tokens_K / step_K[-len(tokens_K) :])
    draws_S = fit.draws_S.get(size)
    log_SK = log_K[None] if draws_S is None else np.log(tokens_K / draws_S[:, -len(tokens_K) :])

    def gain(over: int, under: int) -> KGain:
        """Of index `over` over index `under`."""
        low, high = percentile_interval(np.expm1(log_SK[:, over] - log_SK[:, under]), level)
        value = float(np.expm1(log_K[over] - log_K[under]))
        return KGain(k=first + over, over=first + under, value=value, low=low, high=high)

    def gains(index: int) -> list[KGain]:
        return [gain(larger, index) for larger in range(index + 1, len(log_K))]

    chosen = next(
        index for index in range(len(log_K)) if all(each.value <= MIN_GAIN for each in gains(index))
    )
    smaller, larger = log_K[:chosen], log_K[chosen + 1 :]
    undecided = [
        first + index
        for index in range(chosen)
        if all(each.low <= MIN_GAIN for each in gains(index))
    ]
    undecided += [each.k for each in gains(chosen) if each.high > MIN_GAIN]
    return KReason(
        k=first + chosen,
        smaller=gain(chosen, int(smaller.argmax())) if len(smaller) else None,
        larger=gain(chosen + 1 + int(larger.argmax()), chosen) if len(larger) else None,
        undecided=tuple(undecided),
    )


def _ranges(best: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """(first batch size, last, k), with adjacent sizes of the same k in one range."""
    ranges: list[tuple[int, int, int]] = []
    first = 1
    for size, k in sorted(best.items()):
        if ranges and ranges[-1][2] == k:
            ranges[-1] = (ranges[-1][0], size, k)
        else:
            ranges.append((first, size, k))
        first = size + 1
    return ranges
