"""What report.json holds of open loop: one model for every object (report_schema.py has the whole)."""

from typing import Literal

from outrider.eval.report.schema_figures import Block, Estimate, Part


class RateBlock(Block):
    """A variant at one rate, its timed blocks pooled."""

    offered: float
    """Requests that came a second"""
    achieved: float
    """Requests that were completed a second"""
    saturated: bool
    """The rate overran the server, in most of the blocks"""
    request_tokens_per_s: float
    """Tokens of a request over the time from sending it to its last token, sums over requests"""
    acceptance_length: float
    """1 + accepted / drafts from vLLM's counters; 1 without drafts"""
    late_ms: float
    """The most by which the generator sent a request after its time"""


class Arrivals(Part):
    """How requests arrived."""

    source: Literal["log", "poisson"]
    """The customer's times, scaled; or drawn, because the log has none"""
    spread: float
    """Standard deviation over mean of the gaps: about 1 for a Poisson process, more in bursts"""


class RateRow(Part):
    """One scenario at one rate."""

    none: RateBlock
    """Without speculation"""
    base: RateBlock
    """With the target's own speculator"""
    custom: RateBlock
    """With the trained one"""
    custom_over_base: Estimate
    """Ratio of a request's own tokens/s, paired by request"""
    custom_over_none: Estimate
    """Likewise"""
    base_over_none: Estimate
    """Likewise"""
    arrivals: Arrivals
    """How requests arrived"""


class Lengths(Part):
    """Tokens, as logged."""

    p10: float
    """10th percentile"""
    p50: float
    """Median"""
    p90: float
    """90th percentile"""


class Scenario(Part):
    """Which requests a scenario is made of."""

    requests: int
    """Held-out requests in its ranges"""
    heldout: int
    """Of so many"""
    prompt_tokens: Lengths
    """Of their prompts"""
    response_tokens: Lengths
    """Of their logged responses"""
    max_tokens: int
    """At which a response was cut"""
