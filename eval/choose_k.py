"""Chooses K of base and of custom: the fewest drafts with the most tokens/s, by batch size.

    choice = choose(context, servers, load, requests, validation)

A step of B requests that drafts k tokens takes T(k, B) seconds (bench/step_times.py) and delivers
AL(k) tokens per request, so

    tokens/s (k, B) = B AL(k) / T(k, B)

AL is replayed on the validation part, T measured in the engine. A larger k must gain more than
MIN_GAIN over the smaller one. Where base and custom take turns in one engine they have the same
step times; speculators of two kinds have a server and times each.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.eval.bench.servers import Servers
from outrider.eval.bench.step_times import StepTimes, time_steps
from outrider.eval.context import EvaluationContext, HeldoutRequests
from outrider.eval.replay.replay import ReplaySums
from outrider.eval.results.choice import Choice
from outrider.eval.results.parts import CURRENT, DRAFTERS, LOOKUP, SAME_K, Drafter, Drafters
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.vllm_hooks.drafts_file import Drafts
from outrider.speculators.kinds import LOOKUP as LOOKUP_KIND

MIN_GAIN = 0.01
"""Least gain in tokens/s of a larger k; less is not worth its longer steps at higher load."""

Speeds = Mapping[int, Mapping[int, float]]
"""Tokens/s by batch size and number of drafts."""


def choose(
    context: EvaluationContext,
    servers: Servers,
    load: LoadGenerator,
    requests: HeldoutRequests,
    validation: Mapping[str, ReplaySums] | None,
) -> Choice:
    """The choice of k for base and for custom.

    `validation` is the replay of the validation part; None where exact replay is not measured, and
    then k is the recipe's or the trained depth. A speculator that drafts one number keeps it, but
    base's engine is started for several where custom has another one (`base_has_own_k`).
    """
    settings = context.settings
    fixed = [name for name in DRAFTERS if context.speculators[name].abilities.fixed_k]
    if context.base_has_own_k and settings.current_k is None:
        fixed.remove("base")
    timed = [name for name in DRAFTERS if context.speculators[name].speculates]
    timed = [name for name in timed if name not in fixed]
    k = dict.fromkeys(DRAFTERS, context.depth if settings.k == "auto" else settings.k)
    if context.base_has_own_k and settings.k == "auto":
        k["base"] = settings.current_k or k["base"]
    lengths: dict[Drafter, list[float]] = {}
    if validation:
        lengths = {name: validation[name].acceptance_length() for name in DRAFTERS}
    given: dict[str, Any] = {
        "acceptance_length": Drafters[list[float]](**lengths) if lengths else None,
    }
    if settings.k != "auto" or not lengths or not timed:
        return Choice(k=Drafters[int](**k), lookup_k=lookup_k(context, validation), **given)
    mode = settings.engine_modes[0]
    engines = ["custom"] if context.one_engine else timed

    def measured() -> StepTimes:
        context.say(f"timing steps of the {mode} engine, up to {context.depth} drafts")
        return time_steps(
            servers,
            mode,
            load,
            dict.fromkeys(engines, context.draft_numbers),
            settings.concurrency,
            requests.timed_texts,
            requests.sampling,
            context.speculators,
        )

    seconds = context.cached("step_times", StepTimes, measured).seconds
    steps = {name: seconds["custom" if context.one_engine else name] for name in timed}
    given["lookup_k"] = lookup_k(context, validation, steps[timed[-1]][settings.main])
    return choose_k(lengths, steps, settings.main, k, **given)


def lookup_k(
    context: EvaluationContext,
    validation: Mapping[str, ReplaySums] | None,
    steps: Mapping[int, float] | None = None,
) -> int | None:
    """Drafts per step with which n-gram lookup is served as a reference; None: it is not served.

    That of `choose_kind`, where it was timed. Else by replay over the `steps` (seconds) of custom's
    engine, which takes no further server: they include a drafter's passes, so K may be one too
    small.
    """
    if not context.serves_lookup:
        return None
    for each in context.kinds:
        if each.kind == LOOKUP_KIND:
            return each.k
    if context.settings.k != "auto" or validation is None:
        return context.depth if context.settings.k == "auto" else context.settings.k
    lengths = validation[LOOKUP].acceptance_length()
    steps = steps or dict.fromkeys(range(1, context.depth + 1), 1.0)
    return best_k(speeds_of(lengths, {1: steps})[1], least=1)


def choose_k(
    lengths: Mapping[Drafter, Sequence[float]],
    steps: Mapping[Drafter, Speeds],
    main: int,
    fixed: Mapping[Drafter, int],
    **given: Any,
) -> Choice:
    """Each speculator's k at batch size `main` and, of all that were timed, by batch size.

    `lengths` are acceptance lengths with k = 1, 2, ... drafts, `steps` seconds of a step; one
    without drafts its number in `fixed`. `given` are further fields of the choice.
    """
    speeds = {name: speeds_of(lengths[name], own) for name, own in steps.items()}
    k = {
        name: best_k(speeds[name][main], least=1) if name in speeds else fixed[name]
        for name in DRAFTERS
    }
    schedules = None
    if len(speeds) == len(DRAFTERS):
        best = {
            name: {size: best_k(row) for size, row in own.items()} | {main: k[name]}
            for name, own in speeds.items()
        }
        schedules = Drafters[list[tuple[int, int, int]]](
            **{name: batch_ranges(own) for name, own in best.items()}
        )
    return Choice(
        k=Drafters[int](**k),
        k_per_batch_size=schedules,
        step_ms={
            name: {
                str(size): {number: 1000 * seconds for number, seconds in row.items()}
                for size, row in own.items()
            }
            for name, own in steps.items()
        },
        **given,
    )


def speeds_of(lengths: Sequence[float], steps: Speeds) -> dict[int, dict[int, float]]:
    """Tokens/s of every batch size and number of drafts; `steps` are seconds of a step."""
    tokens = [1.0, *lengths]
    return {
        size: {k: size * tokens[k] / seconds for k, seconds in sorted(row.items())}
        for size, row in steps.items()
    }


def best_k(speeds: Mapping[int, float], least: int = 0) -> int:
    """The smallest k, from `least`, over which no larger one gains more than MIN_GAIN."""
    allowed = {k: speed for k, speed in speeds.items() if k >= least}
    return min(
        k
        for k, speed in allowed.items()
        if all(other <= (1 + MIN_GAIN) * speed for n, other in allowed.items() if n > k)
    )


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
) -> dict[str, Drafts]:
    """The drafts of every speculating variant, n-gram lookup among them where it is served.

    With `by_batch_size` each speculator drafts as its own best schedule. Base at custom's K and at
    `current_k` are left out where they equal another variant of base, and where base is `fixed`:
    its server drafts one number.
    """
    plan: dict[str, Drafts] = {name: choice.k.of(name) for name in DRAFTERS}
    if by_batch_size and choice.k_per_batch_size is not None:
        plan = {name: choice.k_per_batch_size.of(name) for name in DRAFTERS}
    if choice.lookup_k is not None:
        plan[LOOKUP] = choice.lookup_k
    if fixed:
        return plan
    if current_k is not None and current_k != plan["base"]:
        plan[CURRENT] = current_k
    if plan["custom"] not in (plan["base"], plan.get(CURRENT)):
        plan[SAME_K] = plan["custom"]
    return plan
