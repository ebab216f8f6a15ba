"""Models of speed: the closed loop's blocks, the open loop's rates and scenarios, and the cost."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from outrider.eval.results.parts import DOCUMENTED, Drafters, Estimate, Part, Ratios, Variants


class Quantiles(Part):
    """Milliseconds or tokens, over requests or deliveries."""

    p50: float
    """Median"""
    p90: float
    """90th percentile"""
    p99: float
    """99th percentile"""

    @classmethod
    def of(cls, values: NDArray[Any]) -> "Quantiles":
        """Those of the values; zeros where there are none."""
        p50, p90, p99 = np.percentile(values, [50, 90, 99]).tolist() if len(values) else [0.0] * 3
        return cls(p50=p50, p90=p90, p99=p99)


class Block(Part):
    """A variant at one concurrency, its timed blocks pooled."""

    tokens_per_s: float
    """Output tokens of all requests over the blocks' wall time"""
    requests: int
    """Number of requests"""
    ttft_ms: Quantiles
    """Time to first token"""
    tpot_ms: Quantiles
    """Time per output token after the first"""
    itl_ms: Quantiles
    """Time between deliveries, each of one or more tokens"""


class Reference(Part):
    """What else custom is compared with: base at another number of drafts, or n-gram lookup."""

    block: Block
    """Its figures"""
    custom_over: Estimate
    """Custom at its own K over it"""


class SpeedRow(Ratios, Variants[Block]):
    """One concurrency: each variant's figures, and ratios of tokens/s.

    Base and custom each draft their own K. Ratios are paired within repeats, their intervals are
    Student's. At concurrency 1 base and custom alternate by request in one engine; their ratio's
    `clusters` are then pairs of requests.
    """

    model_config = DOCUMENTED

    current: Reference | None = None
    """Base at eval.current_k; null without it, and where that is base's own K"""
    lookup: Reference | None = None
    """N-gram lookup at `choice.lookup_k`; null elsewhere than at the main concurrency"""
    starts: int | None = None
    """How often the engines of base and custom were started; null where they share one. Below three
    their ratio decides nothing"""
    drafting: Drafters[float]
    """Share of the steps that verified drafts, by vLLM's counters"""


class Served(Part):
    """One engine mode."""

    k: Drafters[int]
    """Drafted tokens per step of base and of custom in this mode"""
    speed: dict[str, SpeedRow]
    """Concurrency -> tokens/s and latencies"""
    repeats: int
    """Number of repeats measured"""


class RateBlock(Block):
    """A variant at one rate, its timed blocks pooled."""

    saturated: bool
    """Whether the rate overran the server in most blocks: it completed fewer than 90 % of the
    requests that arrived, and the time to first token at least doubled"""
    request_tokens_per_s: float
    """Tokens of a request over the time from sending it to its last token, sums over requests"""
    acceptance_length: float
    """1 + accepted / drafts from vLLM's counters; 1 without drafts"""


class RateRow(Ratios, Variants[RateBlock]):
    """One scenario at one rate; ratios are of a request's own tokens/s, paired by request."""

    model_config = DOCUMENTED

    arrivals: Literal["log", "poisson"]
    """`log`: the customer's times, scaled; `poisson`: drawn, because the log has no times"""


class Scenario(Part):
    """The requests of a scenario."""

    requests: int
    """Number of held-out requests in its ranges"""
    prompt_tokens: Quantiles
    """Lengths of the prompts"""
    response_tokens: Quantiles
    """Lengths of the logged responses"""


class Cost(Part):
    """Money at one engine mode and concurrency, in the currency of eval.cost."""

    per_million_tokens: Variants[float]
    """Price of a million output tokens"""
    gpu_hours_a_month: Variants[float] | None = None
    """At eval.cost.tokens_per_s; null without it"""
