"""Times the steps of several servers that take turns: none, and one for each kind of drafter.

    steps = time_kinds(fleet, load, {"none": [0], "mine": [1, 2, 3]}, batch_sizes=[1, 8], ...)
    steps.turns["mine"][1]      # rounds of each turn, by number of drafts

Kinds cannot share an engine, so the machine's noise does not cancel by itself as it does between
numbers of drafts of one server (step_timing.py). The servers answer short blocks in turn, in an
order that rotates. eval/prediction/paired_steps.py makes their times comparable.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from outrider.common.errors import OutriderError
from outrider.eval.bench.server_pool import Fleet
from outrider.eval.bench.step_timing import steps_of_block
from outrider.eval.results.parts import Part
from outrider.serving.client import Sampling
from outrider.serving.load_generator import WARM_UP_TOKENS
from outrider.serving.step_times import (
    ROUNDS,
    StepCosts,
    prompt_token_s,
    rounds_of,
    settled,
    trimmed_mean,
)
from outrider.serving.vllm_hooks.step_recorder import RUN, Step

if TYPE_CHECKING:
    from outrider.serving.load_generator import LoadGenerator

LEAST_TURNS, MOST_TURNS = 4, 8
"""Turns of every server at every batch size: fewer say nothing of the machine's noise, more are
not made, whatever is missing."""

Rounds = list[list[float | None]]
"""Seconds of a step in each round of a turn, by number of drafts; null where there is no time."""


class KindSteps(Part):
    """Timed steps of several servers."""

    numbers: dict[str, list[int]]
    """Server -> its numbers of drafts, the columns of its rounds"""
    turns: dict[str, dict[int, list[Rounds]]]
    """Server -> batch size -> rounds of each turn"""
    prompt_token_s: dict[str, float]
    """Server -> seconds that a prompt token adds to the step in which it is computed"""
    shared: bool
    """Whether turn t of all servers was the same time; not so where the machine holds one at a
    time"""

    def tables(self, server: str) -> dict[int, list[np.ndarray]]:
        """By batch size: the rounds [R, K] of each turn in seconds, NaN where a time is missing."""
        width = len(self.numbers[server])
        return {
            size: [np.array(rounds, dtype=np.float64).reshape(-1, width) for rounds in turns]
            for size, turns in self.turns[server].items()
        }


def time_kinds(
    fleet: Fleet,
    load: "LoadGenerator",
    numbers: Mapping[str, Sequence[int]],
    batch_sizes: Sequence[int],
    prompts: Sequence[str],
    sampling: Sampling,
    max_tokens: int,
    deciding: Sequence[int],
) -> KindSteps:
    """Step times of each variant of the fleet at every batch size, for its `numbers` of drafts.

    `prompts` are rendered text, used in turn; responses have up to `max_tokens` tokens. Servers
    with several numbers rotate through them (`Fleet.draft` not yet called). Batch sizes that are
    not `deciding` have LEAST_TURNS turns.
    """
    fleet.rotate(max(numbers.values(), key=len))
    supply, widest = itertools.cycle(prompts), max(batch_sizes)
    found: dict[str, dict[int, list[list[Step]]]] = {
        name: {size: [] for size in batch_sizes} for name in numbers
    }

    def run(name: str, size: int, requests: int, tokens: int) -> list[Step]:
        texts = list(itertools.islice(supply, requests))
        return steps_of_block(fleet, load, name, texts, size, sampling, tokens)

    def has_enough(name: str, size: int) -> bool:
        rows = [row for turn in found[name][size] for row in rounds(turn, size, numbers[name])]
        timed = (sum(row[place] is not None for row in rows) for place in range(len(numbers[name])))
        return all(count >= ROUNDS for count in timed)

    for group in fleet.groups:
        timed = [name for name in numbers if name in group]
        for nth in range(MOST_TURNS):
            order = timed[nth % len(timed) :] + timed[: nth % len(timed)]
            for size in batch_sizes:
                enough = size not in deciding or all(has_enough(name, size) for name in timed)
                if nth >= LEAST_TURNS and enough:
                    continue
                for name in order:
                    fleet.server(name)
                    if fleet.is_fresh(name):
                        run(name, widest, widest, WARM_UP_TOKENS)
                    requests = size * (4 if len(numbers[name]) > 1 else 1)
                    found[name][size].append(run(name, size, requests, max_tokens))
    return _summary(found, numbers, shared=len(fleet.groups) == 1)


def rounds(steps: Sequence[Step], size: int, numbers: Sequence[int]) -> Rounds:
    """The rounds of one turn; of a server with a single number, every RUN steps are one."""
    if len(numbers) > 1:
        return rounds_of(steps, size, numbers)
    times = settled(steps, size, numbers[0])
    return [
        [float(np.median(times[begin : begin + RUN]))]
        for begin in range(0, len(times) - RUN + 1, RUN)
    ]


def _summary(
    found: Mapping[str, Mapping[int, Sequence[Sequence[Step]]]],
    numbers: Mapping[str, Sequence[int]],
    shared: bool,
) -> KindSteps:
    turns, prompt_costs = {}, {}
    for name, by_size in found.items():
        turns[name] = {
            size: [rounds(turn, size, numbers[name]) for turn in own]
            for size, own in by_size.items()
        }
        costs: dict[int, StepCosts] = {}
        for k in numbers[name]:
            step_s = {}
            for size, own in by_size.items():
                times = [s for turn in own for s in settled(turn, size, k)]
                if not times:
                    raise OutriderError(
                        f"timing the steps of {name}: at {size} requests at once there is no step"
                        f" that only decodes with {k} drafts each; are the responses only a few"
                        " tokens long? Raise eval.max_tokens, or name one kind as speculator.kind"
                    )
                step_s[size] = trimmed_mean(times)
            costs[k] = StepCosts(step_s, 0.0)
        steps = [step for own in by_size.values() for turn in own for step in turn]
        known = [step for step in steps if step.drafts in costs]
        prompt_costs[name] = prompt_token_s(known, costs.__getitem__)
    return KindSteps(
        numbers={name: list(own) for name, own in numbers.items()},
        turns=turns,
        prompt_token_s=prompt_costs,
        shared=shared,
    )
