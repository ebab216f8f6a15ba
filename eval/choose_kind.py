"""Which of several trained kinds is evaluated: the fastest on the validation part.

    choice = choose_kind({"mtp": context, "eagle3": other}, facts)
    choice.chosen

Kinds are compared as numbers of drafts are (choose_k.py): acceptance by exact replay over the time
of a step, each at its own K. The servers of all kinds are timed in turn. Nothing is chosen on the
held-out part, so that its intervals are those of one comparison.
"""

from collections.abc import Mapping
from typing import Any

from outrider.eval.bench.prompts import customers_sampling, evaluation_prompts
from outrider.eval.bench.step_times import StepTimes, time_steps
from outrider.eval.choose_k import Speeds, best_k, speeds_of
from outrider.eval.context import EvaluationContext
from outrider.eval.evaluate import check
from outrider.eval.replay.heldout_replay import replay_drafter
from outrider.eval.replay.replay import ReplaySums, length_at
from outrider.eval.results.choice import KindChoice, KindSpeed


def choose_kind(
    contexts: Mapping[str, EvaluationContext], facts: Mapping[str, Mapping[str, Any]]
) -> KindChoice:
    """Times and ranks every kind.

    The contexts differ in the custom speculator and its folders only. `facts` are `parameters` and
    `training_minutes` by kind.
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
        times = first.cached("step_times_of_kinds", StepTimes, lambda: _time_kinds(contexts))
    kinds = [
        speed_of(kind, replays[kind], times.seconds[kind], first.settings.main, facts[kind])
        for kind in contexts
    ]
    return ranked(kinds, first.settings.main)


def ranked(kinds: list[KindSpeed], main: int) -> KindChoice:
    """The choice of the fastest at the main concurrency."""
    return KindChoice(kinds=sorted(kinds, key=lambda each: -each.tokens_per_s(str(main))))


def speed_of(
    kind: str, replay: ReplaySums, steps: Speeds, main: int, facts: Mapping[str, Any]
) -> KindSpeed:
    """One kind at its own best K at batch size `main`; `steps` are seconds of a step."""
    k = best_k(speeds_of(replay.acceptance_length(), steps)[main], least=1)
    return KindSpeed(
        kind=kind,
        k=k,
        acceptance_length=length_at(replay, k),
        step_ms={str(size): 1000 * row[k] for size, row in steps.items()},
        **facts,
    )


def _time_kinds(contexts: Mapping[str, EvaluationContext]) -> StepTimes:
    """Step times of all kinds, in servers that take turns."""
    first = next(iter(contexts.values()))
    settings, mode = first.settings, first.settings.engine_modes[0]
    validation = first.data.rows(first.data.parts["validation"])
    _, prompts = evaluation_prompts(validation, settings, first.serving)
    sampling = customers_sampling(validation)
    texts = [prompt.text for prompt in prompts]
    speculators = {kind: context.speculators["custom"] for kind, context in contexts.items()}
    wanted = range(1, first.depth + 1) if settings.k == "auto" else [settings.k]
    numbers = {
        kind: [max(wanted)] if own.abilities.fixed_k else wanted
        for kind, own in speculators.items()
    }
    first.say(f"timing steps of the {mode} engine: {', '.join(contexts)} in turn")
    with first.open_load() as load, first.open_servers(speculators, load, texts) as servers:
        return time_steps(
            servers, mode, load, numbers, settings.concurrency, texts, sampling, speculators
        )
