"""Which of several trained kinds are served, by exact replay and timed steps.

    choice = choose_kind({"mine": context, "theirs": other}, facts, out_dir)
    choice.finalists

A context is that of the kind's evaluation, so the replays that are made here are in its cache when
it is evaluated. Responses and prompts are of the validation part: nothing is chosen on the held-out
part. The servers of all kinds and the one without speculation are up at once, where the machine
holds them, and take turns.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from outrider.eval.bench.kind_steps import KindSteps, time_kinds
from outrider.eval.bench.measurement_cache import Steps
from outrider.eval.bench.prompts import customers_sampling, evaluation_prompts
from outrider.eval.bench.server_pool import PLAIN
from outrider.eval.context import EvaluationContext
from outrider.eval.evaluate import check
from outrider.eval.prediction.kind_forecast import Candidate, forecast, step_times_of
from outrider.eval.replay.heldout_replay import replay_drafter
from outrider.eval.results.kinds import KindChoice, KindFacts
from outrider.serving.speculator import Speculator
from outrider.serving.step_times import StepTimes

Contexts = Mapping[str, EvaluationContext]
"""By kind."""


def choose_kind(contexts: Contexts, facts: Mapping[str, KindFacts], out_dir: Path) -> KindChoice:
    """The forecast of every kind; timed steps are kept in `out_dir`.

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
    digests = {kind: context.cache.digest for kind, context in contexts.items()}
    cache = Steps(out_dir / "steps", digests)
    with first.alone_on_node():
        measured = cache.run("kind_steps", lambda: _timed(contexts).model_dump(mode="json"))
    timed = KindSteps.model_validate(measured)
    if first.settings.k == "auto" and not first.by_batch_size:
        _keep_step_times(contexts, step_times_of(timed, first.settings.seed))
    validation = first.data.rows(first.data.parts["validation"])
    starts = validation["completion_start"]
    candidates = {
        kind: Candidate(context.speculators["custom"].in_words, replays[kind], facts[kind])
        for kind, context in contexts.items()
    }
    choice = forecast(
        timed,
        candidates,
        first.settings,
        sum(starts) / len(starts),
        first.by_batch_size,
    )
    for each in choice.kinds:
        speed = each.tokens_per_s[str(choice.main_concurrency)]
        first.say(
            f"{each.kind}: K = {each.k}, acceptance length {each.acceptance_length.value:.2f},"
            f" predicted {speed.value:.0f} tokens/s at concurrency {choice.main_concurrency}"
        )
    return choice


def _keep_step_times(contexts: Contexts, times: Mapping[str, StepTimes]) -> None:
    """Puts the times into the caches of the kinds' evaluations, which then do not time again.

    Base's are those of the kind that can take turns with it in one engine, if there is one.
    """
    for kind, context in contexts.items():
        if kind in times:
            context.cache.put("step_times", times[kind].as_dict())
        if context.one_engine:
            continue
        base = context.speculators["base"]
        for other, found in times.items():
            if contexts[other].speculators["custom"].exchanges_with(base):
                context.cache.put("step_times_base", found.as_dict())


def numbers_of(speculator: Speculator, k: int | Literal["auto"], depth: int) -> list[int]:
    """The numbers of drafts at which a kind's steps are timed."""
    if k != "auto":
        return [k]
    return [depth] if speculator.fixed_k else list(range(1, depth + 1))


def _timed(contexts: Contexts) -> KindSteps:
    """The timed steps of the server without speculation and of each kind's."""
    first = next(iter(contexts.values()))
    settings, mode = first.settings, first.settings.engine_modes[0]
    validation = first.data.rows(first.data.parts["validation"])
    _, prompts = evaluation_prompts(validation, settings, first.serving)
    speculators = {kind: context.speculators["custom"] for kind, context in contexts.items()}
    numbers = {PLAIN: [0]} | {
        kind: numbers_of(each, settings.k, first.depth) for kind, each in speculators.items()
    }
    plan = None if settings.k == "auto" else dict.fromkeys(contexts, settings.k)
    first.say(f"timing steps of the {mode} engine: {', '.join(numbers)} in turn")
    servers = first.backends.servers(
        first.target,
        first.serving,
        speculators,
        first.depth,
        first.folders.logs,
        settings.side_by_side,
    )
    with servers as pool, first.open_load() as load:
        return time_kinds(
            pool.fleet(mode, plan),
            load,
            numbers,
            settings.concurrency,
            [prompt.text for prompt in prompts],
            customers_sampling(validation),
            settings.max_tokens,
            settings.concurrency if first.by_batch_size else [settings.gated_concurrency],
        )
