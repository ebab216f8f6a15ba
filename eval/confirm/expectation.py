"""What a report predicts for a number of drafts and a load that it did not measure.

    custom = expected_figures(report, "custom")
    custom.length(2.5)                  # acceptance length at 2.5 drafts per step on average
    custom.tpot_ms(load=6.2, k=2.0)     # milliseconds per output token

Acceptance at k drafts is that of exact replay (`replay.by_k`), or, for kinds without it, the sum of
the shares by position of vLLM's counters (`counted`). Between two k, and between two loads, values
are interpolated. Outside of what was measured, the nearest measured value is taken.

The report has quantiles of TPOT over requests, while a server counts sums. Request TPOTs have a
longer upper tail, so their mean is estimated as that of a log-normal distribution with the report's
p50 and p90: p50 exp(s^2 / 2), with s = log (p90 / p50) / 1.28.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from outrider.common.errors import OutriderError
from outrider.eval.results.parts import ClusteredEstimate, Variant
from outrider.eval.results.report import Report
from outrider.eval.results.sections import Block, Quantiles, ServedSpeed

Z = NormalDist().inv_cdf(0.975)
Z90 = NormalDist().inv_cdf(0.9)

RESPONSE_NOISE = 0.3
"""Standard deviation, on the log scale, assumed for the acceptance length of a response (or a
session) if the report has no interval to derive it from."""


@dataclass(frozen=True)
class ExpectedFigures:
    """The report's figures for one variant, by number of drafts and by load."""

    k: int
    """Drafts per step with which it was served"""
    k_by_load: Sequence[tuple[int, int, int]]
    """[first batch size, last batch size, k] of a schedule; empty without one"""
    lengths: Sequence[float]
    """Acceptance length for k = 1, 2, ...; empty without speculation"""
    length_error: float
    """Standard error of its log"""
    responses: int
    """Number of responses behind it"""
    main: int
    """Main concurrency, for which the report's gains are stated"""
    blocks: Mapping[int, Block]
    """Concurrency -> measured latencies"""
    step_ms: Mapping[int, Mapping[int, float]]
    """Batch size -> k -> milliseconds per step; empty if steps were not timed"""

    @property
    def largest_k(self) -> int:
        """The largest number of drafts with a known acceptance length."""
        return len(self.lengths)

    def k_at(self, load: float) -> int:
        """Drafts per step that the report's schedule has at this load."""
        for first, last, k in self.k_by_load:
            if first <= max(round(load), 1) <= last:
                return k
        return self.k

    def length(self, k: float) -> float:
        """Acceptance length at k drafts per step on average; 1 without speculation."""
        drafts = np.arange(len(self.lengths) + 1)
        return float(np.interp(k, drafts, [1.0, *self.lengths]))

    def tpot_ms(self, load: float, k: float | None = None) -> float:
        """Mean time per output token at a load, in ms, with k instead of the measured drafts."""
        measured = {size: _mean(block.tpot_ms) for size, block in self.blocks.items()}
        tpot_ms = _at_load(measured, load)
        return tpot_ms if k is None else tpot_ms * self.k_effect(load, k)

    def k_effect(self, load: float, k: float) -> float:
        """Factor on TPOT of drafting k instead of the measured number of tokens per step."""
        per_token = [
            self._step_ms(load, drafts) / self.length(drafts) for drafts in (k, self.k_at(load))
        ]
        return per_token[0] / per_token[1]

    def first_token_ms(self, load: float) -> float:
        """Median time to first token at a load, in ms."""
        return _at_load({size: block.ttft_ms.p50 for size, block in self.blocks.items()}, load)

    @property
    def timed_requests(self) -> int:
        """Smallest number of requests behind a TPOT."""
        return min(block.requests for block in self.blocks.values())

    @property
    def request_noise(self) -> float:
        """Standard deviation of a request's log TPOT, at the load where it is largest."""
        return max(_spread(block.tpot_ms) for block in self.blocks.values())

    def _step_ms(self, load: float, k: float) -> float:
        """Milliseconds per step at the batch size nearest to the load; 1 if not timed."""
        sizes = [size for size, times in self.step_ms.items() if times]
        if not sizes:
            return 1.0
        times = self.step_ms[min(sizes, key=lambda size: abs(math.log(size / load)))]
        drafts = sorted(times)
        return float(np.interp(k, drafts, [times[number] for number in drafts]))


def expected_figures(report: Report, variant: Variant) -> ExpectedFigures:
    """The report's figures for one variant, in the engine mode in which vLLM serves."""
    # vLLM compiles unless it is started with --enforce-eager.
    served = report.served.get("compiled") or next(iter(report.served.values()))
    rows = {int(size): row.of(variant) for size, row in served.speed.items()}
    blocks = {size: block for size, block in rows.items() if block.tpot_ms.p50 > 0}
    if not blocks:
        raise OutriderError(
            f"{report.run_dir}/report.json: no time per output token, because all timed responses"
            " have one token; evaluate with a larger eval.max_tokens"
        )
    main = report.choice.main_concurrency
    if variant == "none":
        return ExpectedFigures(
            k=0,
            k_by_load=(),
            lengths=(),
            length_error=0.0,
            responses=0,
            main=main,
            blocks=blocks,
            step_ms={},
        )
    figure = _acceptance(report, variant)
    schedule = report.choice.k_per_batch_size if report.by_batch_size else None
    times = report.choice.step_ms.get(variant, {})
    return ExpectedFigures(
        k=served.k.of(variant),
        k_by_load=schedule.of(variant) if schedule else (),
        lengths=_lengths(report, variant, served),
        length_error=log_error(figure),
        responses=figure.observations,
        main=main,
        blocks=blocks,
        step_ms={int(size): by_k for size, by_k in times.items()},
    )


def log_error(estimate: ClusteredEstimate) -> float:
    """Standard error of the log of an estimate, from its 95 % interval if it has one."""
    if estimate.low is None or estimate.high is None:
        return RESPONSE_NOISE / math.sqrt(max(estimate.clusters, 1))
    return math.log(estimate.high / estimate.low) / (2 * Z)


def _acceptance(report: Report, variant: Variant) -> ClusteredEstimate:
    """The estimate whose interval and number of responses acceptance has."""
    if report.replay is not None:
        return report.replay.custom if variant == "custom" else report.replay.base
    # Of the same responses, but the interval of a paired ratio is narrower than that of a length.
    return report.counted.ratio.model_copy(update={"low": None, "high": None})


def _lengths(report: Report, variant: Variant, served: ServedSpeed) -> list[float]:
    """Acceptance length for k = 1, 2, ..."""
    if report.replay is not None and variant in report.replay.by_k:
        return report.replay.by_k[variant]
    counted = report.counted.base if variant == "base" else report.counted.custom
    chain = [1 + accepted for accepted in itertools.accumulate(counted.cumulative)]
    if not chain:
        return [counted.acceptance_length] * served.k.of(variant)
    # Drafts past the end of a response are counted by position, but not delivered.
    return [length * counted.acceptance_length / chain[-1] for length in chain]


def _at_load(values: Mapping[int, float], load: float) -> float:
    """Interpolates between measured concurrencies, in logarithms."""
    sizes = sorted(values)
    logs = [math.log(values[size]) for size in sizes]
    return math.exp(float(np.interp(math.log(load), np.log(sizes), logs)))


def _spread(quantiles: Quantiles) -> float:
    """Standard deviation of the logs, from p50 and p90."""
    return math.log(quantiles.p90 / quantiles.p50) / Z90


def _mean(quantiles: Quantiles) -> float:
    """Mean of a log-normal distribution with these quantiles."""
    return quantiles.p50 * math.exp(_spread(quantiles) ** 2 / 2)
