"""Capacity: the highest request rate that each variant serves within latency limits.

    blocks = measure_capacity(context=context, servers=servers, mode="compiled", plan=plan,
                              load=load, requests=requests, closed=closed_loop_blocks)
    capacity = summarise_capacity(blocks, limits_of(settings, closed_loop_blocks))
    capacity.custom.within            # requests/s with both 95th percentiles below their limits

Each variant's rate is doubled or halved until one block lies within the limits and one does not,
then bisected, until the two are less than CLOSE apart or `eval.capacity_minutes` are used. The
variants take turns, block by block, in rotating order. A block has at least LEAST_SENT requests,
sent as in the open loop. Every rate is measured once, so the two ends are no confidence interval.
"""

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from outrider.eval.bench.closed_loop import Plan
from outrider.eval.bench.metrics import Record, pool_blocks
from outrider.eval.bench.open_loop import is_saturated, timed_block
from outrider.eval.bench.prompts import HeldoutRequests
from outrider.eval.bench.servers import Servers
from outrider.eval.config import EvalConfig
from outrider.eval.context import EvaluationContext
from outrider.eval.results.parts import VARIANTS
from outrider.eval.results.sections import Capacity, VariantCapacity
from outrider.serving.load_generator import LoadGenerator

CLOSE = 1.1
"""The search ends when the lowest rate beyond the limits is at most so many times the highest
within."""

LEAST_SENT = 60
"""Minimum requests in a block; three of 60 are above the 95th percentile."""

BLOCK_SECONDS = 20.0
"""Minimum time over which a block's requests are sent, so that a queue has time to grow."""

Rated = Mapping[str, Sequence[Record]]
"""Variant -> blocks, each with its `rate`."""


@dataclass(frozen=True)
class LatencyLimits:
    """Limits on the 95th percentiles over requests, in milliseconds."""

    ttft_ms: float
    tpot_ms: float
    source: str
    """Where they come from"""

    def hold(self, block: Record) -> bool:
        """Whether a block lies within both limits."""
        return bool(
            np.percentile(block["ttft_ms"], 95) <= self.ttft_ms
            and np.percentile(block["tpot_ms"], 95) <= self.tpot_ms
        )


def limits_of(settings: EvalConfig, closed: Sequence[Record]) -> LatencyLimits:
    """The recipe's limits; those of no speculation at the main concurrency for unset ones.

    `closed` are the closed loop's blocks.
    """
    blocks = [
        block
        for block in closed
        if block["variant"] == "none" and block["concurrency"] == settings.main
    ]
    p95 = {}
    for name in ("ttft_ms", "tpot_ms"):
        values = itertools.chain.from_iterable(block[name] for block in blocks)
        p95[name] = float(np.percentile([*values], 95))
    given = {name: value for name, value in settings.slo.model_dump().items() if value is not None}
    measured = f"no speculation, concurrency {settings.main}"
    source = "eval.slo" if len(given) == 2 else measured
    if len(given) == 1:
        source = f"eval.slo.{next(iter(given))}, else {measured}"
    return LatencyLimits(**(p95 | given), source=source)


def bracket_capacity(
    blocks: Sequence[Record], limits: LatencyLimits
) -> tuple[float | None, float | None]:
    """Highest rate within the limits below the lowest rate beyond them, and that rate."""
    beyond = min((block["rate"] for block in blocks if not limits.hold(block)), default=None)
    within = max(
        (
            block["rate"]
            for block in blocks
            if limits.hold(block) and (beyond is None or block["rate"] < beyond)
        ),
        default=None,
    )
    return within, beyond


def next_rate(blocks: Sequence[Record], limits: LatencyLimits, first: float) -> float | None:
    """The rate to measure next, beginning with `first`; None if the ends are close."""
    within, beyond = bracket_capacity(blocks, limits)
    if within is None:
        return first if beyond is None else beyond / 2
    if beyond is None:
        return within * 2
    return None if beyond <= CLOSE * within else math.sqrt(within * beyond)


def measure_capacity(
    *,
    context: EvaluationContext,
    servers: Servers,
    mode: str,
    plan: Plan,
    load: LoadGenerator,
    requests: HeldoutRequests,
    closed: Sequence[Record],
) -> dict[str, list[Record]]:
    """Measures blocks of each variant at the rates of its search."""
    settings = context.settings
    assert requests.everything is not None
    limits = limits_of(settings, closed)
    first = _closed_rate(settings, closed)
    blocks: dict[str, list[Record]] = {variant: [] for variant in VARIANTS}
    minutes = settings.capacity_minutes / len(settings.engine_modes)
    for group in servers.groups([(variant, plan[variant]) for variant in VARIANTS]):
        drafts = dict(group)
        ends = time.monotonic() + 60 * minutes * len(group) / len(VARIANTS)
        for variant in _turns([*drafts]):
            rates = {name: next_rate(blocks[name], limits, first) for name in drafts}
            rate = rates[variant]
            if not any(rates.values()):
                break
            if rate is None:
                continue
            count = max(LEAST_SENT, round(rate * BLOCK_SECONDS))
            if time.monotonic() + count / rate > ends:
                break
            context.say(f"capacity, {rate:.3g} requests/s, {variant}")
            block = timed_block(
                url=servers.server(mode, variant, drafts[variant]).url,
                load=load,
                scenario=requests.everything,
                rate=rate,
                count=count,
                sampling=requests.sampling,
            )
            blocks[variant].append({**block, "rate": rate})
    return blocks


def _turns(variants: list[str]) -> Iterator[str]:
    """The variants in turn without end, each round beginning with the next one."""
    for turn in itertools.count():
        first = turn % len(variants)
        yield from variants[first:] + variants[:first]


def _closed_rate(settings: EvalConfig, closed: Sequence[Record]) -> float:
    """Requests/s of no speculation in the closed loop at the largest concurrency."""
    widest = max(settings.concurrency)
    blocks = [
        block for block in closed if block["variant"] == "none" and block["concurrency"] == widest
    ]
    tokens = sum(block["output_tokens"] for block in blocks)
    sent = sum(len(block["request_tokens"]) for block in blocks)
    return pool_blocks(blocks).tokens_per_s * sent / tokens


def summarise_capacity(blocks: Rated, limits: LatencyLimits) -> Capacity:
    """Summarizes each variant's search."""
    return Capacity(
        **{variant: _of_variant(blocks[variant], limits) for variant in VARIANTS},
        ttft_ms=limits.ttft_ms,
        tpot_ms=limits.tpot_ms,
        limits_from=limits.source,
    )


def _of_variant(blocks: Sequence[Record], limits: LatencyLimits) -> VariantCapacity:
    within, beyond = bracket_capacity(blocks, limits)
    at_capacity = [block for block in blocks if block["rate"] == within]
    return VariantCapacity(
        within=within,
        beyond=beyond,
        saturated=min((block["rate"] for block in blocks if is_saturated(block)), default=None),
        tokens_per_s=pool_blocks(at_capacity).tokens_per_s if at_capacity else None,
        blocks=len(blocks),
    )
