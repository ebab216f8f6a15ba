"""Times the engine's steps for every number of drafts, to choose K.

    times = time_steps(servers, "eager", load, {"custom": [1, 2, 3]}, [1, 8], texts, sampling,
                       speculators)
    times.seconds["custom"][8][3]       # seconds of a step of 8 requests with 3 drafts

Steps are counted once per request, so a block of B concurrent requests takes (counted steps) / B
engine steps (without drafts, tokens / B). Step times include prefills, which take equally long for
every number of drafts. In each round, every number of drafts is timed on the same prompts. The log
step time for a number of drafts is estimated by its median deviation from the rounds' medians,
which is robust to blocks in which the machine was busy.

The margin of the log ratio of two step times uses Student's t with (rounds - 1) (numbers - 1)
degrees of freedom. The variance is MEDIAN_VARIANCE times that of the residuals from the effects of
rounds and numbers, winsorized by 10 % on each side to limit the influence of busy blocks.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from outrider.common.errors import OutriderError
from outrider.eval.bench.servers import Servers
from outrider.eval.config import STEP_ROUNDS, STEP_TOKENS
from outrider.serving.client import Sampling
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.speculator import Speculator

MEDIAN_VARIANCE = 1.5
"""Ratio of the variance of a few rounds' median to that of their mean."""


class StepTimes(BaseModel):
    """Seconds per step: variant -> batch size -> number of drafts."""

    seconds: dict[str, dict[int, dict[int, float]]]
    margins: dict[str, dict[int, float]] = {}
    """Variant -> batch size -> one-sided 95 % margin of the log ratio of two step times"""


def time_steps(
    servers: Servers,
    mode: str,
    load: LoadGenerator,
    numbers: Mapping[str, Sequence[int]],
    batch_sizes: Sequence[int],
    prompts: Sequence[str],
    sampling: Sampling,
    speculators: Mapping[Any, Speculator],
) -> StepTimes:
    """Times each variant's steps at each batch size and number of drafts.

    `prompts` are rendered text. Raises an `OutriderError` if responses are too short for a step.
    """
    turns = [(variant, k) for variant, own in numbers.items() for k in own]
    seconds: dict[str, dict[int, dict[int, float]]] = {
        variant: {size: {} for size in batch_sizes} for variant in numbers
    }
    margins: dict[str, dict[int, float]] = {variant: {} for variant in numbers}
    for group in servers.groups(turns):
        supply = itertools.cycle(prompts)
        found: dict[tuple[str, int], dict[int, list[float]]] = {}
        for _, size in itertools.product(range(STEP_ROUNDS), batch_sizes):
            texts = list(itertools.islice(supply, max(4, 2 * size)))
            for variant, k in group:
                server = servers.server(mode, variant, k)
                block = load.run_block(server.url, texts, size, sampling, STEP_TOKENS)
                counters = asdict(block.counters)
                steps = counters["generation_tokens"]
                if k:
                    steps = speculators[variant].steps(counters, len(texts))
                if not steps:
                    raise OutriderError(
                        f"timing the engine's steps: vLLM counted none with {k} drafts; are the"
                        " held-out responses a single token long? Set eval.k"
                    )
                blocks = found.setdefault((variant, size), {})
                blocks.setdefault(k, []).append(block.seconds * size / steps)
        for (variant, size), blocks in found.items():
            times_K, margin = steps_of(np.log(list(blocks.values())))
            seconds[variant][size] = dict(zip(blocks, times_K, strict=True))
            margins[variant][size] = margin
    return StepTimes(seconds=seconds, margins=margins)


def steps_of(logs_KR: NDArray[np.float64]) -> tuple[list[float], float]:
    """Seconds per step by k; one-sided 95 % margin of log ratios."""
    from scipy.stats import t

    round_R = np.median(logs_KR, axis=0)
    number_K = np.median(logs_KR - round_R, axis=1)
    seconds = np.exp(np.median(round_R) + number_K).tolist()
    numbers, rounds = logs_KR.shape
    degrees = (numbers - 1) * (rounds - 1)
    if not degrees:
        return seconds, 0.0
    left_KR = logs_KR - round_R - number_K[:, None]
    kept_KR = np.clip(left_KR, *np.quantile(left_KR, [0.1, 0.9]))
    variance = MEDIAN_VARIANCE * float((kept_KR**2).sum()) / degrees
    return seconds, float(t.ppf(0.95, degrees)) * math.sqrt(2 * variance / rounds)
