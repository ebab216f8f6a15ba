"""Times the engine's steps for every number of drafts, to choose K.

    times = time_steps(servers=servers, mode="eager", load=load, numbers={"custom": [1, 2, 3]},
                       batch_sizes={"custom": [1, 8]}, prompts=texts, sampling=sampling,
                       speculators=speculators)
    times.seconds["custom"][8][3]       # seconds of a step of 8 requests with 3 drafts

A block's step time is the time from first to last token, summed over its requests, divided by their
steps after the prefill (without drafts, tokens after the first). In each round, every number of
drafts is timed on the same prompts. The log step time for a number of drafts is estimated by its
median deviation from the rounds' medians, which is robust to blocks in which the machine was busy.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from pydantic import BaseModel

from outrider.common.errors import OutriderError
from outrider.eval.bench.servers import Servers
from outrider.eval.config import STEP_ROUNDS, STEP_TOKENS
from outrider.serving.client import Sampling
from outrider.serving.load_generator import BlockResult, LoadGenerator
from outrider.serving.speculator import Speculator


class StepTimes(BaseModel):
    """Seconds per step: variant -> batch size -> number of drafts."""

    seconds: dict[str, dict[int, dict[int, float]]]


def time_steps(
    *,
    servers: Servers,
    mode: str,
    load: LoadGenerator,
    numbers: Mapping[str, Sequence[int]],
    batch_sizes: Mapping[str, Sequence[int]],
    prompts: Sequence[str],
    sampling: Sampling,
    speculators: Mapping[Any, Speculator],
) -> StepTimes:
    """Times each variant's steps at each of its batch sizes and numbers of drafts.

    `prompts` are rendered text. Raises an `OutriderError` if responses are too short for a step.
    """
    turns = [(variant, k) for variant, counts in numbers.items() for k in counts]
    seconds: dict[str, dict[int, dict[int, float]]] = {
        variant: {size: {} for size in batch_sizes[variant]} for variant in numbers
    }
    sizes = list(dict.fromkeys(itertools.chain.from_iterable(batch_sizes.values())))
    for group in servers.groups(turns):
        supply = itertools.cycle(prompts)
        step_seconds: dict[tuple[str, int], dict[int, list[float]]] = {}
        for _, size in itertools.product(range(STEP_ROUNDS), sizes):
            # At least twice the batch size: until the last requests end, the batch is full.
            texts = list(itertools.islice(supply, max(4, 2 * size)))
            for variant, k in group:
                if size not in batch_sizes[variant]:
                    continue
                server = servers.server(mode, variant, k)
                block = load.run_block(
                    url=server.url,
                    prompts=texts,
                    concurrency=size,
                    sampling=sampling,
                    max_tokens=STEP_TOKENS,
                )
                blocks = step_seconds.setdefault((variant, size), {})
                blocks.setdefault(k, []).append(_seconds_per_step(block, speculators[variant], k))
        for (variant, size), blocks in step_seconds.items():
            times_K = _typical_times([*blocks.values()])
            seconds[variant][size] = dict(zip(blocks, times_K, strict=True))
    return StepTimes(seconds=seconds)


def _seconds_per_step(block: BlockResult, speculator: Speculator, k: int) -> float:
    """Seconds from first to last tokens, per step after the prefills."""
    counters = asdict(block.counters)
    responses = len(block.requests)
    # Each response's first token comes from its prefill, which is no step.
    steps = counters["generation_tokens"] - responses
    if k:
        steps = speculator.steps(counters, responses)
    if not steps:
        raise OutriderError(
            f"timing the engine's steps: vLLM counted none with {k} drafts; are the"
            " held-out responses a single token long? Set eval.k"
        )
    # Gaps between deliveries, not latencies, which include the prefill that no k changes.
    return sum(sum(request.itl_ms) for request in block.requests) / 1000 / steps


def _typical_times(seconds: Sequence[Sequence[float]]) -> list[float]:
    """The typical time for each number of drafts, from its times in all rounds.

    Two-way layout: log time = round effect + effect of k, as in one sweep of Tukey's median polish
    (Exploratory Data Analysis, 1977, ch. 10).
    """
    logs_KR = np.log(seconds)
    # Medians, because a busy machine only slows: its errors have one sign and long tails.
    round_R = np.median(logs_KR, axis=0)
    number_K = np.median(logs_KR - round_R, axis=1)
    times: list[float] = np.exp(np.median(round_R) + number_K).tolist()
    return times
