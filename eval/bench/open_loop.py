"""Open loop: none, base and custom under the customer's own arrivals, from idle to overrun.

    measure_rates(steps, fleet, load, "eager", traffic, sampling, evaluation, say=print)
    table = summarise_rates(steps, "eager", traffic, evaluation, noise)

The same requests are sent at the same times to each variant in turn. Below saturation every variant
delivers the offered load, so tokens/s of all requests together does not distinguish speculators;
the latency of a request does. So the speed-up is that of a request's own tokens/s: its tokens over
the time from sending it to its last token, with as many other requests running as the rate causes.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outrider.eval.bench.arrivals import customers_arrivals
from outrider.eval.bench.closed_loop import record_of, warm_up
from outrider.eval.bench.measurement_cache import Steps
from outrider.eval.bench.metrics import Noise, pooled
from outrider.eval.bench.scenarios import Traffic
from outrider.eval.bench.server_pool import Fleet
from outrider.eval.config import EvalConfig
from outrider.eval.results.parts import RATIOS, VARIANTS, Variant
from outrider.eval.stats.speed_ratio import block_noise, speed_ratio
from outrider.serving.client import Sampling

if TYPE_CHECKING:
    from outrider.serving.load_generator import LoadGenerator

KEPT_UP = 0.9
"""A block counts as saturated only below this share of the offered rate."""

WAIT_GROWTH = 2.0
"""Least growth of the time to first token from a saturated block's first third to its last."""


def measure_rates(
    steps: Steps,
    fleet: Fleet,
    load: "LoadGenerator",
    mode: str,
    traffic: Sequence[Traffic],
    sampling: Sampling,
    evaluation: EvalConfig,
    say: Callable[[str], None],
) -> None:
    """Measures the blocks that are not in the cache.

    Variants of one group are measured together or not at all; their order rotates.
    """
    sampling = replace(sampling, seed=None)
    for repeat in range(evaluation.rate_repeats):
        for group in fleet.groups[:: -1 if repeat % 2 else 1]:
            for place, (scenario, rate) in enumerate(itertools.product(traffic, evaluation.rates)):
                names = {variant: _step(mode, scenario, rate, repeat, variant) for variant in group}
                if all(map(steps.done, names.values())):
                    continue
                turn, records = (repeat + place) % len(group), {}
                for variant in group[turn:] + group[:turn]:
                    warm_up(fleet, variant, load, scenario.texts, sampling, evaluation, say)
                    url = fleet.server(variant).url
                    say(f"{scenario.name}, {rate:g} requests/s, {variant}")
                    records[variant] = _timed_block(
                        url, load, scenario, rate, repeat, sampling, evaluation
                    )
                for variant, record in records.items():
                    steps.put(names[variant], record)


def rates_done(steps: Steps, mode: str, traffic: Sequence[Traffic], evaluation: EvalConfig) -> bool:
    """Whether all blocks of the mode are in the cache."""
    repeats = range(evaluation.rate_repeats)
    wanted = itertools.product(traffic, evaluation.rates, repeats, VARIANTS)
    return all(steps.done(_step(mode, *block)) for block in wanted)


def summarise_rates(
    steps: Steps, mode: str, traffic: Sequence[Traffic], evaluation: EvalConfig, closed_loop: Noise
) -> dict[str, dict[str, Any]]:
    """A `rate_row` by scenario and rate.

    Where blocks are repeated, their noise is estimated from the repeats. Else that of the closed
    loop is used, a lower bound: near saturation a queue amplifies it.
    """
    blocks = {
        (scenario.name, f"{rate:g}"): {
            variant: [
                steps.get(_step(mode, scenario, rate, repeat, variant))
                for repeat in range(evaluation.rate_repeats)
            ]
            for variant in VARIANTS
        }
        for scenario, rate in itertools.product(traffic, evaluation.rates)
    }
    noise = {
        name: block_noise(_pairs(own[over], own[under]) for own in blocks.values())
        or closed_loop[name]
        for name, (over, under) in RATIOS.items()
    }
    table: dict[str, dict[str, Any]] = {scenario.name: {} for scenario in traffic}
    for (name, rate), own in blocks.items():
        table[name][rate] = rate_row(own, evaluation, noise)
    return table


def rate_row(
    blocks: Mapping[Variant, Sequence[Mapping[str, Any]]], evaluation: EvalConfig, noise: Noise
) -> dict[str, Any]:
    """Figures of one scenario and rate, from each variant's blocks, one per repeat.

    Holds each variant's `variant_figures`, the ratios of a request's own tokens/s, paired by
    request, and how requests arrived.
    """
    row: dict[str, Any] = {variant: variant_figures(own) for variant, own in blocks.items()}
    for name, (over, under) in RATIOS.items():
        pairs, samples = _pairs(blocks[over], blocks[under]), evaluation.bootstrap_samples
        row[name] = speed_ratio(pairs, noise[name], samples=samples, seed=evaluation.seed).as_dict()
    return {**row, "arrivals": blocks["none"][0]["source"]}


def variant_figures(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of one variant's blocks at a rate, pooled.

    In addition to `pooled`: `saturated`, of most of its blocks;
    `request_tokens_per_s`, a request's own; `acceptance_length` from the engine's counters, 1
    without drafts.
    """
    drafts, accepted = (
        sum(block["counters"][name] for block in blocks) for name in ("drafts", "accepted_tokens")
    )
    return {
        **pooled(blocks).model_dump(),
        "saturated": sum(map(saturated, blocks)) > len(blocks) / 2,
        "request_tokens_per_s": sum(map(sum, (b["request_tokens"] for b in blocks)))
        / sum(map(sum, (b["request_seconds"] for b in blocks))),
        "acceptance_length": 1 + accepted / drafts if drafts else 1.0,
    }


def offered_and_achieved(block: Mapping[str, Any]) -> tuple[float, float]:
    """Requests per second that arrived, and that were completed.

    Each is the number of gaps between the first and the last event over the time between them, so a
    server that keeps up achieves what is offered. Completed requests over the block's whole time
    would not: that includes the time of one more response, a large part of a short block.
    """
    arrivals = block["arrivals_s"]
    ends = np.asarray(block["request_start_s"]) + np.asarray(block["request_seconds"])
    gaps = len(arrivals) - 1
    return gaps / (arrivals[-1] - arrivals[0]), gaps / float(max(ends.max() - ends.min(), 1e-9))


def saturated(block: Mapping[str, Any]) -> bool:
    """Whether the rate overran the server.

    It achieved less than KEPT_UP of the offered rate, and the median time to first token grew by
    WAIT_GROWTH from the first third of the requests to the last, as it does in a queue that only
    grows. Either alone misleads: one long response at the end lowers the achieved rate, and one
    burst lengthens waits. A block that ends before `serving.engine.max_num_seqs` requests run has
    no queue.
    """
    offered, achieved = offered_and_achieved(block)
    third = max(len(block["ttft_ms"]) // 3, 1)
    early, late = np.median(block["ttft_ms"][:third]), np.median(block["ttft_ms"][-third:])
    return bool(achieved < KEPT_UP * offered and late >= WAIT_GROWTH * early)


def _step(mode: str, scenario: Traffic, rate: float, repeat: int, variant: str) -> str:
    return f"rate_{mode}_{scenario.name.replace(' ', '_')}_{rate:g}_{repeat}_{variant}"


def _timed_block(
    url: str,
    load: "LoadGenerator",
    scenario: Traffic,
    rate: float,
    repeat: int,
    sampling: Sampling,
    evaluation: EvalConfig,
) -> dict[str, Any]:
    """A block of the scenario's requests, in the log's order from the first, repeated as needed."""
    count = evaluation.rate_requests(rate)
    arrivals = customers_arrivals(scenario.times, count, rate, evaluation.seed + repeat)
    texts = list(itertools.islice(itertools.cycle(scenario.texts), count))
    block = load.run_timed(url, texts, arrivals.seconds, sampling, scenario.max_tokens)
    return {
        **record_of(block),
        "arrivals_s": arrivals.seconds,
        "request_start_s": [request.start_s for request in block.requests],
        "source": arrivals.source,
    }


def _pairs(
    over: Sequence[Mapping[str, Any]], under: Sequence[Mapping[str, Any]]
) -> list[np.ndarray]:
    """A request's own tokens and seconds, paired by request, in the form of `speed_ratio`."""
    names = ("request_tokens", "request_seconds")
    return [
        np.array([block[name] for block in both for name in names], dtype=np.float64).T
        for both in zip(over, under, strict=True)
    ]
