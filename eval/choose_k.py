"""Chooses K, the number of drafts per step, for base and custom.

    choice = choose_by_step_time(context=context, servers=servers, load=load, requests=requests,
                    validation=validation, mode="eager")

A step that drafts k tokens for each of B requests takes T(k, B) seconds and delivers AL(k) tokens
per request. With P(B) seconds of prefill per token of a response,

    tokens/s (k, B) = B / (P(B) + T(k, B) / AL(k))

AL comes from exact replay of the validation part; T and P are measured in each engine mode at the
log's contexts (bench/step_times.py). The choice is the smallest k that no larger k beats by more
than MIN_GAIN. Noise is not a reason for a smaller k: both errors cost the same, and a base with too
few drafts would flatter custom. If base and custom share an engine, they share its step times.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.eval.bench.prompts import HeldoutRequests
from outrider.eval.bench.servers import Servers
from outrider.eval.bench.step_times import StepTimes, step_prompts, time_steps
from outrider.eval.config import MIN_GAIN
from outrider.eval.context import EvaluationContext
from outrider.eval.lookups import history_facts, served_lookups
from outrider.eval.replay.sums import ReplaySums
from outrider.eval.results.parts import CURRENT, DRAFTERS, LOOKUP, Drafter, Drafters
from outrider.eval.results.sections import KChoice, LookupChoice
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.vllm_hooks.drafts_file import Drafts

Speeds = Mapping[int, Mapping[int, float]]
"""Tokens/s, or seconds per step, by batch size and number of drafts."""


def choose_by_step_time(
    *,
    context: EvaluationContext,
    servers: Servers,
    load: LoadGenerator,
    requests: HeldoutRequests,
    validation: Mapping[str, ReplaySums] | None,
    mode: str,
) -> KChoice:
    """Chooses k for base and for custom in one engine mode.

    `validation` is the replay of the validation part. If it is None (exact replay is not measured),
    k is `eval.k`, or the trained depth if that is "auto". A speculator with a fixed k keeps it,
    except base if `base_has_own_k` and `eval.current_k` is null: base's engine is then started once
    per k.
    """
    settings = context.settings
    main = context.settings.main
    # With K set by hand, only lookups are timed: they have their own.
    timed = _timed_drafters(context) if settings.k == "auto" else []
    references = served_lookups(context, validation) if validation else {}
    # Without timed steps nothing weighs a longer step against more tokens, so k is the recipe's, or
    # the largest that was trained.
    k = dict.fromkeys(DRAFTERS, context.depth if settings.k == "auto" else settings.k)
    if context.base_has_own_k and settings.k == "auto":
        k["base"] = settings.current_k or k["base"]
    lengths = {name: validation[name].acceptance_length() for name in DRAFTERS if validation}
    facts: dict[str, Any] = {
        "acceptance_length": Drafters[list[float]](**lengths) if lengths else None
    }
    if not validation or not (timed or references):
        facts |= choose_lookups(context, validation, {}, {})
        return KChoice(k=Drafters[int](**k), main_concurrency=main, **facts)
    # Swapped weights of one shape take the same time per step, so one of the two is timed.
    engines: list[str] = ["custom"] if timed and context.one_engine else [*timed]
    speculators = context.variants

    def measured() -> StepTimes:
        shown = ", ".join((*engines, *references))
        context.say(f"timing steps of the {mode} engine by number of drafts: {shown}")
        return time_steps(
            servers=servers,
            mode=mode,
            load=load,
            numbers={
                name: context.draft_numbers(speculators[name]) for name in (*engines, *references)
            },
            batch_sizes={
                **dict.fromkeys(engines, settings.concurrency),
                # Lookup is served at the main concurrency only (bench/closed_loop.py).
                **dict.fromkeys(references, (main,)),
            },
            prompts=step_prompts(
                context.data.rows(context.data.parts["heldout"]),
                context.target.directory(),
                context.serving.engine.max_model_len,
            ),
            sampling=requests.sampling,
            speculators=speculators,
        )

    times = _times_of_kinds(context, mode, (*engines, *references))
    if times is None:
        times = context.cached_measurement(f"step_times_{mode}", StepTimes, measured)
    facts["step_contexts"] = times.contexts
    engine_of = {name: "custom" if context.one_engine else name for name in timed}
    steps = {name: times.seconds[engine] for name, engine in engine_of.items()}
    prefill = {name: times.prefill.get(engine, {}) for name, engine in engine_of.items()}
    lookup_steps = {name: times.seconds[name][main] for name in references}
    lookup_prefill = {name: times.prefill.get(name, {}).get(main, 0.0) for name in references}
    facts |= choose_lookups(context, validation, lookup_steps, lookup_prefill)
    if not timed:
        return KChoice(k=Drafters[int](**k), main_concurrency=main, **facts)
    return choose_k(lengths, steps, main, k, prefill=prefill, **facts)


def _times_of_kinds(
    context: EvaluationContext, mode: str, names: Sequence[str]
) -> StepTimes | None:
    """The step times that choose_kind.py has measured; None if they are not all that is needed."""
    settings = context.settings
    main = settings.main
    # It times one engine mode at one concurrency, and steps with drafts only.
    if mode != settings.engine_modes[0] or [*settings.concurrency] != [main]:
        return None
    if context.by_batch_size:
        return None
    of_kinds = {speed.kind: speed for speed in context.kinds}
    kinds = {
        name: context.speculators["custom"].kind if name == "custom" else name for name in names
    }
    if any(kind not in of_kinds or not of_kinds[kind].step_ms_by_k for kind in kinds.values()):
        return None
    times = StepTimes()
    for name, kind in kinds.items():
        speed = of_kinds[kind]
        seconds = {
            number: milliseconds / 1000 for number, milliseconds in speed.step_ms_by_k.items()
        }
        times.seconds[name] = {main: seconds}
        times.prefill[name] = {main: speed.prefill_ms / 1000}
    return times


def _timed_drafters(context: EvaluationContext) -> list[Drafter]:
    """The speculators whose k is chosen from timed steps."""
    fixed = [name for name in DRAFTERS if context.speculators[name].drafter_kind.fixed_k]
    # Base gets its own best k, although its engine is then started once for each: too few drafts
    # would flatter custom.
    if context.base_has_own_k and context.settings.current_k is None:
        fixed.remove("base")
    return [name for name in DRAFTERS if name not in fixed and context.speculators[name].speculates]


def choose_lookups(
    context: EvaluationContext,
    validation: Mapping[str, ReplaySums] | None,
    timed: Mapping[str, Mapping[int, float]],
    prefill: Mapping[str, float],
) -> dict[str, Any]:
    """Fields of `KChoice`: the K of each lookup, and the fastest one.

    `timed` holds the seconds per step, by K, of the lookups that are served, and `prefill` their
    seconds of prefill per token of a response. A lookup that is not timed is assumed to take the
    steps of one that is. If none is, each gets the K after which acceptance grows by less than
    MIN_GAIN.
    """
    if validation is None:
        return {}
    of_kinds = {speed.kind: speed for speed in context.kinds}
    choices: dict[str, LookupChoice] = {}
    speeds: dict[str, float] = {}
    for name, speculator in context.lookups.items():
        lengths = validation[name].acceptance_length()
        numbers = context.draft_numbers(speculator)
        steps = timed.get(name) or next(iter(timed.values()), dict.fromkeys(numbers, 1.0))
        by_k = speeds_of(lengths, {1: steps}, {1: prefill.get(name, 0.0)})[1]
        k = best_k(by_k, least=1)
        if name in of_kinds:  # choose_kind timed it, with all other kinds in turn
            k = of_kinds[name].k
        choices[name] = LookupChoice(
            settings=dict(speculator.settings),
            k=k,
            runner=context.runner(speculator),
            acceptance_length=lengths,
            step_ms={number: 1000 * seconds for number, seconds in timed.get(name, {}).items()},
            history=history_facts(speculator),
        )
        speeds[name] = by_k.get(k, lengths[k - 1])
    served = served_lookups(context, validation)
    fastest = max(served, key=lambda name: speeds[name], default=None)
    return {"lookups": choices, "lookup": fastest}


def choose_k(
    lengths: Mapping[Drafter, Sequence[float]],
    steps: Mapping[Drafter, Speeds],
    main: int,
    fixed: Mapping[Drafter, int],
    *,
    prefill: Mapping[Drafter, Mapping[int, float]],
    **fields: Any,
) -> KChoice:
    """Chooses each speculator's k at `main` and for every batch size.

    `lengths` holds acceptance lengths for k = 1, 2, ...; `steps` holds seconds per step, `prefill`
    seconds of prefill per token of a response, by batch size. Speculators that are not in `steps`
    get their k from `fixed`. `fields` holds other fields of the choice.
    """
    speeds = {name: speeds_of(lengths[name], steps[name], prefill[name]) for name in steps}
    k = {
        name: best_k(speeds[name][main], 1) if name in speeds else fixed[name] for name in DRAFTERS
    }
    schedules = None
    if len(speeds) == len(DRAFTERS):
        by_size = {
            name: {size: best_k(row) for size, row in sizes.items()} | {main: k[name]}
            for name, sizes in speeds.items()
        }
        schedules = Drafters[list[tuple[int, int, int]]](
            **{name: batch_ranges(sizes) for name, sizes in by_size.items()}
        )
    return KChoice(
        k=Drafters[int](**k),
        main_concurrency=main,
        k_per_batch_size=schedules,
        step_ms={name: _in_ms(sizes) for name, sizes in steps.items()},
        prefill_ms={
            name: {str(size): 1000 * seconds for size, seconds in sizes.items()}
            for name, sizes in prefill.items()
        },
        **fields,
    )


def _in_ms(steps: Speeds) -> dict[str, dict[int, float]]:
    """Milliseconds per step, by batch size (JSON key) and number of drafts."""
    return {
        str(size): {number: 1000 * seconds for number, seconds in row.items()}
        for size, row in steps.items()
    }


def speeds_of(
    lengths: Sequence[float], steps: Speeds, prefill: Mapping[int, float]
) -> dict[int, dict[int, float]]:
    """Tokens/s by batch size and k.

    `steps` holds seconds per step, `prefill` seconds of prefill per token of a response.
    """
    # Without drafts a step delivers one token.
    tokens = [1.0, *lengths]
    speeds: dict[int, dict[int, float]] = {}
    for size, row in steps.items():
        seconds_K = {k: prefill.get(size, 0.0) + row[k] / tokens[k] for k in sorted(row)}
        speeds[size] = {k: size / seconds for k, seconds in seconds_K.items()}
    return speeds


def best_k(speeds: Mapping[int, float], least: int = 0) -> int:
    """The smallest k >= `least` that no larger k beats by more than MIN_GAIN."""
    allowed = {k: speed for k, speed in speeds.items() if k >= least}
    return min(
        k
        for k, speed in allowed.items()
        if all(larger <= (1 + MIN_GAIN) * speed for n, larger in allowed.items() if n > k)
    )


def batch_ranges(best: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Merges adjacent batch sizes with equal k into ranges (first, last, k).

    Ranges end at measured batch sizes. Nothing is drafted above the largest: the range after it has
    k = 0.
    """
    ranges: list[tuple[int, int, int]] = []
    first = 1
    for size, k in sorted(best.items()):
        if ranges and ranges[-1][2] == k:
            ranges[-1] = (ranges[-1][0], size, k)
        else:
            ranges.append((first, size, k))
        first = size + 1
    # vLLM carries the last range on to max_num_seqs (v1/spec_decode/dynamic/utils.py:144).
    return [*ranges, (first, first, 0)]


def draft_plan(
    choice: KChoice, current_k: int | None, by_batch_size: bool, fixed: bool = False
) -> dict[str, Drafts]:
    """Drafts per step of all speculating variants, including the served lookup.

    With `by_batch_size`, each speculator uses its own best schedule. Base at `current_k` is omitted
    if that is base's k or if base's server has a `fixed` k.
    """
    plan: dict[str, Drafts] = {name: choice.k.of(name) for name in DRAFTERS}
    if by_batch_size and choice.k_per_batch_size is not None:
        plan = {name: choice.k_per_batch_size.of(name) for name in DRAFTERS}
    if choice.lookup_k is not None:
        plan[LOOKUP] = choice.lookup_k
    if not fixed and current_k is not None and current_k != plan["base"]:
        plan[CURRENT] = current_k
    return plan
