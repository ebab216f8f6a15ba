"""Speed from timed blocks: pooled figures, and paired ratios with intervals.

speeds = SpeedRatios(settings, timed, main=1, replayed=replayed)
blocks = measure_closed_loop(servers, mode="eager", plan=plan, load=load, sampling=sampling,
speeds=speeds,
                 say=print)
speeds.summarise(blocks)["4"].custom_over_base
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.eval.bench.prompts import Prompt, mean_context
from outrider.eval.config import EvalConfig
from outrider.eval.results.parts import (
    CURRENT,
    LOOKUP,
    RATIOS,
    VARIANTS,
    ClusteredEstimate,
    Estimate,
    Interval,
)
from outrider.eval.results.sections import Block, CacheUse, Quantiles, Reference, SpeedRow
from outrider.eval.stats.clusters import Trend, clustered_estimate, trend_of
from outrider.eval.stats.intervals import LEVEL
from outrider.eval.stats.sequential import interim_looks
from outrider.eval.stats.speed_ratio import (
    AGREEMENT,
    Noise,
    ReplayedLengths,
    Units,
    controlled_ratio,
    lengths_agree,
    measured_ratio,
    pooled_noise,
    remainders,
    served_over_replayed,
    speed_of,
    speeds_agree,
)

COMPARED = {**RATIOS, "current": ("custom", CURRENT), "lookup": ("custom", LOOKUP)}
"""Name of each ratio -> numerator and denominator."""

Record = Mapping[str, Any]
"""A timed block, as recorded by closed_loop.py and open_loop.py."""


@dataclass(frozen=True)
class ReplayedSteps:
    """Replayed step counts of held-out responses, at each variant's number of drafts."""

    steps: Mapping[str, NDArray[np.float64]]
    """Variant -> steps [R] of whole responses; variants that exact replay does not cover are
    absent"""
    sequence_ids: Sequence[str]
    """Ids of the R responses"""
    sessions: Sequence[str]
    users: Sequence[str]
    cut_steps: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """Variant -> steps [R] until timed responses are cut; empty if none is"""
    times: Sequence[float | None] = ()
    """Of the R responses, Unix seconds; empty if unknown"""
    earlier: "ReplayedSteps | None" = None
    """The validation part, which precedes the held-out part: the trend is that of both"""

    def lengths(self, over: str, under: str, level: float) -> ReplayedLengths | None:
        """Acceptance lengths of `over` and `under` for the same tokens; None if not covered."""
        whole = self.ratio(over, under, level)
        if whole is None:
            return None
        cut = self.cut_steps or self.steps
        return ReplayedLengths(
            whole=whole,
            steps=float(self.steps[under].mean()),
            cut=float(cut[under].sum() / cut[over].sum()),
            cut_steps=float(cut[under].mean()),
            trend=self._trend(over, under),
        )

    def ratio(self, over: str, under: str, level: float) -> ClusteredEstimate | None:
        """Acceptance length of `over` over that of `under`, for whole responses."""
        if not {over, under} <= self.steps.keys():
            return None
        return clustered_estimate(
            sums_NM=np.stack([self.steps[over], self.steps[under]], axis=1),
            sessions=self.sessions,
            statistic=_inverse_ratio,
            level=level,
            users=self.users,
        )

    def _trend(self, over: str, under: str) -> Trend | None:
        """Change of the log ratio per held-out span, over validation and held-out time."""
        parts = [self] if self.earlier is None else [self.earlier, self]
        times = [time for part in parts for time in part.times]
        if not self.times or None in times:
            return None
        steps_2 = [np.concatenate([part.steps[name] for part in parts]) for name in (over, under)]
        known = [time for time in self.times if time is not None]
        return trend_of(
            sums_N2=np.stack(steps_2, axis=1),
            times_N=np.array(times, dtype=np.float64),
            sessions=[session for part in parts for session in part.sessions],
            statistic=_inverse_ratio,
            span=max(known) - min(known),
        )

    def by_row(
        self, over: str, under: str, prompts: Sequence[Sequence[str]]
    ) -> NDArray[np.float64]:
        """Log ratios of acceptance length on responses to each row's prompts, cut as served.

        If replay covers none of a row's logged responses (each has only one token), all logged
        responses are used.
        """
        cut = self.cut_steps or self.steps
        rows = {name: number for number, name in enumerate(self.sequence_ids)}
        logs = []
        for row in prompts:
            replayed = [rows[name] for name in row if name in rows] or [*rows.values()]
            under_steps = cut[under][replayed].sum()
            over_steps = cut[over][replayed].sum()
            logs.append(math.log(under_steps / over_steps))
        return np.array(logs)


def _inverse_ratio(sums: NDArray[np.float64]) -> Any:
    # Acceptance length is tokens / steps; both variants answer the same tokens, so the ratio of
    # lengths is the inverse ratio of steps.
    return sums[..., 1] / sums[..., 0]


@dataclass(frozen=True)
class _Compared:
    """Two variants, by concurrency."""

    pairs: Mapping[int, Sequence[tuple[Record, Record]]]
    units: Mapping[int, Units]
    level: float
    """Confidence level of the look"""
    lengths: ReplayedLengths | None
    """None without exact replay"""
    served: Interval | None
    """Acceptance length as served over the replayed one; None without exact replay"""

    def noise(self, concurrency: int) -> Noise | None:
        """Noise of blocks or starts, pooled over the concurrencies with the same units.

        None if the units are pairs of requests, which are many.
        """
        if self.units[concurrency].trimmed:
            return None
        remainders_by_size = {}
        for size, units in self.units.items():
            if not units.trimmed:
                share = _prefill_share([block for pair in self.pairs[size] for block in pair])
                remainders_by_size[size] = remainders(units, 1 - share)
        count = len(remainders_by_size[concurrency])
        return pooled_noise(
            np.stack([one_U for one_U in remainders_by_size.values() if len(one_U) == count])
        )


@dataclass(frozen=True)
class SpeedRatios:
    """Compares the variants' speeds in one engine mode."""

    settings: EvalConfig
    prompts: Sequence[Prompt]
    """The timed prompts"""
    main: int
    """Concurrency at which custom must be faster than base"""
    replayed: ReplayedSteps | None = None

    def summarise(self, blocks: Sequence[Record]) -> dict[str, SpeedRow]:
        """Summarizes blocks by concurrency: each variant's pooled figures, and the ratios."""
        compared = {name: self._compared(blocks, name) for name in COMPARED}
        return {str(size): self._row(blocks, size, compared) for size in self.settings.concurrency}

    def ratio(self, blocks: Sequence[Record], concurrency: int, name: str) -> Estimate:
        """One ratio of COMPARED, at the confidence level for this many repeats.

        With exact replay, that of whole responses (stats/speed_ratio.py), which `agrees` with the
        measured one or not; else the measured ratio.
        """
        return self._ratio(self._compared(blocks, name), concurrency)

    def _row(
        self, blocks: Sequence[Record], size: int, compared: Mapping[str, "_Compared"]
    ) -> SpeedRow:
        references = {}
        for name, variant in (("current", CURRENT), ("lookup", LOOKUP)):
            measured = _blocks_of(blocks, size, variant)
            if measured:
                ratio = self._ratio(compared[name], size)
                references[name] = Reference(block=pool_blocks(measured), custom_over=ratio)
        figures = {variant: pool_blocks(_blocks_of(blocks, size, variant)) for variant in VARIANTS}
        ratios = {name: self._ratio(compared[name], size) for name in RATIOS}
        starts = {
            name: starts_of(compared[name].pairs.get(size, []))
            for name in ("custom_over_base", "custom_over_none", "lookup")
        }
        return SpeedRow(
            **figures,
            **ratios,
            **references,
            starts=starts["custom_over_base"],
            none_starts=starts["custom_over_none"],
            lookup_starts=starts["lookup"],
        )

    def _compared(self, blocks: Sequence[Record], name: str) -> "_Compared":
        """Two variants' blocks at all concurrencies, and what replay says of them."""
        over, under = COMPARED[name]
        every = {size: pair_blocks(blocks, size, over, under) for size in self.settings.concurrency}
        pairs = {size: of_size for size, of_size in every.items() if of_size}
        level = LEVEL
        if self.settings.measure != "full":
            level = interim_looks(self.settings).level(repeats_of(blocks))
        # The replayed responses are the same at every look, so only the machine's noise needs the
        # look's level.
        lengths = self.replayed.lengths(over, under, LEVEL) if self.replayed else None
        units = {size: units_of(of_size) for size, of_size in pairs.items()}
        served = None
        # A lookup that is replayed may not be served.
        if pairs and self.replayed is not None and lengths is not None:
            prompts = [self._prompts(of_size) for of_size in pairs.values()]
            expected = [self.replayed.by_row(over, under, names) for names in prompts]
            served = served_over_replayed([*units.values()], expected, prompts)
        return _Compared(pairs=pairs, units=units, level=level, lengths=lengths, served=served)

    def _ratio(self, compared: "_Compared", concurrency: int) -> Estimate:
        units = compared.units[concurrency]
        controlled = None
        if compared.lengths is not None:
            noise = compared.noise(concurrency)
            controlled = controlled_ratio(units, compared.lengths, compared.level, noise)
        if controlled is None:
            return self._measured(units, compared.pairs[concurrency], compared.level)
        assert controlled.expected is not None
        agrees = lengths_agree(compared.served) and speeds_agree(
            measured_ratio(units, AGREEMENT), controlled.expected, compared.served
        )
        served = measured_ratio(units)
        return controlled.model_copy(
            update={
                "measured": Interval(value=served.value, low=served.low, high=served.high),
                "lengths": compared.served,
                "agrees": agrees,
            }
        )

    def _prompts(self, pairs: Sequence[tuple[Record, Record]]) -> list[list[str]]:
        """Sequence ids of each row's prompts."""
        blocks = [[self.prompts[index].sequence_id for index in one["prompts"]] for one, _ in pairs]
        if not compares_requests(pairs):
            return blocks
        return [[name] for block in blocks for name in block]

    def _measured(
        self, units: Units, pairs: Sequence[tuple[Record, Record]], level: float
    ) -> Estimate:
        """The wider of two intervals: over units, and over sessions or users.

        Units are not independent: the same sessions and users occur in several of them.
        """
        by_unit = measured_ratio(units, level)
        sums_N4 = np.concatenate(
            [np.concatenate([_charged(block)[:, :2] for block in pair], axis=1) for pair in pairs]
        )
        prompts = [self.prompts[index] for pair in pairs for index in pair[0]["prompts"]]
        sessions = [prompt.session for prompt in prompts]
        users = [prompt.user for prompt in prompts]
        by_session = clustered_estimate(
            sums_NM=sums_N4, sessions=sessions, statistic=speed_of, level=level, users=users
        )
        # The wider interval is that with the lower end: both are symmetric on the log scale around
        # the same ratio.
        if by_session.low is None or by_session.high is None or by_session.low > by_unit.low:
            return by_unit
        return by_unit.model_copy(
            update={"low": by_session.low, "high": by_session.high, "clusters": by_session.clusters}
        )


def compares_requests(pairs: Sequence[tuple[Record, Record]]) -> bool:
    """Whether pairs of requests are compared: if variants alternated or have one block each.

    Only requests that alternated share the machine's noise within a pair.
    """
    return all(block["alternated"] for pair in pairs for block in pair) or len(pairs) == 1


def units_of(pairs: Sequence[tuple[Record, Record]]) -> Units:
    """Divides two variants' blocks, paired by repeat, into rows and units.

    Rows are pairs of requests or of blocks (`compares_requests`). If the variants run in two
    engines that were restarted, units are starts.
    """
    over = [_charged(block) for block, _ in pairs]
    under = [_charged(block) for _, block in pairs]
    starts = [block["start"] for block, _ in pairs]
    observations = sum(map(len, over))
    if compares_requests(pairs):
        starts = [start for start, rows in zip(starts, over, strict=True) for _ in rows]
    else:
        over = [block.sum(axis=0, keepdims=True) for block in over]
        under = [block.sum(axis=0, keepdims=True) for block in under]
    restarted = (starts_of(pairs) or 0) > 1
    return Units(
        np.concatenate(over),
        np.concatenate(under),
        observations=observations,
        starts_N=np.array(starts) if restarted else None,
    )


def _prefill_share(blocks: Sequence[Record]) -> float:
    """Share of the requests' time that passed before their first token."""
    waited = sum(sum(block["ttft_ms"]) for block in blocks) / 1000
    return waited / sum(sum(block["request_seconds"]) for block in blocks)


def starts_of(pairs: Sequence[tuple[Record, Record]]) -> int | None:
    """Number of engine starts per variant; None if both share an engine."""
    if all(over["engine"] == under["engine"] for over, under in pairs):
        return None
    return len({over["start"] for over, _ in pairs})


def pool_blocks(blocks: Sequence[Record]) -> Block:
    """Tokens/s and latencies over all blocks; tokens/s is a ratio of sums."""

    def quantiles(name: str) -> Quantiles:
        values = [np.asarray(block[name], dtype=np.float64) for block in blocks]
        return Quantiles.of(np.concatenate(values))

    charged_N6 = np.concatenate([_charged(block) for block in blocks])
    tokens, seconds, *_ = charged_N6.sum(axis=0)
    return Block(
        tokens_per_s=float(tokens / seconds),
        requests=len(charged_N6),
        ttft_ms=quantiles("ttft_ms"),
        tpot_ms=quantiles("tpot_ms"),
        itl_ms=quantiles("itl_ms"),
        cache=_cache_of(blocks),
    )


def _cache_of(blocks: Sequence[Record]) -> CacheUse | None:
    """Use of the KV cache over all blocks; None unless it had production's state."""
    caches = [block["cache"] for block in blocks if block.get("cache")]
    if len(caches) < len(blocks):
        return None
    counters = [block["counters"] for block in blocks]
    prompt_tokens = max(sum(counts["queried_tokens"] for counts in counters), 1)
    return CacheUse(
        hit_rate=sum(counts["cached_tokens"] for counts in counters) / prompt_tokens,
        production_hit_rate=sum(cache["production_tokens"] for cache in caches) / prompt_tokens,
        kv_tokens=min(cache["kv_tokens"] for cache in caches),
        preemptions=sum(counts["preemptions"] for counts in counters),
    )


def cut_share(blocks: Sequence[Record], max_tokens: int) -> float:
    """Share of the responses that have `max_tokens` tokens, so that their end was cut."""
    lengths = [length for block in blocks for length in block["request_tokens"]]
    return sum(length >= max_tokens for length in lengths) / len(lengths)


def timed_context(blocks: Sequence[Record], prompts: Sequence[Prompt]) -> float:
    """Mean number of tokens before a token of the timed responses."""
    prompt_tokens = [len(prompts[index].token_ids) for one in blocks for index in one["prompts"]]
    response_tokens = [length for one in blocks for length in one["request_tokens"]]
    return mean_context(prompt_tokens, response_tokens)


def repeats_of(blocks: Sequence[Record]) -> int:
    """Number of repeats that were measured."""
    return len({block["repeat"] for block in blocks})


def _blocks_of(blocks: Sequence[Record], concurrency: int, variant: str) -> list[Record]:
    return [
        block
        for block in blocks
        if block["concurrency"] == concurrency and block["variant"] == variant
    ]


def pair_blocks(
    blocks: Sequence[Record], concurrency: int, over: str, under: str
) -> list[tuple[Record, Record]]:
    """Pairs the two variants' blocks of each repeat (same prompts)."""
    overs = _blocks_of(blocks, concurrency, over)
    unders = _blocks_of(blocks, concurrency, under)
    return [
        (over_block, under_block)
        for over_block in overs
        for under_block in unders
        if over_block["repeat"] == under_block["repeat"]
    ]


def _charged(block: Record) -> NDArray[np.float64]:
    """The sums of speed_ratio.SUMS per request, [N, 6].

    A delivery is a streamed chunk of one or more tokens.

    Each request counts with its share of `request_shares`. The block's seconds are divided in
    proportion to latencies, so that the sums give the block's tokens/s.
    """
    latency, tokens, deliveries, share = (
        np.asarray(block[f"request_{name}"], dtype=np.float64)
        for name in ("seconds", "tokens", "deliveries", "shares")
    )
    # Requests overlap, so their latencies sum to more than the block's seconds.
    factor = block["seconds"] / (share * latency).sum()
    first = factor * np.asarray(block["ttft_ms"], dtype=np.float64) / 1000
    columns = [tokens, factor * latency, tokens - 1, deliveries, first, np.ones(len(tokens))]
    return share[:, None] * np.stack(columns, axis=1)
