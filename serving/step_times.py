"""How long a step of the engine takes, for every number of drafts and several batch sizes: what each draft costs on this machine.

Two servers, one without speculation and one with, answer closed loops of prompts by vLLM's load generator, as the measured servers will,
and record their own steps (`step_recorder.py`): what front end and clients take from the machine is in them. Every number of drafts
meets the same requests, weights and moments of a shared machine, and the two servers take turns.

    times = measure_step_times(target, serving, speculator_dir, depth=4, batch_sizes=[1, 4, 8], prompts=texts, sampling=Sampling(), ...)
    times.step_s[4][2]      # seconds of a step of four requests that drafts 2 tokens for each and verifies 2
    times.step_s[4][0]      # of the target's own

The measured servers of an evaluation record their steps as well (`tally`), so that speed can be accounted for with the steps as they were.

Shapes: B batch sizes, K depth.
"""

import contextlib
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outrider.common.errors import OutriderError
from outrider.serving.client import Sampling
from outrider.serving.config import ServingConfig, TargetConfig
from outrider.serving.load_generator import WARM_UP_TOKENS, LoadGenerator
from outrider.serving.server import SETTLE_S, Server
from outrider.serving.vllm_hooks.step_recorder import Step, StepFile

STEPS = 16
"""Timed steps wanted of each number of drafts and batch size: numbers of drafts are compared within the same blocks."""

LEAST_ROUNDS, MOST_ROUNDS = 2, 8
"""Rounds of blocks, in each of which both servers take their turn at every batch size: a shared machine is slow for seconds or minutes. After
the least a size that has its steps is left out, after the most they must suffice."""

TRIMMED = 0.1
"""Share of the fastest and of the slowest steps that are left out. Not the median: where half of the steps were slow it is one or the other."""


@dataclass(frozen=True)
class StepCosts:
    """What the steps of one server with one number of drafts cost, in seconds."""

    step_s: Mapping[int, float]
    """By batch size: a step that only decodes."""
    prompt_token_s: float
    """What a token of a prompt adds to the step in which it is computed."""

    def seconds(self, requests: int) -> float:
        """T(B) at any B: between the measured sizes along a straight line, outside them along the nearest one."""
        sizes = sorted(self.step_s)
        times = [self.step_s[size] for size in sizes]
        if len(sizes) == 1 or sizes[0] <= requests <= sizes[-1]:
            return float(np.interp(requests, sizes, times))
        a, b = (0, 1) if requests < sizes[0] else (-2, -1)
        slope = (times[b] - times[a]) / (sizes[b] - sizes[a])
        return max(times[a] + slope * (requests - sizes[a]), 0.0)


@dataclass(frozen=True)
class StepTimes:
    """What steps and prompts cost, in seconds."""

    step_s: dict[int, list[float]]
    """By batch size B, a list over k = 0..K: a decoding step of B requests with k drafts each."""
    prompt_token_s: tuple[float, float]
    """What a token of a prompt adds to the step in which it is computed: without drafts, and with."""

    def of(self, k: int) -> StepCosts:
        """Of the steps with k drafts."""
        return StepCosts(
            {size: times[k] for size, times in self.step_s.items()}, self.prompt_token_s[k > 0]
        )

    def as_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "StepTimes":
        """The same again."""
        step_s = {int(size): times for size, times in saved["step_s"].items()}
        return cls(step_s, tuple(saved["prompt_token_s"]))


class _Recorded:
    """A server that records its steps, and what it has recorded so far, by the batch size of the closed loop that made it."""

    def __init__(
        self,
        target: TargetConfig,
        serving: ServingConfig,
        speculator_dir: Path | None,
        depth: int,
        log_dir: Path,
    ) -> None:
        name = "drafting" if depth else "plain"
        self._steps = StepFile(log_dir / f"steps_{name}.jsonl")
        self.server = Server(
            target,
            self._steps.recorded(serving).model_copy(update={"port": None}),
            speculator_dir,
            depth or None,
            log_path=log_dir / f"step_times_{name}.log",
            k_per_batch_size=[(1, serving.engine.max_num_seqs, depth)] if depth else None,
        )
        self.numbers = range(1, depth + 1) if depth else range(1)
        self.found: dict[int, list[Step]] = {}

    def read(self, size: int) -> None:
        """Takes what has been recorded since as steps of a loop of `size` requests."""
        self.found[size] = self.found.get(size, []) + self._steps.new()

    def enough(self, size: int) -> bool:
        """Whether every number of drafts has as many steps as are wanted."""
        return all(len(_settled(self.found.get(size, []), size, k)) >= STEPS for k in self.numbers)


def measure_step_times(
    target: TargetConfig,
    serving: ServingConfig,
    speculator_dir: Path,
    depth: int,
    batch_sizes: Sequence[int],
    prompts: Sequence[str],
    sampling: Sampling,
    max_tokens: int,
    log_dir: Path,
    side_by_side: bool = True,
) -> StepTimes:
    """Times of steps of every batch size with 0..depth drafts. `prompts` are rendered text, taken in turn; responses of up to `max_tokens`.
    `side_by_side` false: the machine holds one server at a time."""
    log_dir, supply = Path(log_dir), itertools.cycle(prompts)
    plain = _Recorded(target, serving, None, 0, log_dir)
    drafting = _Recorded(target, serving, speculator_dir, depth, log_dir)

    def ask(one: _Recorded, load: LoadGenerator, size: int, requests: int, tokens: int) -> None:
        time.sleep(SETTLE_S if side_by_side else 0)
        load.run_block(
            one.server.url, list(itertools.islice(supply, requests)), size, sampling, tokens
        )

    with LoadGenerator(target, log_dir / "load.log") as load:
        for group in [[plain, drafting]] if side_by_side else [[plain], [drafting]]:
            with contextlib.ExitStack() as stack:
                for one in group:
                    one.server.start()
                    stack.callback(one.server.stop)
                for one in group:
                    one.server.wait()
                    ask(one, load, max(batch_sizes), max(batch_sizes), WARM_UP_TOKENS)
                    one.read(0)
                for nth in range(MOST_ROUNDS):
                    wanted = [
                        s
                        for s in batch_sizes
                        if nth < LEAST_ROUNDS or not all(one.enough(s) for one in group)
                    ]
                    for size, one in itertools.product(wanted, group):
                        ask(one, load, size, size * (2 if one is drafting else 1), max_tokens)
                        one.read(size)
    for one in (plain, drafting):
        one.found.pop(0)  # the warm-up
    return summarise_steps(plain.found, drafting.found, depth)


def summarise_steps(
    plain: Mapping[int, Sequence[Step]], drafting: Mapping[int, Sequence[Step]], depth: int
) -> StepTimes:
    """The times of recorded steps of a server without speculation and of one with, by the batch size of the closed loop that made them."""
    step_s: dict[int, list[float]] = {}
    for size in plain:
        rows = [
            _settled(plain[size], size, 0),
            *(_settled(drafting[size], size, k) for k in range(1, depth + 1)),
        ]
        if not all(rows):
            raise OutriderError(
                f"timing the engine's steps: at {size} requests at once no step was found that drafts {[not row for row in rows].index(True)} "
                "tokens for each and nothing else; are the held-out responses only a few tokens long? Set eval.k"
            )
        step_s[size] = [_trimmed_mean(row) for row in rows]
    return StepTimes(step_s, (_prompt_token_s(plain, step_s), _prompt_token_s(drafting, step_s)))


def tally(steps: Sequence[Step]) -> dict[str, dict[str, list[float]]]:
    """Steps of a measured server as sums, by the number of requests in them (a string, as JSON has it): `decoding`, steps and their seconds,
    of those that only decode as their predecessors did; `prompts`, steps, tokens of prompts and seconds, of those that compute prompts too."""
    sums: dict[str, dict[str, list[float]]] = {"decoding": {}, "prompts": {}}

    def add(kind: str, step: Step, *values: float) -> None:
        row = sums[kind].setdefault(str(step.requests), [0.0] * len(values))
        row[:] = np.add(row, values).tolist()

    for before, step in itertools.pairwise(steps):
        if _alike(before, step):
            add("decoding", step, 1, step.seconds)
    for step in steps:
        if step.prompt_tokens and step.lasting:
            add("prompts", step, 1, step.prompt_tokens, step.seconds)
    return sums


def costs_of(tallies: Sequence[Mapping[str, Mapping[str, Sequence[float]]]]) -> StepCosts | None:
    """What the tallied steps of one server with one number of drafts cost, stalls of the machine included; None where no step only decodes."""

    def pooled(kind: str) -> dict[int, np.ndarray]:
        rows: dict[int, Any] = {}
        for one in tallies:
            for size, row in one[kind].items():
                rows[int(size)] = rows.get(int(size), 0.0) + np.asarray(row)
        return rows

    decoding, prompts = pooled("decoding"), pooled("prompts")
    step_s = {size: float(seconds / steps) for size, (steps, seconds) in decoding.items()}
    if not step_s:
        return None
    alone = StepCosts(step_s, 0.0)
    excess = sum(
        seconds - steps * alone.seconds(size) for size, (steps, _, seconds) in prompts.items()
    )
    tokens = sum(row[1] for row in prompts.values())
    return StepCosts(step_s, max(float(excess / tokens), 0.0) if tokens else 0.0)


def _alike(before: Step, step: Step) -> bool:
    """Whether both only decode, with as many drafts: an engine that schedules a step ahead has the one before under way."""
    return (
        step.settled
        and before.settled
        and step.lasting
        and before.lasting
        and step.drafts == before.drafts
    )


def _settled(steps: Sequence[Step], size: int, k: int) -> list[float]:
    """Seconds of the steps of `size` decoding requests with k drafts whose predecessor was alike."""
    return [
        step.seconds
        for before, step in itertools.pairwise(steps)
        if _alike(before, step) and step.drafts == k and step.requests == size
    ]


def _prompt_token_s(found: Mapping[int, Sequence[Step]], step_s: dict[int, list[float]]) -> float:
    """Seconds that a prompt's token adds, over all steps with prompts together."""
    times = StepTimes(step_s, (0.0, 0.0))
    steps = [
        step for steps in found.values() for step in steps if step.prompt_tokens and step.lasting
    ]
    excess = sum(step.seconds - times.of(step.drafts).seconds(step.requests) for step in steps)
    tokens = sum(step.prompt_tokens for step in steps)
    return max(excess / tokens, 0.0) if tokens else 0.0


def _trimmed_mean(values: Sequence[float]) -> float:
    ordered = np.sort(values)
    left_out = int(len(ordered) * TRIMMED)
    return float(ordered[left_out : len(ordered) - left_out].mean())
