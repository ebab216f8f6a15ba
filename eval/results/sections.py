"""Models of the report's sections: K, acceptance, speed, cost, lossless checks."""

from typing import Literal

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
from outrider.speculators.kinds.protocol import Runner


class Quantiles(Part):
    """Quantiles, in milliseconds or tokens, over requests or deliveries."""

    p50: float
    """Median"""
    p90: float
    """90th percentile"""
    p99: float
    """99th percentile"""

    @classmethod
    def of(cls, values: NDArray[np.float64] | NDArray[np.int64]) -> "Quantiles":
        """Computes the quantiles of the values; all zero if there are none."""
        p50, p90, p99 = np.percentile(values, [50, 90, 99]).tolist() if len(values) else [0.0] * 3
        return cls(p50=p50, p90=p90, p99=p99)


class HistoryFacts(Part):
    """The earlier responses that a lookup searches."""

    responses: int
    """Number of responses"""
    offered: int
    """Number of responses from which the newest that fit into lookup.max_gb were taken"""
    tokens: int
    """Number of their tokens"""
    gigabytes: float
    """Memory of an engine's process"""
    shared: bool
    """lookup.shared"""
    without_salt: int
    """Number of responses that a request without cache_salt searches"""


class LookupChoice(Part):
    """A lookup at its best, as chosen on the validation part."""

    settings: dict[str, float]
    """vLLM's settings of the lookup: keys of its speculative_config"""
    k: int
    """Drafted tokens per step"""
    runner: Runner
    """Model runner of vLLM that serves it, and whose algorithm is replayed"""
    acceptance_length: list[float] | None = None
    """Acceptance length on the validation part for k = 1..24; null without exact replay"""
    step_ms: dict[int, float] = Field(default_factory=dict)
    """k -> milliseconds per step at the main concurrency; empty if it was not timed"""
    history: HistoryFacts | None = None
    """The responses that it searches; null if it searches the request alone"""


class KChoice(Part):
    """The k of base and of custom, chosen on the validation part."""

    k: Drafters[int]
    """Drafted tokens per step"""
    main_concurrency: int
    """Concurrency at which kind and K are chosen and custom must be faster than base: the first of
    eval.concurrency"""
    k_per_batch_size: Drafters[list[tuple[int, int, int]]] | None = None
    """[first batch size, last batch size, best k]; nothing is drafted above the largest measured
    size, from which the last range begins; null unless base and custom were timed"""
    acceptance_length: Drafters[list[float]] | None = None
    """Acceptance length on the validation part for k = 1..depth; null without exact replay"""
    step_ms: dict[Drafter, dict[str, dict[int, float]]] = Field(default_factory=dict)
    """Speculator -> batch size -> k -> milliseconds per step; empty if nothing was timed"""
    prefill_ms: dict[Drafter, dict[str, float]] = Field(default_factory=dict)
    """Speculator -> batch size -> milliseconds of prefill per token of a response, for the prompts
    of all requests of the batch"""
    step_contexts: Quantiles | None = None
    """Tokens before the timed steps, as in the log; null if nothing was timed"""
    lookups: dict[str, LookupChoice] = Field(default_factory=dict)
    """Lookups that custom is measured against, by kind"""
    lookup: str | None = None
    """The fastest of `lookups`, which is served as a reference; null if none is served"""

    @property
    def lookup_k(self) -> int | None:
        """Drafted tokens per step of the served lookup."""
        return None if self.lookup is None else self.lookups[self.lookup].k


class KindSpeed(Part):
    """A kind's speed: from replayed acceptance and timed steps at the main concurrency."""

    kind: str
    """A value of speculator.kind, `base` (in use) or `none` (no speculation)"""
    k: int
    """Its best k, or the only k that it supports; 0 without speculation"""
    acceptance_length: ClusteredEstimate
    """Acceptance length at k on the validation part"""
    step_ms: float
    """Milliseconds per step at k"""
    step_ms_by_k: dict[int, float] = Field(default_factory=dict)
    """Milliseconds per step, by number of drafts. Those of another kind whose steps take equally
    long, if only that one was timed"""
    prefill_ms: float = 0
    """Milliseconds of prefill per token of a response"""
    runner: Runner
    """Model runner of vLLM that serves it"""
    over_lookup: ClusteredEstimate | None = None
    """Its tokens/s over those of the lookup, with an interval over sessions; null for lookup
    itself and if lookup is not a candidate"""
    parameters: int = 0
    """Number of parameters in its weight files"""
    training_minutes: float = 0
    """Its training time in minutes, including the warm-start check"""

    def tokens_per_s(self, concurrency: int) -> float:
        """Tokens/s: concurrency / (prefill + step time / acceptance length)."""
        token_ms = self.prefill_ms + self.step_ms / self.acceptance_length.value
        return 1000 * concurrency / token_ms


class OnPolicy(Part):
    """Whether the held-out sequences are on-policy (docs/explanation/traffic.md)."""

    cause: str
    """`own` if the target wrote the text, `not_checked`, else the likely cause"""
    text: str
    """The cause in words"""
    sequences: int
    """Number of sequences checked"""
    not_checked: int
    """Number of sequences with hard labels, which cannot be checked"""


Series = dict[str, list[float]]
"""Values of `base`, `custom`, `ceiling` and each lookup, by name."""


class Replay(Part):
    """Exact replay of held-out responses.

    Both acceptance lengths are at the same K, because a larger K alone increases them.
    """

    k: int
    """Custom's K, or the largest for which both were replayed if that is smaller"""
    base: ClusteredEstimate
    """Acceptance length of base at `k`: delivered tokens over expected steps"""
    custom: ClusteredEstimate
    """Acceptance length of custom at `k`"""
    ratio: ClusteredEstimate
    """custom / base, paired by response"""
    lookups: dict[str, ClusteredEstimate]
    """Acceptance length of each lookup at its own K"""
    ceiling: ClusteredEstimate
    """Acceptance length of a perfect drafter at `k`"""
    by_k: Series
    """Acceptance length for k = 1..depth; of lookups, for k = 1..24"""
    cumulative: Series
    """Share of steps whose drafts 1..j were all accepted, by position j; the ceiling at `k`, the
    others at their own K"""
    cumulative_ci95: list[tuple[float, float] | None]
    """95 % intervals of custom's shares; null with too few sessions or no accepted draft"""


class Workload(Part):
    """A public workload, by exact replay of the target's responses."""

    by_k: dict[Literal["base", "custom"], list[float]]
    """Acceptance length for k = 1..depth"""
    ratio: ClusteredEstimate
    """custom / base at the trained depth"""


class Slice(Part):
    """A slice of the held-out traffic, by exact replay."""

    name: str
    """The tenant, route, template, ..., or part of the response"""
    base: ClusteredEstimate
    """Acceptance length of base"""
    custom: ClusteredEstimate
    """Acceptance length of custom"""
    ratio: ClusteredEstimate
    """custom / base"""


class BothTogether(Part):
    """Custom and a lookup in one server, predicted by replay of the held-out responses.

    At each step one of them drafts, by a rule fitted on the validation part. No engine serves this.
    """

    lookup: str
    """Kind of the lookup"""
    k: int
    """Custom's drafted tokens per step"""
    lookup_k: int
    """The lookup's drafted tokens per step"""
    tokens_per_step: ClusteredEstimate
    """Acceptance length of both together"""
    lookup_share: float
    """Share of steps in which the lookup drafts"""
    upper_bound: float
    """Acceptance length if the drafter of each step were the one that saves the most steps"""
    step_ms: dict[Literal["custom", "lookup", "both"], float] | None
    """Milliseconds per step at the main concurrency with custom's drafts, with the lookup's alone,
    and with the lookup's and one pass of custom; null if steps were not timed"""
    over_custom: ClusteredEstimate | None
    """Predicted tokens/s of both together over custom alone; null if steps were not timed"""
    over_lookup: ClusteredEstimate | None
    """The same over the lookup alone"""

    @property
    def over_better(self) -> ClusteredEstimate | None:
        """Predicted tokens/s over the faster of the two alone."""
        if self.over_custom is None or self.over_lookup is None:
            return None
        return min(self.over_custom, self.over_lookup, key=lambda ratio: ratio.value)


class CacheUse(Part):
    """Use of a variant's KV cache in its timed blocks, which begin in production's state."""

    hit_rate: float
    """Share of prompt tokens that were found in the prefix cache, from vLLM's counters"""
    production_hit_rate: float
    """The share that production finds of the same prompts, by replay of the log through a cache of
    this size. With EAGLE and MTP, the last block of each hit is computed again"""
    kv_tokens: int
    """KV cache of one engine, in tokens; the drafter's own layers take some of its memory"""
    preemptions: int
    """Times that a running request lost its KV cache, because others needed the memory"""


class DrafterAcceptance(Part):
    """vLLM's counts for one speculator, pooled over passes."""

    acceptance_length: float
    """Tokens, excluding the first of each response, divided by steps"""
    steps: int
    """Number of steps, with or without drafts"""
    cumulative: list[float]
    """Share of steps whose drafts 1..j were all accepted, by position j"""


class EngineAcceptance(Drafters[DrafterAcceptance]):
    """Acceptance from vLLM's counters, with the customer's sampling settings."""

    model_config = DOCUMENTED

    ratio: ClusteredEstimate
    """custom / base"""


class Block(Part):
    """A variant's timed blocks at one concurrency, pooled."""

    tokens_per_s: float
    """Output tokens of all requests, divided by the blocks' wall time"""
    requests: int
    """Number of requests"""
    ttft_ms: Quantiles
    """Time to first token"""
    tpot_ms: Quantiles
    """Time per output token after the first"""
    itl_ms: Quantiles
    """Time between deliveries, each of one or more tokens"""
    cache: CacheUse | None = None
    """Prefix-cache hits, memory and preemptions; null in the open loop"""


class Reference(Part):
    """Another reference for custom: base at eval.current_k, or `choice.lookup`."""

    block: Block
    """The reference's timed blocks"""
    custom_over: Estimate
    """Custom's tokens/s at its own K, divided by the reference's"""


class SpeedRow(Ratios, Variants[Block]):
    """Each variant's figures and ratios of tokens/s at one concurrency.

    Base and custom each draft at their own K. Ratios are paired within repeats, with Student's t
    intervals. At concurrency 1 variants alternate by request. If base and custom share an engine,
    `clusters` of their ratio then counts pairs of requests.
    """

    model_config = DOCUMENTED

    current: Reference | None = None
    """Base at eval.current_k; null if that is not set or is base's own K"""
    lookup: Reference | None = None
    """`choice.lookup` at its own K; null except at the main concurrency"""
    starts: int | None = None
    """Number of times the engines of base and custom were started; null if they share one. With
    fewer than three starts, their ratio is undecided"""
    none_starts: int | None = None
    """The same for custom and no speculation"""
    lookup_starts: int | None = None
    """The same for custom and lookup"""


class ServedSpeed(Part):
    """Speed in one engine mode."""

    k: Drafters[int]
    """Drafted tokens per step of base and of custom in this mode"""
    speed: dict[str, SpeedRow]
    """Concurrency -> tokens/s and latencies"""
    repeats: int
    """Number of repeats measured"""
    cut: float = 0.0
    """Share of the timed responses that `eval.max_tokens` cut. Ratios with the estimator `replay`
    are of whole responses nevertheless"""
    timed_context: float = 0.0
    """Mean number of tokens before a token of a timed response; steps take longer the more there
    are"""
    whole_context: float = 0.0
    """The same for whole held-out responses, as logged"""


class RateBlock(Block):
    """A variant's timed block at one rate."""

    saturated: bool
    """Whether the server was saturated: it completed requests at less than 90 % of the offered
    rate, and the time to first token at least doubled during the block"""
    request_tokens_per_s: float
    """Summed tokens / summed times from sending each request to its last token"""
    acceptance_length: float
    """1 + accepted tokens / steps with drafts, from vLLM's counters; 1 without drafts"""


class RateRow(Variants[RateBlock]):
    """One scenario at one rate; ratios of request tokens/s, without an interval: of one block."""

    model_config = DOCUMENTED

    custom_over_base: float
    """Custom over base"""
    custom_over_none: float
    """Custom over no speculation"""
    base_over_none: float
    """Base over no speculation"""
    arrivals: Literal["log", "poisson"]
    """`log`: the log's arrival times, scaled; `poisson`: random, because the log has no times"""


class VariantCapacity(Part):
    """A variant's capacity; every rate is measured by one block, so the ends are no interval."""

    within: float | None
    """Highest measured requests/s within the limits; null if none was"""
    beyond: float | None
    """Lowest measured requests/s beyond a limit; null if none was"""
    saturated: float | None
    """Lowest measured requests/s at which the server was saturated; null if none was"""
    tokens_per_s: float | None
    """Output tokens/s of all requests at `within`"""
    blocks: int
    """Number of blocks"""


class Capacity(Variants[VariantCapacity]):
    """Request rates that the variants serve within latency limits."""

    model_config = DOCUMENTED

    ttft_ms: float
    """Limit of the 95th percentile of the time to first token"""
    tpot_ms: float
    """Limit of the 95th percentile of the time per output token"""
    limits_from: str
    """Where the limits come from"""
    per_million_tokens: Variants[float | None] | None = None
    """Price of a million output tokens at `within`; null without eval.cost"""


class Scenario(Part):
    """The requests of a scenario."""

    requests: int
    """Number of held-out requests within the scenario's length ranges"""
    prompt_tokens: Quantiles
    """Lengths of the prompts"""
    response_tokens: Quantiles
    """Lengths of the logged responses"""


class Cost(Part):
    """Cost in one engine mode at one concurrency, in eval.cost's currency."""

    per_million_tokens: Variants[float]
    """Price of a million output tokens"""
    gpu_hours_a_month: Variants[float] | None = None
    """GPU-hours per month at eval.cost.tokens_per_s; null without it"""


class GreedyComparison(Part):
    """Greedy responses compared with those without speculation."""

    responses: int
    """Number of responses compared"""
    near_ties: list[int]
    """Indices of responses whose first difference is a near tie (gate.near_tie_nats)"""
    unexplained: list[int]
    """Indices of responses with any other first difference, such as an earlier end"""

    @property
    def equal(self) -> int:
        """Number of responses that are identical token for token."""
        return self.responses - len(self.near_ties) - len(self.unexplained)


class Excess(Part):
    """Excess of differing responses over the control, near ties included."""

    value: float
    """Share of responses that differ with speculation, minus the control's, on the same prompts"""
    p_value: float
    """P-value under the hypothesis that speculation changes nothing: the smaller of those for all
    differences and for the unexplained ones, doubled because there are two tests"""


class SameText(Part):
    """Permutation test of token frequencies against no speculation."""

    prompts: int
    """Number of prompts"""
    tokens: int
    """Number of tokens, with and without speculation together"""
    p_value: float
    """Share of relabelings whose chi-square distance is at least the observed one"""


class Equivalence(Part):
    """Custom minus none, paired by prompt, for an equivalence test (TOST)."""

    value: float
    """Difference between the shares of solved tasks"""
    low: float
    """Lower bound of the 90 % interval, for two one-sided tests at 5 %"""
    high: float
    """High end of the interval"""
    variance: float
    """Per-response variance of the difference, allowing for correlation within sessions"""
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
    """Difference between custom and no speculation"""
    errors: int = 0
    """Number of responses on which the check raised an error; their prompts are left out"""
    first_error: str | None = None
    """The first of these errors"""


class ReplayAgainstEngine(Drafters[float]):
    """Replayed steps / engine-counted steps - 1, over all responses."""

    model_config = DOCUMENTED

    control: float
    """Relative change in custom's step count when greedy responses are repeated in other batches;
    only identical responses count"""


class EngineFindings(Part):
    """Findings of the verification pass in one engine mode."""

    greedy: Drafters[GreedyComparison]
    """Greedy responses compared with those without speculation"""
    control: GreedyComparison
    """The first greedy responses without speculation, compared with repeats in other batches"""
    excess: Excess
    """Custom's differences beyond the control's"""
    greedy_acceptance_length: Drafters[float | None]
    """1 + accepted tokens / steps with drafts over the greedy responses, from vLLM's counters; null
    without drafts. The export stage compares the value of the served bundle with the evaluated
    speculator's"""
    tail_share: Variants[float]
    """Share of sampled tokens whose probability under the target is below 1e-4"""
    same_text: SameText
    """Token frequencies of custom compared with those without speculation"""
    replay_vs_engine: ReplayAgainstEngine | None
    """Replayed steps compared with counted steps; null if exact replay is not measured"""


class Verification(Part):
    """The verification pass: the same prompts for all variants and engine modes."""

    modes: dict[str, EngineFindings]
    """Engine mode -> its findings"""
    task: Task | None
    """Task accuracy over the responses of all modes; null without eval.task"""
