"""Models of the report's sections: choice of K, acceptance, speed, cost, lossless checks."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from outrider.eval.results.parts import (
    DOCUMENTED,
    ClusteredEstimate,
    Drafter,
    Drafters,
    Estimate,
    Part,
    Ratios,
    Variants,
)


class Choice(Part):
    """How the k of base and of custom were chosen, on the validation part."""

    k: Drafters[int]
    """Drafted tokens per step"""
    main_concurrency: int
    """Concurrency at which K is chosen and custom must be faster than base: the lowest measured one
    at which base keeps up with the logged tokens per second; the first one where the log has no
    times or nothing was timed"""
    k_per_batch_size: Drafters[list[tuple[int, int, int]]] | None = None
    """[first batch size, last, best k]; null where not both were timed"""
    acceptance_length: Drafters[list[float]] | None = None
    """On the validation part, for k = 1..depth; null where exact replay is not measured"""
    step_ms: dict[Drafter, dict[str, dict[int, float]]] = Field(default_factory=dict)
    """Whose steps -> batch size -> k -> milliseconds per step; empty where nothing was timed"""
    lookup_k: int | None = None
    """Drafted tokens per step of n-gram lookup; null where it is not served as a reference"""


class KindSpeed(Part):
    """A kind: acceptance by exact replay over the time of its steps, at the main concurrency."""

    kind: str
    """The value of speculator.kind"""
    k: int
    """Its own best number of drafts, or the only one that it can make"""
    acceptance_length: ClusteredEstimate
    """At k, over the sessions of the validation part"""
    step_ms: float
    """Milliseconds of a step with these drafts"""
    over_lookup: ClusteredEstimate | None = None
    """Its tokens/s over those of n-gram lookup, over sessions; null where lookup is not a candidate
    and for lookup itself"""
    parameters: int = 0
    """Values in its weight files"""
    training_minutes: float = 0
    """Time of its training, the check of its warm start included"""

    def tokens_per_s(self, concurrency: int) -> float:
        """Concurrency x acceptance length over the time of a step."""
        return 1000 * concurrency * self.acceptance_length.value / self.step_ms


class OnPolicy(Part):
    """Whether the held-out sequences are on-policy (docs/explanation/traffic.md)."""

    cause: str
    """`own` where the target wrote the text, else the likely cause"""
    text: str
    """The same in words"""
    sequences: int
    """Number of sequences checked"""


Series = dict[Literal["base", "custom", "lookup", "ceiling"], list[float]]


class Replay(Part):
    """Exact replay of held-out responses.

    Acceptance lengths are at custom's K for both: one of more drafts can only be larger.
    """

    base: ClusteredEstimate
    """Acceptance length of base at custom's K: delivered tokens over expected steps"""
    custom: ClusteredEstimate
    """Acceptance length of custom at its K"""
    ratio: ClusteredEstimate
    """custom / base, paired by response"""
    lookup: ClusteredEstimate
    """Acceptance length of n-gram lookup at custom's K"""
    ceiling: ClusteredEstimate
    """Acceptance length of a perfect drafter at custom's K"""
    by_k: Series
    """Acceptance length for k = 1..depth"""
    cumulative: Series
    """By position j, base at its own K, all others at custom's: share of steps whose drafts 1..j
    were all accepted"""
    cumulative_ci95: list[tuple[float, float] | None]
    """95 % intervals of custom's; null where sessions are few or no draft was accepted"""


class Workload(Part):
    """A public workload, by exact replay of the target's responses."""

    by_k: dict[Literal["base", "custom"], list[float]]
    """Acceptance length for k = 1..depth"""
    ratio: ClusteredEstimate
    """custom / base at the trained depth"""


class Slice(Part):
    """A slice of the held-out traffic, by exact replay."""

    name: str
    """The tenant, route, template ... or the part of the response"""
    base: ClusteredEstimate
    """Acceptance length of base"""
    custom: ClusteredEstimate
    """Acceptance length of custom"""
    ratio: ClusteredEstimate
    """custom / base"""


class CountedDrafter(Part):
    """What vLLM counted for one speculator, pooled over passes."""

    acceptance_length: float
    """Tokens after each response's first over steps"""
    steps: int
    """Number of steps, with or without drafts"""
    cumulative: list[float]
    """By position j: share of the steps whose drafts 1..j were all accepted"""


class Counted(Drafters[CountedDrafter]):
    """Acceptance from vLLM's counters, at the customer's sampling."""

    model_config = DOCUMENTED

    ratio: ClusteredEstimate
    """custom / base"""


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


class Greedy(Part):
    """Greedy responses against those without speculation."""

    responses: int
    """Number of responses compared"""
    near_ties: list[int]
    """Indices of responses whose first difference lies within gate.near_tie_nats"""
    unexplained: list[int]
    """Indices of responses whose first difference does not, or is an end"""

    @property
    def equal(self) -> int:
        """Number of responses equal token for token."""
        return self.responses - len(self.near_ties) - len(self.unexplained)


class Excess(Part):
    """Responses that differ, near ties included, above the control's; paired by prompt."""

    value: float
    """Share with speculation minus share of the control, over the control's prompts"""
    p_value: float
    """Probability of at least this excess over the control, in differences or in unexplained ones,
    if speculation changed nothing"""


class SameText(Part):
    """Permutation test of token frequencies against no speculation."""

    prompts: int
    """Number of prompts"""
    tokens: int
    """Number of tokens, both sides together"""
    p_value: float
    """Share of relabelings at least as far apart, by the chi-square distance"""


class Equivalence(Part):
    """Custom minus none, paired by prompt, for two one-sided tests (TOST) against a margin."""

    value: float
    """Difference of the shares of solved tasks"""
    low: float
    """Low end of its 90 % interval, each test at 5 %"""
    high: float
    """High end of the interval"""
    variance: float
    """Variance of one response's difference"""
    observations: int
    """Number of responses"""
    clusters: int
    """Number of sessions"""

    def within(self, margin: float) -> bool:
        """Whether both tests reject a difference as large as the margin."""
        return self.low > -margin and self.high < margin


class Task(Variants[int]):
    """Number of tasks solved, greedy and sampled responses together."""

    model_config = DOCUMENTED

    custom_minus_none: Equivalence
    """Whether custom solves as many tasks as no speculation"""
    errors: int = 0
    """Number of responses on which the check raised; their prompts are left out"""
    first_error: str | None = None
    """The first of these errors"""


class ReplayAgainstEngine(Drafters[float]):
    """Predicted / counted steps - 1, of the same responses: greedy and at the customer's sampling.

    Steps are predicted by exact replay, and counted by the engine.
    """

    model_config = DOCUMENTED

    control: float
    """|steps / steps - 1| of custom against itself in other batches, over equal greedy responses"""


class EngineFindings(Part):
    """What the verification pass found in the outputs of one engine mode."""

    greedy: Drafters[Greedy]
    """Greedy responses against those without speculation"""
    control: Greedy
    """The first greedy responses without speculation against the same prompts in other batches"""
    excess: Excess
    """What custom adds to the control's differences"""
    greedy_acceptance_length: Drafters[float | None]
    """1 + accepted / drafts of the greedy responses by vLLM's counters, which an exported bundle
    must reach; null without drafts"""
    tail_share: Variants[float]
    """Share of sampled tokens whose probability under the target is below 1e-4"""
    same_text: SameText
    """Token frequencies of custom against no speculation"""
    replay_vs_engine: ReplayAgainstEngine | None
    """Predicted and counted steps; null where exact replay is not measured"""


class Verification(Part):
    """The verification pass: the same prompts through all variants, in every engine mode."""

    modes: dict[str, EngineFindings]
    """Engine mode -> its findings"""
    task: Task | None
    """Over the responses of all modes; null without eval.task"""
