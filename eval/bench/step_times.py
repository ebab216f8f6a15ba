"""Times the engine's steps for every number of drafts, to choose K.

    times = time_steps(servers, "eager", load, {"custom": [1, 2, 3]}, [1, 8], texts, sampling,
                       speculators)
    times.seconds["custom"][8][3]       # seconds of a step of 8 requests with 3 drafts

A block of B requests at once takes its counted steps over B (for no drafts, its tokens over B) and
its prefills, which take as long for every number. The share of the machine that front end and
clients take is in it. In a round every number answers the same prompts in turn; the median over
rounds leaves out those in which the machine was busy.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from outrider.common.errors import OutriderError
from outrider.eval.bench.servers import Servers
from outrider.eval.config import STEP_ROUNDS, STEP_TOKENS
from outrider.serving.client import Sampling
from outrider.serving.speculator import Speculator

if TYPE_CHECKING:
    from outrider.serving.load_generator import LoadGenerator


class StepTimes(BaseModel):
    """Seconds of a step: variant -> batch size -> number of drafts."""

    seconds: dict[str, dict[int, dict[int, float]]]


def time_steps(
    servers: Servers,
    mode: str,
    load: "LoadGenerator",
    numbers: Mapping[str, Sequence[int]],
    batch_sizes: Sequence[int],
    prompts: Sequence[str],
    sampling: Sampling,
    speculators: Mapping[Any, Speculator],
) -> StepTimes:
    """Step times of each variant with each of its `numbers` of drafts at every batch size.

    `prompts` are rendered text, used in turn. Raises `OutriderError` where responses are too short
    to have a step.
    """
    turns = [(variant, k) for variant, own in numbers.items() for k in own]
    seconds: dict[str, dict[int, dict[int, float]]] = {
        variant: {size: {} for size in batch_sizes} for variant in numbers
    }
    for group in servers.groups(turns):
        supply = itertools.cycle(prompts)
        found: dict[tuple[str, int, int], list[float]] = {}
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
                found.setdefault((variant, size, k), []).append(block.seconds * size / steps)
        for (variant, size, k), own in found.items():
            seconds[variant][size][k] = float(np.median(own))
    return StepTimes(seconds=seconds)
