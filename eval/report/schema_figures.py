"""What report.json holds of acceptance, speed and money: one model for every object (report_schema.py has the whole)."""

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

T = TypeVar("T")


class Part(BaseModel):
    """An object of the report: no other keys than these."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Estimate(Part):
    """A figure with its 95 % interval."""

    value: float
    """Ratio of the pooled sums"""
    low: float | None
    """Low end; null in a slice of fewer than five sessions"""
    high: float | None
    """High end; null likewise"""
    observations: int | None = None
    """Responses, requests or passes that it rests on"""
    clusters: int | None = None
    """Sessions or groups of prompts that the bootstrap drew; timed blocks of a ratio of speeds"""


class Drafters(Part, Generic[T]):
    """One of base, one of custom."""

    base: T
    """The target's own speculator"""
    custom: T
    """The trained one"""


class Variants(Part, Generic[T]):
    """One without speculation, one of base, one of custom."""

    none: T
    """Without speculation"""
    base: T
    """The target's own speculator"""
    custom: T
    """The trained one"""


class PerDrafter(Part):
    """One list each, of base and of custom."""

    base: list[float]
    """The target's own speculator"""
    custom: list[float]
    """The trained one"""


class Replay(Part):
    """Exact replay of held-out responses at k."""

    base: Estimate
    """Acceptance length, delivered tokens over expected steps"""
    custom: Estimate
    """Likewise"""
    ratio: Estimate
    """custom / base, paired by response, over sessions"""
    sequences: int
    """Responses"""
    sessions: int
    """Sessions they belong to"""
    tokens: int
    """Tokens delivered by steps"""
    by_k: PerDrafter
    """Acceptance length for k = 1..depth"""
    cumulative: PerDrafter
    """Position j: share of steps whose drafts 1..j were all accepted"""
    conditional: PerDrafter
    """Position j: share of drafts at j accepted, where all before it were"""


class MixturePart(Part):
    """A mixture on one part of the traffic."""

    acceptance_length: Estimate
    """By exact replay"""
    ratio: Estimate
    """Over base"""


class Mixture(Part):
    """An average of base's and custom's weights."""

    share: float
    """Of custom"""
    heldout: MixturePart
    """On the held-out part"""
    general: MixturePart | None = None
    """On general traffic, where there is some"""


class Slice(Part):
    """A slice of the held-out traffic, by exact replay."""

    name: str
    """The tenant, route, template ... or the part of the response"""
    sequences: int
    """Responses"""
    sessions: int
    """Sessions"""
    tokens: int
    """Tokens delivered by steps"""
    base: Estimate
    """Acceptance length"""
    custom: Estimate
    """Acceptance length"""
    ratio: Estimate
    """custom / base"""


class CountedDrafter(Part):
    """What vLLM counted of one speculator, pooled over passes."""

    acceptance_length: float
    """1 + accepted_tokens / drafts, drafts past the end of responses included"""
    drafts: int
    """Steps with drafts"""
    accepted_tokens: int
    """Accepted drafts"""
    cumulative: list[float]
    """As in `replay`"""
    conditional: list[float] | None = None
    """As in `replay`, drafts past the end included; not of a speculator that Outrider does not compute"""
    steps: int | None = None
    """Of a speculator that Outrider does not compute: steps, with drafts or without. Its acceptance length is delivered tokens over these"""


class Counted(Part):
    """Acceptance from vLLM's counters, at the customer's sampling."""

    base: CountedDrafter
    """The target's own speculator"""
    custom: CountedDrafter
    """The trained one"""
    ratio: Estimate
    """custom / base, over groups of prompts"""


class Quantiles(Part):
    """Milliseconds over requests or deliveries."""

    p50: float
    """Median"""
    p90: float
    """90th percentile"""
    p99: float
    """99th percentile"""


class Delivered(Part):
    """Tokens that one delivery brings, a request's first aside."""

    value: float
    """Over all tokens"""
    p10: float
    """10th percentile of the requests' own means"""
    p50: float
    """Median of them"""
    p90: float
    """90th percentile"""


class Block(Part):
    """A variant at one concurrency, its timed blocks pooled."""

    tokens_per_s: float
    """Output tokens of all requests over the blocks' wall time"""
    requests_per_s: float
    """Requests completed over the same time"""
    output_tokens: int
    """Sum over the blocks"""
    seconds: float
    """Wall time of the blocks"""
    requests: int
    """Requests"""
    ttft_ms: Quantiles
    """To the first token"""
    tpot_ms: Quantiles
    """Per output token after the first"""
    itl_ms: Quantiles
    """Between deliveries, each of one token or several"""
    token_gap_ms: Quantiles
    """Between tokens; those of one delivery come at once"""
    tokens_per_delivery: Delivered
    """How many come at once"""


class SpeedRow(Part):
    """One concurrency."""

    none: Block
    """Without speculation"""
    base: Block
    """With the target's own speculator"""
    custom: Block
    """With the trained one"""
    custom_over_base: Estimate
    """Ratio of tokens/s, paired within repeats; Student's interval, the noise of blocks pooled over concurrencies and modes. At one request at a
    time, of pairs of requests asked in turn in one engine: then `clusters` are pairs, else blocks"""
    custom_over_none: Estimate
    """Likewise, of blocks"""
    base_over_none: Estimate
    """Likewise, of blocks"""


class Served(Part):
    """One engine mode."""

    speed: dict[str, SpeedRow]
    """Concurrency -> tokens/s and latencies"""
    acceptance: Counted
    """vLLM's counters over the timed blocks"""


class Prediction(Part):
    """A speed or a speed-up from replay's acceptance length and the engine's steps."""

    value: float
    """As the closed loop, gone through step by step, has it"""
    difference: float
    """value / served - 1"""


class PredictedSpeed(Part):
    """Tokens/s."""

    served: float
    """As measured"""
    timed: Prediction | None
    """With the steps as timed before the serving: a forecast; null where this engine mode was not timed"""
    as_served: Prediction | None
    """With the steps of the variant's own blocks, as the servers recorded them: an account; null where no step only decodes"""


class PredictedRatio(Part):
    """A speed-up; the machine's drift between timing and serving cancels as far as it meets both alike."""

    served: Estimate
    """As measured"""
    timed: Prediction | None
    """As of tokens/s"""
    as_served: Prediction | None
    """As of tokens/s"""


class StepMs(Part):
    """Milliseconds of a step that only decodes, with every seat taken."""

    timed: float | None
    """Before the serving; the same for base and custom"""
    as_served: float | None
    """In the variant's own blocks"""


class PredictedTarget(Part):
    """The target alone."""

    step_ms: StepMs
    """Steps as timed and as served: how far the machine's speed drifted"""
    tokens_per_s: PredictedSpeed
    """Tokens/s"""


class PredictedDrafter(PredictedTarget):
    """A speculator."""

    over_none: PredictedRatio
    """Its speed-up over no speculation"""


class PredictedRow(Drafters[PredictedDrafter]):
    """One concurrency."""

    none: PredictedTarget
    """The target alone"""
    custom_over_base: PredictedRatio
    """Both in one engine"""


class Saved(Part):
    """Custom against the other two."""

    base: float
    """Against base"""
    none: float
    """Against no speculation"""


class Cost(Part):
    """Money at one mode and concurrency, in the currency of eval.cost."""

    per_million_tokens: Variants[float]
    """Price"""
    saved_share: Saved
    """1 - custom's price over the other's"""
    gpu_hours_a_month: Variants[float] | None = None
    """At eval.cost.tokens_per_s"""
    saved_gpu_hours_a_month: Saved | None = None
    """Likewise"""
    break_even_tokens: float | None = None
    """After which training has paid against base; null: never, or not asked for"""
    break_even_days: float | None = None
    """Likewise, at eval.cost.tokens_per_s"""
