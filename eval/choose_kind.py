"""Chooses the drafter kind to evaluate by speed on the validation part.

    kinds = choose_kind({"mtp": context, "eagle3": other, "ngram": lookup}, facts)
    kinds[0].kind

Kinds are compared in the same way as numbers of drafts (choose_k.py): by prefill plus replayed
steps times seconds per step, each kind at its best K, at the main concurrency. The servers of the
kinds, of base and without speculation are timed in turn; kinds whose steps take equally long are
timed once (kind_turns.py). A lookup needs no training, so the fastest one is chosen unless a
trained kind is shown to be faster. The choice does not use the held-out part, whose intervals
therefore need no correction.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from outrider.eval.bench.prompts import customers_sampling, evaluation_prompts
from outrider.eval.bench.request_fields import request_fields
from outrider.eval.bench.step_times import StepTimes, step_prompts, time_steps
from outrider.eval.choose_k import best_k, speeds_of
from outrider.eval.config import MIN_GAIN
from outrider.eval.context import EvaluationContext
from outrider.eval.evaluate import check_evaluation
from outrider.eval.kind_turns import REFERENCES, kind_turns
from outrider.eval.lookups import separates_tenants, with_best_lookups
from outrider.eval.replay.heldout_replay import replay_drafter
from outrider.eval.replay.sums import ReplaySums, length_at
from outrider.eval.results.parts import ClusteredEstimate
from outrider.eval.results.sections import KindSpeed
from outrider.eval.stats.clusters import clustered_estimate
from outrider.serving.speculator import Speculator
from outrider.speculators.kinds import lookup_names


def choose_kind(
    contexts: Mapping[str, EvaluationContext], facts: Mapping[str, Mapping[str, Any]]
) -> list[KindSpeed]:
    """Times and ranks all kinds, base and no speculation; the chosen kind comes first.

    The contexts differ only in the custom speculator and its folders. `facts` holds `parameters`
    and `training_minutes` of each trained kind.
    """
    for context in contexts.values():
        check_evaluation(context)
    contexts = with_best_lookups(contexts)
    first = next(iter(contexts.values()))
    replays = {
        kind: replay_drafter(context, "validation", "custom") for kind, context in contexts.items()
    }
    replays["base"] = replay_drafter(first, "validation", "base")
    replays["none"] = replays["base"].without_drafts()
    times = first.cached_measurement(
        "step_times_of_kinds", StepTimes, lambda: _time_kinds(contexts, replays)
    )
    main = first.settings.main
    steps = {kind: row[main] for kind, row in times.seconds.items()}
    described = {
        kind: {**facts.get(kind, {}), "runner": first.runner(speculator)}
        for kind, speculator in _speculators(contexts).items()
    }
    prefill = {kind: row.get(main, 0.0) for kind, row in times.prefill.items()}
    return rank_kinds(replays, steps, main, described, prefill=prefill)


def rank_kinds(
    replays: Mapping[str, ReplaySums],
    steps: Mapping[str, Mapping[int, float]],
    main: int,
    facts: Mapping[str, Any],
    *,
    prefill: Mapping[str, float],
) -> list[KindSpeed]:
    """Ranks the kinds: the chosen one, then the others and REFERENCES, fastest first.

    `steps` holds seconds per step at concurrency `main`, by kind and number of drafts; `prefill`
    seconds of prefill per token of a response, by kind; `facts` the further fields of each
    `KindSpeed`.
    """
    best = {}
    seconds_R = {}
    for kind, sums in replays.items():
        prefill_s = prefill.get(kind, 0.0)
        lengths = sums.acceptance_length()
        speeds = speeds_of(lengths, {main: steps[kind]}, {main: prefill_s})[main]
        k = best_k(speeds, least=min(1, max(steps[kind])))
        best[kind] = k
        seconds_R[kind] = sums.tokens_R * prefill_s + sums.steps_at(k) * steps[kind][k]

    lookups = [kind for kind in replays if kind in lookup_names()]
    # With the smallest sum of seconds, over the same responses.
    lookup = min(lookups, key=lambda kind: seconds_R[kind].sum(), default="")

    def over_lookup(kind: str) -> ClusteredEstimate | None:
        if not lookup or kind == lookup:
            return None
        # The ratio of the sums of seconds is the ratio of tokens/s: the responses are the same.
        sums_R2 = np.stack([seconds_R[lookup], seconds_R[kind]], axis=1)
        sums = replays[kind]
        return clustered_estimate(
            sums_R2, sums.sessions, lambda s: s[..., 0] / s[..., 1], users=sums.users
        )

    kinds = [
        KindSpeed(
            kind=kind,
            k=best[kind],
            acceptance_length=length_at(sums, best[kind]),
            step_ms=1000 * steps[kind][best[kind]],
            step_ms_by_k={k: 1000 * seconds for k, seconds in steps[kind].items()},
            prefill_ms=1000 * prefill.get(kind, 0.0),
            over_lookup=over_lookup(kind),
            **facts[kind],
        )
        for kind, sums in replays.items()
    ]
    kinds.sort(key=lambda speed: -speed.tokens_per_s(main))
    chosen = _chosen(kinds, lookup)
    return [chosen, *(speed for speed in kinds if speed is not chosen)]


def _chosen(kinds: Sequence[KindSpeed], lookup: str) -> KindSpeed:
    """The fastest trained kind, or `lookup` unless that kind is shown to be faster."""
    of_lookup = next((speed for speed in kinds if speed.kind == lookup), None)
    untrained = (*lookup_names(), *REFERENCES)
    trained = next((speed for speed in kinds if speed.kind not in untrained), None)
    if trained is None or of_lookup is None:
        chosen = trained or of_lookup
        assert chosen is not None
        return chosen
    ratio = trained.over_lookup
    assert ratio is not None
    # With too few sessions for an interval, the estimated gain must exceed MIN_GAIN.
    faster = ratio.value > 1 + MIN_GAIN if ratio.low is None else ratio.low > 1
    return trained if faster else of_lookup


def _speculators(contexts: Mapping[str, EvaluationContext]) -> dict[str, Speculator]:
    """The speculator of each kind and of REFERENCES."""
    first = next(iter(contexts.values()))
    speculators = {kind: context.speculators["custom"] for kind, context in contexts.items()}
    return {**speculators, "base": first.speculators["base"], "none": Speculator("none")}


def _time_kinds(
    contexts: Mapping[str, EvaluationContext], replays: Mapping[str, ReplaySums]
) -> StepTimes:
    """Times the steps of all kinds at the main concurrency, in turn."""
    first = next(iter(contexts.values()))
    settings = first.settings
    mode = first.settings.engine_modes[0]
    validation = first.data.rows(first.data.parts["validation"])
    _, prompts = evaluation_prompts(validation, settings, first.serving)
    sampling = customers_sampling(validation)
    texts = [prompt.text for prompt in prompts]
    speculators = _speculators(contexts)
    lengths = {kind: replays[kind].acceptance_length() for kind in speculators}
    drafts = {kind: first.draft_numbers(speculator) for kind, speculator in speculators.items()}
    timed_as, numbers = kind_turns(speculators, lengths, drafts, first.serving.engine)
    first.say(f"timing steps of the {mode} engine: {', '.join(numbers)} in turn")
    fields = request_fields(
        validation,
        first.target,
        first.serving.engine,
        salted=separates_tenants(speculators.values()),
    )
    with first.open_servers(speculators, texts, fields) as (load, servers):
        times = time_steps(
            servers=servers,
            mode=mode,
            load=load,
            numbers=numbers,
            batch_sizes=dict.fromkeys(numbers, (settings.main,)),
            prompts=step_prompts(
                validation, first.target.directory(), first.serving.engine.max_model_len
            ),
            sampling=sampling,
            speculators=speculators,
        )
    return StepTimes(
        seconds={kind: times.seconds[timed] for kind, timed in timed_as.items()},
        prefill={kind: times.prefill[timed] for kind, timed in timed_as.items()},
        contexts=times.contexts,
    )
