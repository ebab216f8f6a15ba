"""What a step of the engine costs, for every number of drafts and several batch sizes.

    times = summarise_steps(plain, drafting, depth=4)
    times.step_s[4][2]      # seconds of a step of 4 requests with 2 drafts each
    times.step_s[4][0]      # seconds of the target's own step

Steps are recorded by the servers that are measured (vllm_hooks/step_recorder.py), so the share of
the machine that front end and clients take is in them. To choose k, eval/bench/step_timing.py has
them recorded in rounds of all numbers of drafts, then of those between which the choice is open;
eval/prediction/step_fit.py fits them. The drafts of a measured server's steps are
summed (`drafts_of`).

Shapes: B batch sizes, K depth.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from outrider.common.errors import OutriderError
from outrider.serving.vllm_hooks.step_recorder import Step

STEPS = 16
"""Timed steps wanted without drafts, of each batch size."""

ROUNDS = 20
"""Timed rounds wanted of each number of drafts and batch size.

Runs of eight steps differ by 6 % within a round, so that two numbers are known to
6 % * sqrt(2 / 20) = 2 % after twenty.
"""

RUN_STEPS = 2
"""Least number of timed steps of a run; fewer say nothing of it."""

TRIMMED = 0.1
"""Share of the fastest and of the slowest steps that is left out.

The median would be worse: where half of the steps were slow, it is either of the two speeds.
"""


@dataclass(frozen=True)
class StepCosts:
    """Cost of the steps of one server with one number of drafts, in seconds."""

    step_s: Mapping[int, float]
    """By batch size, of a step that only decodes."""
    prompt_token_s: float
    """What a prompt token adds to the step in which it is computed."""

    def seconds(self, requests: int) -> float:
        """T(B) at any B: linear between measured sizes, and extrapolated beyond them."""
        sizes = sorted(self.step_s)
        times = [self.step_s[size] for size in sizes]
        if len(sizes) == 1 or sizes[0] <= requests <= sizes[-1]:
            return float(np.interp(requests, sizes, times))
        a, b = (0, 1) if requests < sizes[0] else (-2, -1)
        slope = (times[b] - times[a]) / (sizes[b] - sizes[a])
        return max(times[a] + slope * (requests - sizes[a]), 0.0)


@dataclass(frozen=True)
class StepTimes:
    """Costs of steps and prompts, in seconds."""

    step_s: dict[int, list[float]]
    """By batch size B, a list over k = 0..K: a decoding step of B requests with k drafts each."""
    prompt_token_s: tuple[float, float]
    """What a prompt token adds to the step in which it is computed: without drafts, and with."""
    rounds: dict[int, list[list[float | None]]] = field(default_factory=dict)
    """By batch size: rounds of a step with first..K drafts, `first` being 1, or 0 where the
    drafting server was also timed without drafts; null where a round has no time. Empty where
    nothing was timed in rounds. Further rounds have some of the numbers only."""
    looks: int = 1
    """How often it was checked whether the choice of k is decided."""
    further: dict[int, int] = field(default_factory=dict)
    """By batch size: how many of the rounds are of some of the numbers only."""

    def of(self, k: int) -> StepCosts:
        """Costs of the steps with k drafts."""
        return StepCosts(
            {size: times[k] for size, times in self.step_s.items()}, self.prompt_token_s[k > 0]
        )

    def as_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "StepTimes":
        """The inverse of `as_dict`, after a round trip through JSON."""
        step_s = {int(size): times for size, times in saved["step_s"].items()}
        none, drafting = saved["prompt_token_s"]
        rounds = {int(size): rows for size, rows in saved.get("rounds", {}).items()}
        further = {int(size): count for size, count in saved.get("further", {}).items()}
        return cls(step_s, (none, drafting), rounds, saved.get("looks", 1), further)


def summarise_steps(
    plain: Mapping[int, Sequence[Step]],
    drafting: Mapping[int, Sequence[Step]],
    depth: int,
    first: int = 1,
) -> StepTimes:
    """Step times from the steps of a server without speculation and of one with.

    The keys are the batch sizes of the closed loops that made the steps. The drafting server
    rotated through `first`..depth drafts.
    """
    step_s: dict[int, list[float]] = {}
    for size in plain:
        rows = [settled(plain[size], size, 0)]
        rows += [settled(drafting[size], size, k) for k in range(1, depth + 1)]
        if not all(rows):
            k = [not row for row in rows].index(True)
            raise OutriderError(
                f"timing the engine's steps: at {size} requests at once there is no step that only "
                f"decodes with {k} drafts each; are the held-out responses only a few tokens long? "
                "Set eval.k"
            )
        step_s[size] = [trimmed_mean(row) for row in rows]
    numbers = range(first, depth + 1)
    times = StepTimes(step_s, (0.0, 0.0))
    return StepTimes(
        step_s,
        (
            prompt_token_s(itertools.chain.from_iterable(plain.values()), times.of),
            prompt_token_s(itertools.chain.from_iterable(drafting.values()), times.of),
        ),
        {size: rounds_of(steps, size, numbers) for size, steps in drafting.items()},
    )


def enough(steps: Sequence[Step], size: int, numbers: Sequence[int]) -> bool:
    """Whether every number of drafts has the steps or rounds that are wanted."""
    if list(numbers) == [0]:
        return len(settled(steps, size, 0)) >= STEPS
    rows = rounds_of(steps, size, numbers)
    timed = (sum(row[k] is not None for row in rows) for k in range(len(numbers)))
    return all(count >= ROUNDS for count in timed)


def rounds_of(steps: Sequence[Step], size: int, numbers: Sequence[int]) -> list[list[float | None]]:
    """Median seconds of each run of equal drafts, one row per rotation through `numbers`.

    Of the steps that decode `size` requests. None where a run has too few; a row of nothing else is
    left out.
    """
    rows: list[list[float | None]] = []
    before: int | None = None
    for drafts, run in itertools.groupby(steps, key=lambda step: step.drafts):
        seconds = settled(list(run), size, drafts)
        if before is None or drafts <= before:
            rows.append([None] * len(numbers))
        before = drafts
        if drafts in numbers and len(seconds) >= RUN_STEPS:
            rows[-1][list(numbers).index(drafts)] = float(np.median(seconds))
    return [row for row in rows if any(value is not None for value in row)]


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


def _alike(before: Step, step: Step) -> bool:
    """Whether both only decode, with the same number of drafts.

    An engine that schedules ahead runs a step while it schedules the next.
    """
    return (
        step.settled
        and before.settled
        and step.lasting
        and before.lasting
        and step.drafts == before.drafts
    )


def settled(steps: Sequence[Step], size: int, k: int) -> list[float]:
    """Seconds of the steps that decode `size` requests with k drafts, after a step like them."""
    return [
        step.seconds
        for before, step in itertools.pairwise(steps)
        if _alike(before, step) and step.drafts == k and step.requests == size
    ]


def prompt_token_s(steps: Iterable[Step], costs_of: Callable[[int], StepCosts]) -> float:
    """Seconds that a prompt token adds, over all steps with prompts.

    `costs_of` gives the costs of steps with so many drafts.
    """
    excess, tokens = 0.0, 0
    for step in steps:
        if step.prompt_tokens and step.lasting:
            excess += step.seconds - costs_of(step.drafts).seconds(step.requests)
            tokens += step.prompt_tokens
    return max(excess / tokens, 0.0) if tokens else 0.0


def trimmed_mean(values: Sequence[float]) -> float:
    """The mean without the fastest and the slowest TRIMMED of the values."""
    ordered = np.sort(values)
    left_out = int(len(ordered) * TRIMMED)
    return float(ordered[left_out : len(ordered) - left_out].mean())
