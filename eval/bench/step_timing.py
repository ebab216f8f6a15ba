"""Times the steps of the measured servers, for every number of drafts, to choose k.

    times = time_steps(fleet, load, depth=4, batch_sizes=[1, 4, 8], prompts=texts, ...)
    times.step_s[4][2]      # seconds of a step of 4 requests with 2 drafts each

The servers answer closed loops of prompts and record their steps. The speculating server rotates
through all numbers of drafts (serving/vllm_hooks/step_recorder.py), so that every number meets the
same requests, weights and machine noise, and it takes turns with the server without speculation.

After these rounds `undecided` looks at the times. While the choice is open between some numbers,
the speculating server goes on with rounds of these, which take half the time of a round of all: at
most LOOKS looks and FURTHER_SECONDS.
"""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from outrider.eval.bench.server_pool import PLAIN, Fleet
from outrider.eval.stats.sequential import Looks
from outrider.serving.client import Sampling
from outrider.serving.load_generator import WARM_UP_TOKENS
from outrider.serving.step_times import StepTimes, enough, rounds_of, summarise_steps
from outrider.serving.vllm_hooks.step_recorder import Step

if TYPE_CHECKING:
    from outrider.serving.load_generator import LoadGenerator

LEAST_ROUNDS, MOST_ROUNDS = 2, 8
"""Rounds of blocks at every batch size. A shared machine is slow for seconds or minutes, so one
round is not enough. After the least, batch sizes that have their steps are left out; after the
most, the steps must do."""

LOOKS = Looks(1, 4)
"""Looks at the choice of k: after the rounds of all numbers, and after each of FURTHER_ROUNDS."""

FURTHER_ROUNDS = (20, 40, 80)
"""Rounds of the undecided numbers before the second, third and fourth look."""

FURTHER_SECONDS = 30.0
"""Time limit of these rounds, all looks together."""

Undecided = Callable[[StepTimes], Mapping[int, Sequence[int]]]
"""By batch size, the numbers of drafts between which the times do not decide."""

DRAFTING = "custom"
"""Variant whose server is timed. Where base shares it, base costs the same."""


def time_steps(
    fleet: Fleet,
    load: "LoadGenerator",
    depth: int,
    batch_sizes: Sequence[int],
    prompts: Sequence[str],
    sampling: Sampling,
    max_tokens: int,
    first: int = 1,
    drafter: str = DRAFTING,
    undecided: Undecided = lambda times: {},
    seconds: float = FURTHER_SECONDS,
) -> StepTimes:
    """Step times at every batch size with 0..depth drafts.

    `prompts` are rendered text, used in turn; responses have up to `max_tokens` tokens. The fleet's
    speculating servers rotate through `first`..depth drafts (`Fleet.draft` not yet called), then
    through those that `undecided` names, until it names none, for at most so many `seconds`.
    `drafter` is the one whose steps are timed.
    """
    supply, widest = itertools.cycle(prompts), max(batch_sizes)
    numbers = {PLAIN: range(1), drafter: range(first, depth + 1)}
    fleet.rotate(list(numbers[drafter]))
    found: dict[str, dict[int, list[Step]]] = {
        variant: {size: [] for size in batch_sizes} for variant in numbers
    }

    def run(variant: str, size: int, requests: int, tokens: int) -> list[Step]:
        texts = list(itertools.islice(supply, requests))
        return steps_of_block(fleet, load, variant, texts, size, sampling, tokens)

    def has_enough(variant: str, size: int) -> bool:
        return enough(found[variant][size], size, numbers[variant])

    for group in fleet.groups:
        timed = [variant for variant in numbers if variant in group]
        for nth in range(MOST_ROUNDS):
            for size, variant in itertools.product(batch_sizes, timed):
                if nth >= LEAST_ROUNDS and all(has_enough(each, size) for each in timed):
                    continue
                fleet.server(variant)
                if fleet.is_fresh(variant):
                    run(variant, widest, widest, WARM_UP_TOKENS)
                requests = size * (4 if variant == drafter else 1)
                found[variant][size] += run(variant, size, requests, max_tokens)
    times = summarise_steps(found[PLAIN], found[drafter], depth, first)
    began = time.monotonic()

    def lasts() -> bool:
        return time.monotonic() < began + seconds

    while times.looks < LOOKS.last and lasts() and (wanted := undecided(times)):
        rounds, further = dict(times.rounds), dict(times.further)
        for size, some in wanted.items():
            fleet.rotate(some)
            steps: list[Step] = []
            rows: list[list[float | None]] = []
            while lasts() and len(rows) < FURTHER_ROUNDS[times.looks - 1]:
                steps += run(drafter, size, size * 4, max_tokens)
                rows = rounds_of(steps, size, numbers[drafter])
            rounds[size] = [*rounds[size], *rows]
            further[size] = further.get(size, 0) + len(rows)
        times = replace(times, rounds=rounds, looks=times.looks + 1, further=further)
    return times


def steps_of_block(
    fleet: Fleet,
    load: "LoadGenerator",
    variant: str,
    texts: list[str],
    size: int,
    sampling: Sampling,
    max_tokens: int,
) -> list[Step]:
    """Steps of the variant's server while it answers one block, `size` requests at a time."""
    server = fleet.server(variant)
    fleet.new_steps(variant)  # drops steps recorded before this block
    load.run_block(server.url, texts, size, sampling, max_tokens)
    return fleet.new_steps(variant)
