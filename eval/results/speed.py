"""Models of speed: the closed loop's blocks, and the open loop's rates and scenarios."""

from typing import Literal

from outrider.eval.results.acceptance import Counted
from outrider.eval.results.parts import DOCUMENTED, Drafters, Estimate, Part, Ratios, Variants


class Quantiles(Part):
    """Milliseconds over requests or deliveries."""

    p50: float
    """Median"""
    p90: float
    """90th percentile"""
    p99: float
    """99th percentile"""


class Delivered(Part):
    """Tokens per delivery, without a request's first."""

    value: float
    """All tokens over all deliveries"""
    p10: float
    """10th percentile of the requests' means"""
    p50: float
    """Median of the requests' means"""
    p90: float
    """90th percentile of the requests' means"""


class Block(Part):
    """A variant at one concurrency, its timed blocks pooled."""

    tokens_per_s: float
    """Output tokens of all requests over the blocks' wall time"""
    requests_per_s: float
    """Completed requests over the blocks' wall time"""
    output_tokens: int
    """Sum over the blocks"""
    seconds: float
    """Wall time of the blocks"""
    requests: int
    """Number of requests"""
    ttft_ms: Quantiles
    """Time to first token"""
    tpot_ms: Quantiles
    """Time per output token after the first"""
    itl_ms: Quantiles
    """Time between deliveries, each of one or more tokens"""
    token_gap_ms: Quantiles
    """Time between tokens; the tokens of one delivery are 0 ms apart"""
    tokens_per_delivery: Delivered
    """Tokens that arrive together"""


class OtherBase(Part):
    """Base at another number of drafts, in the same engine."""

    base: Block
    """Base's figures"""
    custom_over_base: Estimate
    """Custom at its own K over base at this one"""


class SpeedRow(Ratios, Variants[Block]):
    """One concurrency: each variant's figures, and ratios of tokens/s.

    Base and custom each draft their own K. Ratios are paired within repeats. Their intervals are
    Student's, with the larger of the noise of its own blocks and that pooled over concurrencies and
    engine modes. At concurrency 1 base and custom alternate by request in one engine; their ratio's
    `clusters` are then pairs of requests.
    """

    model_config = DOCUMENTED

    same_k: OtherBase | None = None
    """Base at custom's K; null where that is base's own"""
    current: OtherBase | None = None
    """Base at eval.current_k; null without it, and where that is base's own K"""
    better: bool = False
    """Whether custom is shown to be faster than base. At concurrencies other than the main one
    Holm's correction holds the error probability of all these claims together at 5 %"""
    drafts: Drafters[float] | None = None
    """Drafts per request in steps that decode as many requests as the concurrency, as the engine
    recorded them; null where there is no such step"""


class Served(Part):
    """One engine mode."""

    speed: dict[str, SpeedRow]
    """Concurrency -> tokens/s and latencies"""
    repeats: int | None = None
    """Number of repeats measured"""
    acceptance: Counted
    """vLLM's counters over the timed blocks"""


class RateBlock(Block):
    """A variant at one rate, its timed blocks pooled."""

    offered: float
    """Requests sent per second"""
    achieved: float
    """Requests completed per second"""
    saturated: bool
    """Whether most of the blocks overran the server"""
    request_tokens_per_s: float
    """Tokens of a request over the time from sending it to its last token, sums over requests"""
    acceptance_length: float
    """1 + accepted / drafts from vLLM's counters; 1 without drafts"""
    late_ms: float
    """Longest delay between a request's planned and actual sending"""


class Arrivals(Part):
    """How requests arrived."""

    source: Literal["log", "poisson"]
    """`log`: the customer's times, scaled; `poisson`: drawn, because the log has no times"""
    spread: float
    """Standard deviation over mean of the gaps: about 1 for a Poisson process, more in bursts"""


class RateRow(Ratios, Variants[RateBlock]):
    """One scenario at one rate; ratios are of a request's own tokens/s, paired by request."""

    model_config = DOCUMENTED

    arrivals: Arrivals
    """How requests arrived"""


class Lengths(Part):
    """Numbers of tokens, as logged."""

    p10: int
    """10th percentile"""
    p50: int
    """Median"""
    p90: int
    """90th percentile"""


class Scenario(Part):
    """The requests of a scenario."""

    requests: int
    """Number of held-out requests in its ranges"""
    heldout: int
    """Number of held-out requests in all"""
    prompt_tokens: Lengths
    """Lengths of the prompts"""
    response_tokens: Lengths
    """Lengths of the logged responses"""
    max_tokens: int
    """Longest measured response; longer ones are cut"""
