"""Open loop: all variants under the customer's arrival pattern, up to saturation.

    blocks = measure_rates(context=context, servers=servers, mode="eager", plan=plan, load=load,
                           requests=requests)
    table = summarise_rates(blocks)

A closed loop with C requests in flight sends the next request only when one is answered, so it
slows down with the server and never overloads it. Customers do not wait: requests arrive in bursts
and queue. All gaps between the log's requests are scaled by the same factor, which preserves
bursts.

The same requests are sent at the same times to each variant in turn. Below saturation every variant
delivers the offered load, so the total tokens/s do not distinguish speculators, but request latency
does. So the speed-up is the ratio of per-request tokens/s: a request's tokens over the time from
sending it to its last token, while other requests arrive at the offered rate.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from outrider.eval.bench.closed_loop import Plan, record_of
from outrider.eval.bench.metrics import Record, pool_blocks
from outrider.eval.bench.prompts import HeldoutRequests, ScenarioRequests
from outrider.eval.bench.servers import Servers
from outrider.eval.config import SEED
from outrider.eval.context import EvaluationContext
from outrider.eval.results.parts import RATIOS, VARIANTS
from outrider.eval.results.sections import RateBlock, RateRow
from outrider.serving.client import Sampling
from outrider.serving.load_generator import LoadGenerator

RateBlocks = dict[str, dict[str, dict[str, Record]]]
"""Scenario -> requests per second -> variant -> block."""

KEPT_UP = 0.9
"""A block is saturated only if it achieves less than this share of the offered rate."""

WAIT_GROWTH = 2.0
"""A block is saturated only if its time to first token grows at least by this factor from its first
third to its last."""


def customers_arrivals(
    times: Sequence[float | None], count: int, rate: float, seed: int
) -> tuple[list[float], Literal["log", "poisson"]]:
    """`count` send times in seconds at `rate` per second, and their source.

    The gaps are those of `times` (unix seconds, non-decreasing), scaled so that they sum to (count
    - 1) / rate seconds. A log with fewer requests repeats after a gap of mean length. Unless most
    requests have a logged time, the gaps are exponential (a Poisson process), drawn with `seed`.
    """
    gaps = np.zeros(count - 1)
    source: Literal["log", "poisson"] = "log"
    logged = [time for time in times if time is not None]
    if len(logged) > len(times) / 2 and logged[-1] > logged[0]:
        log = np.diff(logged)
        # A log shorter than the block is repeated. The mean gap joins its end to its beginning, so
        # that the repetition does not change the rate.
        gaps = np.resize([*log, log.mean()], count - 1)
    if not gaps.any():
        # Requests of many independent users arrive as a Poisson process (Palm-Khintchine theorem).
        gaps = np.random.default_rng(seed).exponential(size=count - 1)
        source = "poisson"
    # Scaled after drawing, so that every block offers exactly `rate`, whatever the draw.
    gaps *= (count - 1) / rate / gaps.sum()
    return [0.0, *np.cumsum(gaps).tolist()], source


def measure_rates(
    *,
    context: EvaluationContext,
    servers: Servers,
    mode: str,
    plan: Plan,
    load: LoadGenerator,
    requests: HeldoutRequests,
) -> RateBlocks:
    """Measures the variants in turn at every rate, in rotating order."""
    settings = context.settings
    measured: RateBlocks = {
        scenario.name: {f"{rate:g}": {} for rate in settings.rates} for scenario in requests.traffic
    }
    for group in servers.groups([(variant, plan[variant]) for variant in VARIANTS]):
        blocks = itertools.product(requests.traffic, settings.rates)
        for number, (scenario, rate) in enumerate(blocks):
            turn = number % len(group)
            for variant, drafts in group[turn:] + group[:turn]:
                url = servers.server(mode, variant, drafts).url
                context.say(f"{scenario.name}, {rate:g} requests/s, {variant}")
                block = timed_block(
                    url=url,
                    load=load,
                    scenario=scenario,
                    rate=rate,
                    count=settings.rate_requests(rate),
                    sampling=requests.sampling,
                )
                measured[scenario.name][f"{rate:g}"][variant] = block
    return measured


def summarise_rates(blocks: RateBlocks) -> dict[str, dict[str, RateRow]]:
    """Summarizes the blocks by scenario and rate."""
    return {
        scenario: {rate: rate_row(variants) for rate, variants in by_rate.items()}
        for scenario, by_rate in blocks.items()
    }


def rate_row(blocks: Mapping[str, Record]) -> RateRow:
    """Figures for one scenario at one rate; ratios compare per-request tokens/s.

    One block of each variant shows nothing of how blocks differ, least of all near saturation,
    where a queue amplifies noise. So the ratios have no interval.
    """
    figures = {variant: rate_figures(block) for variant, block in blocks.items()}
    ratios = {
        name: figures[over].request_tokens_per_s / figures[under].request_tokens_per_s
        for name, (over, under) in RATIOS.items()
    }
    return RateRow(**figures, **ratios, arrivals=blocks["none"]["source"])


def rate_figures(block: Record) -> RateBlock:
    """Figures for one variant's block at one request rate."""
    counters = block["counters"]
    return RateBlock(
        **dict(pool_blocks([block])),
        saturated=is_saturated(block),
        request_tokens_per_s=sum(block["request_tokens"]) / sum(block["request_seconds"]),
        acceptance_length=1 + counters["accepted_tokens"] / max(counters["drafts"], 1),
    )


def is_saturated(block: Record) -> bool:
    """Whether the server was saturated at the block's rate.

    Saturated: it achieved less than KEPT_UP of the offered rate, and the median time to first token
    grew by a factor of at least WAIT_GROWTH from the first third of the requests to the last, as in
    a growing queue. Either alone misleads: one long response at the end lowers the achieved rate,
    and one burst lengthens waits. Each rate is the number of gaps between events (n - 1 for n
    events) over the time from the first to the last; dividing n by that time would overstate it.
    """
    arrivals = block["arrivals_s"]
    ends = np.asarray(block["request_start_s"]) + np.asarray(block["request_seconds"])
    # A rate is (n - 1) / time for both, so the ratio of rates is the inverse ratio of times.
    share = (arrivals[-1] - arrivals[0]) / float(max(ends.max() - ends.min(), 1e-9))
    third = max(len(block["ttft_ms"]) // 3, 1)
    early = np.median(block["ttft_ms"][:third])
    late = np.median(block["ttft_ms"][-third:])
    return bool(share < KEPT_UP and late >= WAIT_GROWTH * early)


def timed_block(
    *,
    url: str,
    load: LoadGenerator,
    scenario: ScenarioRequests,
    rate: float,
    count: int,
    sampling: Sampling,
) -> Record:
    """Times a block of `count` scenario requests in log order, repeated as needed."""
    arrivals_s, source = customers_arrivals(scenario.times, count, rate, SEED)
    texts = list(itertools.islice(itertools.cycle(scenario.texts), count))
    block = load.run_block(
        url=url,
        prompts=texts,
        concurrency=None,
        sampling=sampling,
        max_tokens=scenario.max_tokens,
        arrivals=arrivals_s,
    )
    return {
        **record_of([block], None),
        "arrivals_s": arrivals_s,
        "request_start_s": [request.start_s for request in block.requests],
        "source": source,
    }
