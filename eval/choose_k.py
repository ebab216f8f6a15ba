"""Chooses K of base and of custom: the fewest drafts with the most tokens/s, by batch size.

    choice = choose(context, servers, load, requests, validation)

A step of B requests that drafts k tokens takes T(k, B) seconds (bench/step_times.py) and delivers
AL(k) tokens per request, so

    tokens/s (k, B) = B AL(k) / T(k, B)

AL is replayed on the validation part, T measured in the engine. A larger k must be estimated to
gain more than MIN_GAIN over the smaller one; the report names the numbers between which the timed
rounds do not decide. Where base and custom take turns in one engine they have the same step times;
speculators of two kinds have a server and times each.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from outrider.eval.bench.server_pool import DraftPlan, ServerPool
from outrider.eval.bench.step_times import StepFit, StepTimes
from outrider.eval.context import EvaluationContext, HeldoutRequests
from outrider.eval.replay.replay import ReplaySums
from outrider.eval.results.choice import Choice
from outrider.eval.results.parts import CURRENT, DRAFTERS, SAME_K, Drafter, Drafters
from outrider.eval.stats.intervals import percentile_interval
from outrider.serving.load_generator import LoadGenerator

MIN_GAIN = 0.01
"""Least gain in tokens/s of a larger k; less is not worth its longer steps at higher load."""

RESAMPLES = 2000
"""Of the rounds of timed steps."""


class BestK(NamedTuple):
    """A speculator's k, and others that the timed steps could not tell from it."""

    k: int
    undecided: tuple[int, ...]


Lengths = Mapping[Drafter, Sequence[float]]
"""Acceptance length with k = 1, 2, ... drafts."""


def choose(
    context: EvaluationContext,
    servers: ServerPool,
    load: LoadGenerator,
    requests: HeldoutRequests,
    validation: Mapping[Drafter, ReplaySums] | None,
) -> Choice:
    """The choice of k for base and for custom.

    `validation` is the replay of the validation part; None where exact replay is not measured, and
    then k is the recipe's or the trained depth. A speculator that drafts one number keeps it.
    """
    settings, depth = context.settings, context.depth
    lengths: dict[Drafter, list[float]] | None = None
    if validation is not None:
        lengths = {name: validation[name].acceptance_length() for name in DRAFTERS}
    fixed = {name for name in DRAFTERS if context.speculators[name].fixed_k}
    k = dict.fromkeys(DRAFTERS, depth if settings.k == "auto" else settings.k)
    source = "the recipe's " + ("speculator.depth" if settings.k == "auto" else "eval.k")
    given: dict[str, Any] = {
        "sequences": len(validation["custom"].sequence_ids) if validation else 0,
        "acceptance_length": Drafters[list[float] | None](**lengths) if lengths else None,
    }
    if settings.k != "auto" or lengths is None or len(fixed) == len(DRAFTERS):
        return Choice(k=Drafters[int](**k), source=source, **given)
    times: dict[Drafter, StepTimes] = {}
    for name in DRAFTERS:
        if name not in fixed:
            whose: Drafter = "custom" if context.one_engine else name
            times[name] = step_times(context, servers, load, requests, whose)
    source = f"steps of the {settings.engine_modes[0]} engine"
    if fixed:
        source += f"; {context.speculators[fixed.pop()].in_words} always drafts speculator.depth"
    return choose_k(
        lengths, times, settings.gated_concurrency, settings.seed, k, source=source, **given
    )


def choose_k(
    lengths: Lengths,
    times: Mapping[Drafter, StepTimes],
    main: int,
    seed: int,
    fixed: Mapping[Drafter, int],
    **given: Any,
) -> Choice:
    """Each speculator's k at batch size `main` and, of all that were timed, by batch size.

    One without `times` drafts its number in `fixed`. Times of an engine of both are those of each.
    `given` are further fields of the choice.
    """
    fits = {name: fits_of(own, seed) for name, own in times.items()}
    found = {
        name: best_k(lengths[name], times[name].numbers, fits[name][main], least=1) for name in fits
    }
    k = dict(fixed) | {name: best.k for name, best in found.items()}
    if len(times) < len(DRAFTERS):
        return Choice(k=Drafters[int](**k), **given)
    ranges, step_ms = {}, {}
    for name in DRAFTERS:
        numbers = times[name].numbers
        best = {
            size: k[name] if size == main else best_k(lengths[name], numbers, fit).k
            for size, fit in fits[name].items()
        }
        ranges[name] = batch_ranges(best)
        step_ms[name] = {
            str(size): [
                1000 * times[name].plain_s[size],
                *(1000 * s for s, number in zip(fit.step_s, numbers, strict=True) if number),
            ]
            for size, fit in fits[name].items()
        }
    if times["base"] == times["custom"]:
        del step_ms["base"]
    return Choice(
        k=Drafters[int](**k),
        undecided=Drafters[tuple[int, ...]](
            **{name: best.undecided for name, best in found.items()}
        ),
        k_per_batch_size=Drafters[list[tuple[int, int, int]] | None](**ranges),
        step_ms=step_ms,
        rounds={str(size): len(rows) for size, rows in times["custom"].rounds.items()},
        **given,
    )


def fits_of(times: StepTimes, seed: int) -> dict[int, StepFit]:
    """The fit of each batch size."""
    return {size: times.fit(size, RESAMPLES, seed) for size in times.rounds}


def best_k(lengths: Sequence[float], numbers: Sequence[int], fit: StepFit, least: int = 0) -> BestK:
    """The smallest k, from `least`, over which no larger one is estimated to gain MIN_GAIN.

    `lengths[k - 1]` is the acceptance length of k drafts. It is decided when the intervals say the
    same: a larger one is shown to gain more over every smaller k, and each larger one is shown not
    to gain more over this.
    """
    columns = [place for place, number in enumerate(numbers) if number >= least]
    k_of = [numbers[place] for place in columns]
    tokens_K = np.array([lengths[k - 1] if k else 1.0 for k in k_of])
    log_K = np.log(tokens_K / np.array(fit.step_s)[columns])
    log_SK = np.log(tokens_K / fit.draws_SK[:, columns])

    def interval(over: int, under: int) -> tuple[float, float]:
        """Of the gain of index `over` over index `under`."""
        return percentile_interval(np.expm1(log_SK[:, over] - log_SK[:, under]))

    indices = range(len(log_K))
    chosen = next(
        index for index in indices if (np.expm1(log_K[index:] - log_K[index]) <= MIN_GAIN).all()
    )
    undecided = [
        k_of[index]
        for index in indices[:chosen]
        if all(interval(larger, index)[0] <= MIN_GAIN for larger in indices[index + 1 :])
    ]
    undecided += [k_of[i] for i in indices[chosen + 1 :] if interval(i, chosen)[1] > MIN_GAIN]
    return BestK(k_of[chosen], tuple(undecided))


def batch_ranges(best: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """(first batch size, last, k), with adjacent sizes of the same k in one range.

    A range ends at a measured batch size; beyond the last one its k holds.
    """
    ranges: list[tuple[int, int, int]] = []
    first = 1
    for size, k in sorted(best.items()):
        if ranges and ranges[-1][2] == k:
            ranges[-1] = (ranges[-1][0], size, k)
        else:
            ranges.append((first, size, k))
        first = size + 1
    return ranges


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


def step_times(
    context: EvaluationContext,
    servers: ServerPool,
    load: LoadGenerator,
    requests: HeldoutRequests,
    drafter: Drafter,
) -> StepTimes:
    """Step times of the first engine mode with one speculator, measured once and cached."""
    settings, depth = context.settings, context.depth
    mode = settings.engine_modes[0]
    name = "step_times" if drafter == "custom" else f"step_times_{drafter}"

    def measured() -> StepTimes:
        whose = "" if context.one_engine else f", {drafter}"
        context.say(f"timing steps of the {mode} engine{whose}, up to {depth} drafts")
        return context.backends.step_times(
            servers,
            mode,
            load,
            range(0 if context.by_batch_size else 1, depth + 1),
            settings.concurrency,
            requests.timed_texts,
            requests.sampling,
            settings.max_tokens,
            drafter,
        )

    return context.cached(name, StepTimes, measured)
