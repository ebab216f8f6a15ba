"""Forecast of each kind's tokens/s from exact replay and timed steps, before anything is served.

    found = forecast(timed, replays, facts, settings, prompt_tokens=210, by_batch_size=False)
    found.kinds[0].kind, found.finalists

Acceptance is replayed on the validation part, with the recipe's depth. Each kind drafts its own
best number of tokens (best_k.py). The closed loop is simulated with its steps, as for predicted
and measured throughput (predicted.py). So the forecast includes the prompts, which choose_k leaves
out because they cost the same at every k of one kind.

The interval combines those of the acceptance length (over sessions) and of the step time (over
turns of the servers), as independent errors of a log.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from outrider.eval.bench.kind_steps import KindSteps
from outrider.eval.bench.server_pool import PLAIN
from outrider.eval.config import EvalConfig
from outrider.eval.prediction.best_k import best_k
from outrider.eval.prediction.choose_k import RESAMPLES
from outrider.eval.prediction.paired_steps import fit_paired
from outrider.eval.prediction.step_fit import StepFit, fit_steps
from outrider.eval.prediction.throughput_simulator import closed_loop_seconds
from outrider.eval.replay.replay import ReplaySums
from outrider.eval.results.kinds import KindChoice, KindFacts, KindForecast, NoneForecast
from outrider.eval.results.parts import Estimate, SliceEstimate
from outrider.eval.results.prediction import KReason
from outrider.eval.stats.clusters import clustered
from outrider.eval.stats.intervals import percentile_interval
from outrider.serving.step_times import StepCosts, StepTimes

FINALISTS = 2
"""Kinds that are served."""


@dataclass(frozen=True)
class Candidate:
    """A trained kind."""

    in_words: str
    replay: ReplaySums
    """Of the validation part."""
    facts: KindFacts


def forecast(
    timed: KindSteps,
    candidates: Mapping[str, Candidate],
    settings: EvalConfig,
    prompt_tokens: float,
    by_batch_size: bool,
) -> KindChoice:
    """The forecast of every kind, the fastest at the main concurrency first."""
    fits = _fits(timed, settings.seed)
    main = settings.gated_concurrency
    kinds = [
        _kind(name, each, timed, fits[name], settings, prompt_tokens, by_batch_size)
        for name, each in candidates.items()
    ]
    kinds.sort(key=lambda each: -each.tokens_per_s[str(main)].value)
    replay = next(iter(candidates.values())).replay
    step = {size: _step(fits[PLAIN], size, 0) for size in settings.concurrency}
    none = {}
    for size in settings.concurrency:
        costs = _costs(fits[PLAIN], 0, timed.prompt_token_s[PLAIN])
        speed = _simulated(replay, None, size, costs, settings, prompt_tokens)
        low, high = (
            speed * step[size].value / step[size].high,
            speed * step[size].value / step[size].low,
        )
        none[str(size)] = Estimate(value=speed, low=low, high=high)
    return KindChoice(
        mode=settings.engine_modes[0],
        main_concurrency=main,
        sequences=len(replay.sequence_ids),
        turns={str(size): len(turns) for size, turns in timed.turns[PLAIN].items()},
        none=NoneForecast(
            step_ms={str(size): _milliseconds(each) for size, each in step.items()},
            tokens_per_s=none,
        ),
        kinds=kinds,
        finalists=[each.kind for each in kinds[:FINALISTS]],
    )


def step_times_of(timed: KindSteps, seed: int) -> dict[str, StepTimes]:
    """Each kind's step times as its evaluation reads them, to choose the same K.

    Levels are those of the forecast. Kinds that can make only one number of drafts are left out.
    """
    fits, found = _fits(timed, seed), {}
    for name, numbers in timed.numbers.items():
        if len(numbers) == 1:
            continue
        step_s, rounds = {}, {}
        for size, turns in timed.tables(name).items():
            rows_RK = np.concatenate(turns)
            own = fit_steps({size: rows_RK}, 1, seed).step_s[size]
            rows_RK *= np.array(fits[name].step_s[size]) / np.array(own)
            step_s[size] = [fits[PLAIN].step_s[size][0], *fits[name].step_s[size]]
            rounds[size] = [
                [None if np.isnan(value) else float(value) for value in row] for row in rows_RK
            ]
        prompts = timed.prompt_token_s[PLAIN], timed.prompt_token_s[name]
        found[name] = StepTimes(step_s, prompts, rounds)
    return found


def _fits(timed: KindSteps, seed: int) -> dict[str, StepFit]:
    tables = {name: timed.tables(name) for name in timed.turns}
    if timed.shared:
        return fit_paired(tables, RESAMPLES, seed)
    return {
        name: fit_steps({size: np.concatenate(t) for size, t in own.items()}, RESAMPLES, seed)
        for name, own in tables.items()
    }


def _kind(
    name: str,
    candidate: Candidate,
    timed: KindSteps,
    fit: StepFit,
    settings: EvalConfig,
    prompt_tokens: float,
    by_batch_size: bool,
) -> KindForecast:
    replay, numbers = candidate.replay, timed.numbers[name]
    lengths, main = replay.acceptance_length(), settings.gated_concurrency
    k, reason = _best(lengths, fit, numbers, main)
    k_at = dict.fromkeys(settings.concurrency, k)
    if by_batch_size:
        k_at |= {
            size: _best(lengths, fit, numbers, size)[0]
            for size in settings.concurrency
            if size != main
        }
    step, speed = {}, {}
    for size, own_k in k_at.items():
        place = numbers.index(own_k)
        step[size] = _step(fit, size, place)
        costs = _costs(fit, place, timed.prompt_token_s[name])
        value = _simulated(replay, own_k, size, costs, settings, prompt_tokens)
        speed[size] = _with_margins(value, _length(replay, own_k), step[size])
    return KindForecast(
        kind=name,
        in_words=candidate.in_words,
        k=k,
        k_by_concurrency={str(size): own_k for size, own_k in k_at.items()},
        reason=reason,
        acceptance_length=_length(replay, k),
        step_ms={str(size): _milliseconds(each) for size, each in step.items()},
        tokens_per_s={str(size): each for size, each in speed.items()},
        facts=candidate.facts,
    )


def _best(
    lengths: Sequence[float], fit: StepFit, numbers: Sequence[int], size: int
) -> tuple[int, KReason | None]:
    """The number of drafts at this batch size, and why; the only one where it was not chosen."""
    if len(numbers) == 1:
        return numbers[0], None
    reason = best_k(lengths, fit, size, least=1)
    return reason.k, reason


def _length(replay: ReplaySums, k: int) -> SliceEstimate:
    """Acceptance length with k drafts, its interval over sessions."""
    sums_N2 = np.stack([replay.tokens_R, replay.steps_RK[:, k - 1]], axis=1)
    found = clustered(sums_N2, replay.sessions, lambda sums: sums[..., 0] / sums[..., 1])
    return SliceEstimate(value=found.value, low=found.low, high=found.high)


def _step(fit: StepFit, size: int, place: int) -> Estimate:
    """Seconds of a step of so many requests, with the number of drafts of that column."""
    low, high = percentile_interval(fit.draws_S[size][:, place])
    return Estimate(value=fit.step_s[size][place], low=low, high=high)


def _costs(fit: StepFit, place: int, prompt_token_s: float) -> StepCosts:
    return StepCosts({size: row[place] for size, row in fit.step_s.items()}, prompt_token_s)


def _simulated(
    replay: ReplaySums,
    k: int | None,
    concurrency: int,
    costs: StepCosts,
    settings: EvalConfig,
    prompt_tokens: float,
) -> float:
    """Tokens/s of closed loops of the validation responses; `k` None: without speculation.

    Each response takes the steps that replay expects for it, those that are cut a share of them.
    """
    # The prefill delivers the first token, and each step of replay the others.
    later_R = np.minimum(replay.tokens_R, settings.max_tokens - 1)
    steps_R = later_R
    if k is not None:
        steps_R = replay.steps_RK[:, k - 1] * later_R / replay.tokens_R
    each = settings.block_requests(concurrency)
    tokens, seconds = 0.0, 0.0
    for begin in range(0, max(len(later_R) - each, 0) + 1, each):
        block = [place % len(later_R) for place in range(begin, begin + each)]
        seconds += closed_loop_seconds(steps_R[block].tolist(), concurrency, costs, prompt_tokens)
        tokens += float(later_R[block].sum()) + each
    return tokens / seconds


def _with_margins(value: float, length: SliceEstimate, step: Estimate) -> SliceEstimate:
    if length.low is None or length.high is None:
        return SliceEstimate(value=value, low=None, high=None)
    below = math.hypot(math.log(length.value / length.low), math.log(step.high / step.value))
    above = math.hypot(math.log(length.high / length.value), math.log(step.value / step.low))
    return SliceEstimate(value=value, low=value * math.exp(-below), high=value * math.exp(above))


def _milliseconds(seconds: Estimate) -> Estimate:
    return Estimate(value=1000 * seconds.value, low=1000 * seconds.low, high=1000 * seconds.high)
