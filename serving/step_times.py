"""How long a step of the engine takes, for every number of drafts and several batch sizes: what each draft costs on this machine.

A server is asked closed loops of prompts by vLLM's load generator, as the measured servers will be, and records its own steps
(`step_recorder.py`): what front end and clients take from the machine is in them. Every number of drafts meets the same requests, weights
and moments of a shared machine. Without drafts (k = 0) the drafter rests altogether, as if there were none.

    times = measure_step_times(target, serving, speculator_dir, depth=4, batch_sizes=[1, 4, 8], prompts=texts, sampling=Sampling(), ...)
    times.step_s[4][2]      # seconds of a step of four requests that drafts 2 tokens for each and verifies 2

Shapes: B batch sizes, K depth.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outrider.serving.client import Sampling, post
from outrider.serving.config import ServingConfig, TargetConfig
from outrider.serving.load import LoadGenerator
from outrider.serving.server import Server
from outrider.serving.step_recorder import Step, read_steps, recording
from outrider.speculators.errors import OutriderError

STEPS = 36
"""Timed steps wanted of each number of drafts and batch size."""

MOST_BLOCKS = 24
"""Blocks of requests of a batch size, after which its steps must suffice."""

WARM_UP_TOKENS = 32
TRIMMED = 0.1
"""Share of the fastest and of the slowest steps that are left out: a shared machine stops for a moment now and then."""


@dataclass(frozen=True)
class StepTimes:
    """What steps and prompts cost, in seconds."""

    step_s: dict[int, list[float]]
    """By batch size B, a list over k = 0..K: a decoding step of B requests with k drafts each."""
    prompt_token_s: tuple[float, float]
    """What a token of a prompt adds to the step in which it is computed: without drafts, and with."""
    idle_s: float
    """From the end of a lone request until the next one reaches the engine: the client's turn."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "StepTimes":
        """The same again."""
        step_s = {int(size): times for size, times in saved["step_s"].items()}
        return cls(step_s, tuple(saved["prompt_token_s"]), saved["idle_s"])


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
) -> StepTimes:
    """Times of steps of every batch size with 0..depth drafts. `prompts` are rendered text, taken in turn; responses of up to `max_tokens`."""
    engine, steps_path = serving.engine, Path(log_dir) / "steps.jsonl"
    steps_path.unlink(missing_ok=True)
    engine = engine.model_copy(update={"environment": engine.environment | recording(steps_path)})
    serving = serving.model_copy(update={"engine": engine})
    schedule, supply = [(1, engine.max_num_seqs, depth)], itertools.cycle(prompts)
    log_path = Path(log_dir) / "step_times.log"
    found: dict[int, list[Step]] = {}
    with (
        Server(target, serving, speculator_dir, depth, log_path=log_path, k_per_batch_size=schedule) as server,
        LoadGenerator(target, Path(log_dir) / "load.log") as load,
    ):
        post(server.url, "/collective_rpc", {"method": "rest_without_drafts"})

        def block(size: int, requests: int, tokens: int) -> None:
            load.run_block(server.url, list(itertools.islice(supply, requests)), size, sampling, tokens)

        block(max(batch_sizes), max(batch_sizes), WARM_UP_TOKENS)
        _, offset = read_steps(steps_path)
        for size in batch_sizes:
            found[size] = []
            for _ in range(MOST_BLOCKS):
                block(size, 2 * size, max_tokens)
                steps, offset = read_steps(steps_path, offset)
                found[size] += steps
                if min(len(_settled(found[size], size, k)) for k in range(depth + 1)) >= STEPS:
                    break
    return summarise_steps(found, depth)


def summarise_steps(found: dict[int, list[Step]], depth: int) -> StepTimes:
    """The times of recorded steps, `found` by the batch size of the closed loop that made them."""
    step_s: dict[int, list[float]] = {}
    for size, steps in found.items():
        rows = [_settled(steps, size, k) for k in range(depth + 1)]
        if not all(rows):
            raise OutriderError(
                f"timing the engine's steps: at {size} requests at once no step was found that drafts {[not row for row in rows].index(True)} "
                "tokens for each and nothing else; are the held-out responses only a few tokens long? Set eval.k"
            )
        step_s[size] = [_trimmed_mean(row) for row in rows]
    everything = [step for steps in found.values() for step in steps]
    prompts = [step for step in everything if step.new]
    plain = _prompt_token_s((step for step in prompts if not step.drafts), step_s)
    drafting = _prompt_token_s((step for step in prompts if step.drafts), step_s)
    idle = [
        step.seconds - step_s[1][step.drafts]
        for step, following in itertools.pairwise(found.get(1, []))
        if step.settled and not step.lasting and following.new
    ]
    return StepTimes(step_s, (plain, drafting), max(float(np.median(idle)), 0.0) if idle else 0.0)


def step_seconds(step_s: dict[int, list[float]], k: int, requests: int) -> float:
    """T(k, B) at any B: between the measured sizes along a straight line, outside them along the nearest one."""
    sizes = sorted(step_s)
    times = [step_s[size][k] for size in sizes]
    if len(sizes) == 1 or sizes[0] <= requests <= sizes[-1]:
        return float(np.interp(requests, sizes, times))
    a, b = (0, 1) if requests < sizes[0] else (-2, -1)
    slope = (times[b] - times[a]) / (sizes[b] - sizes[a])
    return max(times[a] + slope * (requests - sizes[a]), 0.0)


def _settled(steps: Sequence[Step], size: int, k: int) -> list[float]:
    """Seconds of the steps of `size` decoding requests with k drafts whose predecessor was alike: an engine that schedules a step ahead
    has the one before under way."""
    return [
        step.seconds
        for before, step in itertools.pairwise(steps)
        if step.settled
        and before.settled
        and step.lasting
        and before.lasting
        and step.drafts == before.drafts == k
        and step.requests == size
    ]


def _prompt_token_s(steps: Iterable[Step], step_s: dict[int, list[float]]) -> float:
    """Seconds that a prompt's token adds, over all of these steps together; requests take turns to end, so most bring one prompt each."""
    steps = [step for step in steps if step.prompt_tokens]
    excess = sum(step.seconds - step_seconds(step_s, step.drafts, step.requests) for step in steps if step.lasting)
    tokens = sum(step.prompt_tokens for step in steps if step.lasting)
    return max(excess / tokens, 0.0) if tokens else 0.0


def _trimmed_mean(values: Sequence[float]) -> float:
    ordered = np.sort(values)
    left_out = int(len(ordered) * TRIMMED)
    return float(ordered[left_out : len(ordered) - left_out].mean())
