"""Chooses k of base and of custom, from exact replay and steps that are timed until k is decided.

    choice = choose(context, servers, load, requests, validation)

Where base and custom take turns in one engine they have the same step times; speculators of two
kinds have a server and times each. Acceptance differs in any case, so each has its own best k
(best_k.py).

Which k is best is a matter of chance where the times are known too badly: three demos of the same
commit chose 5, 4 and 4. So rounds are timed until the intervals of all gains that matter exclude
MIN_GAIN, with the levels of repeated looks (eval/stats/sequential.py). Where the time limit ends
this first, the estimate decides, and the report names the numbers between which it is undecided. An
interval would not do better: what noise makes it exclude depends on the noise, which changes from
day to day; a fixed threshold does not.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.eval.bench.server_pool import DraftPlan, ServerPool
from outrider.eval.bench.step_timing import LOOKS
from outrider.eval.context import EvaluationContext, HeldoutRequests
from outrider.eval.prediction.best_k import Lengths, best_k, choose_k
from outrider.eval.prediction.step_fit import StepFit, fit_steps
from outrider.eval.replay.replay import ReplaySums
from outrider.eval.results.parts import CURRENT, DRAFTERS, SAME_K, Drafter, Drafters
from outrider.eval.results.prediction import Choice, PromptCost
from outrider.serving.config import ServingConfig
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.step_times import StepTimes

RESAMPLES = 4000
"""Of the rounds of timed steps: 12 lie beyond each end of the narrowest look's interval."""

Array = NDArray[np.float64]


def choose(
    context: EvaluationContext,
    servers: ServerPool,
    load: LoadGenerator,
    requests: HeldoutRequests,
    validation: Mapping[Drafter, ReplaySums] | None,
) -> Choice:
    """The choice of k for base and for custom.

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
        return Choice(
            k=k,
            acceptance_length=Drafters[list[float] | None](**lengths) if lengths else None,
            source=source,
            requested=settings.k,
            sequences=sequences,
        )
    main = settings.gated_concurrency
    if named := recipe_times(context.serving, depth):
        fit = StepFit({size: row[1:] for size, row in named.items()}, {})
        none_s = {size: row[0] for size, row in named.items()}
        return choose_k(lengths, fit, none_s, 1, source="the recipe's times", sequences=sequences)
    times = step_times(context, servers, load, requests, lengths)
    fit = fit_steps(round_table(times), RESAMPLES, settings.seed)
    of_base, base_fit = times, None
    if not context.one_engine:
        of_base = step_times(context, servers, load, requests, lengths, "base")
        base_fit = fit_steps(round_table(of_base), RESAMPLES, settings.seed)
    none, drafting = times.prompt_token_s
    return choose_k(
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
