"""Times the steps of the measured servers, for every number of drafts, to choose K.

    times = time_steps(fleet, load, range(1, 5), [1, 4, 8], prompts=texts, ...)
    times.fit(4, samples=1000, seed=0).step_s      # seconds of a step of 4 requests, by drafts
    times.plain_s[4]                               # seconds of the target's own step

The servers answer closed loops of prompts and record their steps (vllm_hooks/step_recorder.py), so
the share of the machine that front end and clients take is in them. The speculating server rotates
through all numbers of drafts, so that every number meets the same requests, weights and noise of
the machine, and it takes turns with the server without speculation.

Shapes: R rounds, K numbers of drafts, S resamples.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from outrider.common.errors import OutriderError
from outrider.eval.bench.server_pool import PLAIN, DraftPlan, Fleet, ServerPool
from outrider.serving.client import Sampling
from outrider.serving.load_generator import WARM_UP_TOKENS
from outrider.serving.vllm_hooks.step_recorder import Step

if TYPE_CHECKING:
    from outrider.serving.load_generator import LoadGenerator

Array = NDArray[np.float64]

STEPS = 16
"""Timed steps wanted without drafts, of each batch size."""

ROUNDS = 20
"""Timed rounds wanted of each batch size.

Runs of eight steps differ by 6 % within a round, so that two numbers are known to
6 % * sqrt(2 / 20) = 2 % after twenty.
"""

RUN_STEPS = 2
"""Least number of timed steps of a run; fewer say nothing of it."""

LEAST_BLOCKS, MOST_BLOCKS = 2, 8
"""Blocks of every server at every batch size. A shared machine is slow for seconds or minutes, so
one block is not enough. After the least, batch sizes that have their steps are left out; after the
most, the steps must do."""


@dataclass(frozen=True)
class StepFit:
    """Seconds of a step by number of drafts."""

    step_s: list[float]
    draws_SK: Array
    """The same from resampled rounds, [S, K]."""


class StepTimes(BaseModel):
    """Seconds of steps that only decode, by batch size."""

    numbers: list[int]
    """Numbers of drafts, the columns of the rounds"""
    plain_s: dict[int, float]
    """Of the target's own step, without speculation"""
    rounds: dict[int, list[list[float]]]
    """A row for each rotation through the numbers of drafts"""

    def fit(self, size: int, samples: int, seed: int) -> StepFit:
        """The median of each number over rounds, relative to its round, and resampled rounds.

        A shared machine is slow for seconds or minutes, which multiplies the times of a whole
        round: medians are of log times without their round's mean.
        """
        log_RK = np.log(np.array(self.rounds[size]))
        level_R1 = log_RK.mean(axis=1, keepdims=True)
        apart_RK, level = log_RK - level_R1, float(np.median(level_R1))
        count = len(log_RK)
        drawn_SR = np.random.default_rng(seed).integers(count, size=(samples, count))
        return StepFit(
            np.exp(level + np.median(apart_RK, axis=0)).tolist(),
            np.exp(level + np.median(apart_RK[drawn_SR], axis=1)),
        )


def time_steps(
    servers: ServerPool,
    mode: str,
    load: "LoadGenerator",
    numbers: Sequence[int],
    batch_sizes: Sequence[int],
    prompts: Sequence[str],
    sampling: Sampling,
    max_tokens: int,
    drafter: str = "custom",
    plan: DraftPlan | None = None,
) -> StepTimes:
    """Step times of `drafter` at every batch size with these numbers of drafts, ascending.

    `prompts` are rendered text, used in turn; responses have up to `max_tokens` tokens. Raises
    `OutriderError` where responses are too short to time a step. Servers that cannot change their
    number of drafts are started for each, and `time_blocks` times them.
    """
    if not servers.engine.changes_drafters:
        apart = [
            time_blocks(
                servers.fleet(mode, {drafter: k}), load, k, batch_sizes, prompts, sampling,
                max_tokens, drafter,
            )
            for k in numbers
        ]  # fmt: skip
        return joined(apart)
    fleet = servers.fleet(mode, plan)
    supply, widest = itertools.cycle(prompts), max(batch_sizes)
    wanted = {PLAIN: [0], drafter: list(numbers)}
    fleet.rotate(wanted[drafter])
    found: dict[str, dict[int, list[Step]]] = {
        variant: {size: [] for size in batch_sizes} for variant in wanted
    }

    def run(variant: str, size: int, requests: int, tokens: int) -> list[Step]:
        server = fleet.server(variant)
        fleet.new_steps(variant)  # drops steps recorded before this block
        texts = list(itertools.islice(supply, requests))
        load.run_block(server.url, texts, size, sampling, tokens)
        return fleet.new_steps(variant)

    def has_enough(variant: str, size: int) -> bool:
        steps = found[variant][size]
        if variant == PLAIN:
            return len(settled(steps, size, 0)) >= STEPS
        return len(rounds_of(steps, size, wanted[variant])) >= ROUNDS

    for group in fleet.groups:
        timed = [variant for variant in wanted if variant in group]
        for nth in range(MOST_BLOCKS):
            for size, variant in itertools.product(batch_sizes, timed):
                if nth >= LEAST_BLOCKS and all(has_enough(each, size) for each in timed):
                    continue
                fleet.server(variant)
                if fleet.is_fresh(variant):
                    run(variant, widest, widest, WARM_UP_TOKENS)
                requests = size * (4 if variant == drafter else 1)
                found[variant][size] += run(variant, size, requests, max_tokens)
    return summarise_steps(found[PLAIN], found[drafter], list(numbers))


def time_blocks(
    fleet: Fleet,
    load: "LoadGenerator",
    k: int,
    batch_sizes: Sequence[int],
    prompts: Sequence[str],
    sampling: Sampling,
    max_tokens: int,
    drafter: str,
) -> StepTimes:
    """Step times from the clock and the server's counts of steps, for servers of one number.

    A block of requests takes drafts / B steps (for the target alone: tokens / B) and its prefills,
    which take as long for every number. Blocks of both servers alternate; steps that are recorded
    by several data-parallel schedulers would not add up.
    """
    supply, rounds, plain_s = itertools.cycle(prompts), {}, {}

    def run(variant: str, size: int) -> float:
        server = fleet.server(variant)
        texts = list(itertools.islice(supply, 4 * size))
        if fleet.is_fresh(variant):
            load.run_block(server.url, texts, size, sampling, WARM_UP_TOKENS)
        before = server.counters()
        result = load.run_block(server.url, texts, size, sampling, max_tokens)
        counted = server.counters() - before
        return result.seconds * size / (counted.drafts or counted.generation_tokens)

    for size in batch_sizes:
        seconds: dict[str, list[float]] = {PLAIN: [], drafter: []}
        for group in fleet.groups:
            for _ in range(MOST_BLOCKS):
                for variant in seconds:
                    if variant in group:
                        seconds[variant].append(run(variant, size))
        plain_s[size] = float(np.median(seconds[PLAIN]))
        rounds[size] = [[each] for each in seconds[drafter]]
    return StepTimes(numbers=[k], plain_s=plain_s, rounds=rounds)


def joined(parts: Sequence[StepTimes]) -> StepTimes:
    """Times of several numbers that were timed apart, each beside the target's own steps."""
    plain_s = {
        size: float(np.median([part.plain_s[size] for part in parts])) for size in parts[0].plain_s
    }
    rounds = {}
    for size, own in plain_s.items():
        columns = [np.array(part.rounds[size])[:, 0] * own / part.plain_s[size] for part in parts]
        rounds[size] = [list(map(float, row)) for row in zip(*columns, strict=False)]
    return StepTimes(
        numbers=[number for part in parts for number in part.numbers],
        plain_s=plain_s,
        rounds=rounds,
    )


def summarise_steps(
    plain: dict[int, list[Step]], drafting: dict[int, list[Step]], numbers: list[int]
) -> StepTimes:
    """Step times from the steps of a server without speculation and of one with."""
    plain_s, rounds = {}, {}
    for size in plain:
        alone = settled(plain[size], size, 0)
        rounds[size] = rounds_of(drafting[size], size, numbers)
        if not rounds[size]:  # too short for a whole rotation: the numbers apart
            each = [settled(drafting[size], size, k) for k in numbers]
            rounds[size] = [[float(np.median(times)) for times in each]] if all(each) else []
        if not alone or not rounds[size]:
            raise OutriderError(
                f"timing the engine's steps: at {size} requests at once there are no steps that"
                f" only decode with each of {numbers} drafts; are the held-out responses only a few"
                " tokens long? Raise eval.max_tokens, or set eval.k"
            )
        plain_s[size] = float(np.median(alone))
    return StepTimes(numbers=numbers, plain_s=plain_s, rounds=rounds)


def rounds_of(steps: Sequence[Step], size: int, numbers: Sequence[int]) -> list[list[float]]:
    """Median seconds of each run of equal drafts, one row per rotation through `numbers`.

    Of the steps that decode `size` requests. Rotations in which a number has too few are left out.
    """
    rows: list[dict[int, float]] = []
    before: int | None = None
    for drafts, run in itertools.groupby(steps, key=lambda step: step.drafts):
        seconds = settled(list(run), size, drafts)
        if before is None or drafts <= before:
            rows.append({})
        before = drafts
        if len(seconds) >= RUN_STEPS:
            rows[-1][drafts] = float(np.median(seconds))
    return [[row[k] for k in numbers] for row in rows if row.keys() >= set(numbers)]


def settled(steps: Iterable[Step], size: int, k: int) -> list[float]:
    """Seconds of the steps that decode `size` requests with k drafts, after a step like them.

    An engine that schedules ahead runs a step while it schedules the next.
    """
    return [
        step.seconds
        for before, step in itertools.pairwise(steps)
        if before.settled and before.lasting and before.drafts == k
        if step.settled and step.lasting and step.drafts == k and step.requests == size
    ]


def drafts_of(steps: Sequence[Step]) -> dict[str, list[float]]:
    """[steps, drafts per request] summed over steps without prompts, by the requests in them.

    The number of requests is a string, as in JSON.
    """
    sums: dict[str, list[float]] = {}
    for step in steps:
        if not step.prompt_tokens:
            row = sums.setdefault(str(step.requests), [0.0, 0.0])
            row[:] = [row[0] + 1, row[1] + step.drafts]
    return sums
