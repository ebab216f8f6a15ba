"""Which of several trained kinds are served, by exact replay and timed steps.

    choice = choose_kind({"mine": context, "theirs": other}, facts)
    choice.finalists

A context is that of the kind's evaluation, so the replays and step times that are made here are in
its cache when it is evaluated. Responses and prompts are of the validation part: nothing is chosen
on the held-out part. The servers of all kinds and the one without speculation are up at once, where
the machine holds them.

A kind's forecast is B AL(K) / T(K, B) at its own K (choose_k.py). Every kind's steps were timed in
turn with those of the target alone, which take out the machine's speed.
"""

import functools
from collections.abc import Mapping

import numpy as np

from outrider.eval.bench.prompts import customers_sampling, evaluation_prompts
from outrider.eval.bench.step_times import StepTimes
from outrider.eval.choose_k import best_k, fits_of
from outrider.eval.config import EvalConfig
from outrider.eval.context import EvaluationContext
from outrider.eval.evaluate import check
from outrider.eval.replay.heldout_replay import replay_drafter
from outrider.eval.replay.replay import ReplaySums
from outrider.eval.results.choice import KindChoice, KindFacts, KindForecast
from outrider.eval.results.parts import ClusteredEstimate
from outrider.eval.stats.clusters import clustered

Contexts = Mapping[str, EvaluationContext]
"""By kind."""


def choose_kind(contexts: Contexts, facts: Mapping[str, KindFacts]) -> KindChoice:
    """Times and forecasts every kind.

    The contexts differ in the custom speculator and its folders only.
    """
    for context in contexts.values():
        check(context)
    first = next(iter(contexts.values()))
    with first.on_cluster():
        replays = {
            kind: replay_drafter(context, "validation", "custom")
            for kind, context in contexts.items()
        }
    with first.alone_on_node():
        times = step_times_of_kinds(contexts)
    choice = choice_of(replays, times, first.settings, facts)
    main = str(first.settings.gated_concurrency)
    for each in choice.kinds:
        first.say(
            f"{each.kind}: K = {each.k}, acceptance length {each.acceptance_length.value:.2f},"
            f" predicted {each.tokens_per_s(main):.0f} tokens/s at concurrency {main}"
        )
    return choice


def choice_of(
    replays: Mapping[str, ReplaySums],
    times: Mapping[str, StepTimes],
    settings: EvalConfig,
    facts: Mapping[str, KindFacts],
) -> KindChoice:
    """The forecast of every kind, the fastest at the main concurrency first."""
    plain_s = {
        size: float(np.mean([own.plain_s[size] for own in times.values()]))
        for size in settings.concurrency
    }
    kinds = [
        forecast(kind, replay, times[kind], settings, plain_s, facts[kind])
        for kind, replay in replays.items()
    ]
    main = str(settings.gated_concurrency)
    kinds.sort(key=lambda each: -each.tokens_per_s(main))
    return KindChoice(
        kinds=kinds,
    )


def forecast(
    kind: str,
    replay: ReplaySums,
    times: StepTimes,
    settings: EvalConfig,
    plain_s: Mapping[int, float],
    facts: KindFacts,
) -> KindForecast:
    """K, acceptance and steps of one kind.

    `plain_s` are the seconds of the target's own steps, on the machine of all kinds.
    """
    fits, main = fits_of(times, settings.seed), settings.gated_concurrency
    k = times.numbers[-1]
    if len(times.numbers) > 1:
        k = best_k(replay.acceptance_length(), times.numbers, fits[main], least=1).k
    place = times.numbers.index(k)
    return KindForecast(
        kind=kind,
        k=k,
        acceptance_length=acceptance_length(replay, k),
        step_ms={
            str(size): 1000 * fit.step_s[place] * plain_s[size] / times.plain_s[size]
            for size, fit in fits.items()
        },
        facts=facts,
    )


def acceptance_length(replay: ReplaySums, k: int) -> ClusteredEstimate:
    """Acceptance length with k drafts, its interval over sessions."""
    sums_N2 = np.stack([replay.tokens_R, replay.steps_RK[:, k - 1]], axis=1)
    found = clustered(sums_N2, replay.sessions, lambda sums: sums[..., 0] / sums[..., 1])
    return ClusteredEstimate.of(found)


def numbers_of(context: EvaluationContext) -> list[int]:
    """The numbers of drafts at which a kind's steps are timed."""
    settings: EvalConfig = context.settings
    if settings.k != "auto":
        return [settings.k]
    if context.speculators["custom"].fixed_k:
        return [context.depth]
    return list(range(0 if context.by_batch_size else 1, context.depth + 1))


def step_times_of_kinds(contexts: Contexts) -> dict[str, StepTimes]:
    """Step times by kind, kept in the caches of the kinds' evaluations."""
    first = next(iter(contexts.values()))
    settings, mode = first.settings, first.settings.engine_modes[0]
    validation = first.data.rows(first.data.parts["validation"])
    _, prompts = evaluation_prompts(validation, settings, first.serving)
    speculators = {kind: context.speculators["custom"] for kind, context in contexts.items()}
    plan = None if settings.k == "auto" else dict.fromkeys(contexts, settings.k)
    if not all(context.cache.done("step_times") for context in contexts.values()):
        first.say(f"timing steps of the {mode} engine: {', '.join(contexts)} in turn")
    servers = first.backends.servers(
        first.target,
        first.serving,
        speculators,
        first.depth,
        first.folders.logs,
        settings.side_by_side,
    )
    with servers as pool, first.open_load() as load:

        def timed(kind: str) -> StepTimes:
            return first.backends.step_times(
                pool,
                mode,
                load,
                numbers_of(contexts[kind]),
                settings.concurrency,
                [prompt.text for prompt in prompts],
                customers_sampling(validation),
                settings.max_tokens,
                kind,
                plan,
            )

        times = {}
        for kind, context in contexts.items():
            times[kind] = context.cached("step_times", StepTimes, functools.partial(timed, kind))
    for context in contexts.values():
        base = context.speculators["base"]
        for kind, own in times.items():
            # Base's steps are those of the kind that can take turns with it in one engine.
            if base.directory and not context.one_engine and speculators[kind].swaps_with(base):
                context.cache.put("step_times_base", own.model_dump(mode="json"))
    return times
