"""Speed from timed blocks: pooled figures, and paired ratios with intervals.

speeds = SpeedRatios(settings, timed, main=1, replayed=replayed)
blocks = measure(servers, mode="eager", plan=plan, load=load, sampling=sampling, speeds=speeds,
                 say=print)
speeds.summarise(blocks)["4"].custom_over_base
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.eval.bench.prompts import Prompt
from outrider.eval.config import EvalConfig
from outrider.eval.results.parts import (
    CURRENT,
    LOOKUP,
    RATIOS,
    VARIANTS,
    ClusteredEstimate,
    Estimate,
)
from outrider.eval.results.sections import Block, CacheUse, Quantiles, Reference, SpeedRow
from outrider.eval.stats.clusters import clustered
from outrider.eval.stats.intervals import LEVEL
from outrider.eval.stats.sequential import looks_of
from outrider.eval.stats.speed_ratio import (
    Units,
    agree,
    controlled_ratio,
    measured_ratio,
    speed_of,
    widened,
)

START_NOISE = 0.05
"""Assumed standard deviation (log) of speed between starts of an engine; 3 to 10 % is typical. It
is added for both engines when comparing two engines that were each started only once."""

COMPARED = {**RATIOS, "current": ("custom", CURRENT), "lookup": ("custom", LOOKUP)}
"""Name of each ratio -> numerator and denominator."""

Record = Mapping[str, Any]
"""A timed block, as recorded by closed_loop.py and open_loop.py."""


@dataclass(frozen=True)
class ReplayedSteps:
    """Replayed step counts of held-out responses, at each variant's number of drafts."""

    steps: Mapping[str, NDArray[np.float64]]
    """Variant -> steps [R]; variants that exact replay does not cover are absent"""
    sequence_ids: Sequence[str]
    """Ids of the R responses"""
    sessions: Sequence[str]
    users: Sequence[str]

    def ratio(self, over: str, under: str, level: float) -> ClusteredEstimate | None:
        """Acceptance length of `over` over that of `under`, for the same tokens."""
        if not {over, under} <= self.steps.keys():
            return None
        steps_R2 = np.stack([self.steps[over], self.steps[under]], axis=1)
        return clustered(
            sums_NM=steps_R2,
            sessions=self.sessions,
            # Acceptance length is tokens / steps; both answer the same tokens, so the ratio is the
            # inverse ratio of steps.
            statistic=lambda s: s[..., 1] / s[..., 0],
            level=level,
            users=self.users,
        )

    def by_unit(
        self, over: str, under: str, prompts: Sequence[Sequence[str]]
    ) -> NDArray[np.float64]:
        """Log ratios of acceptance length on responses to each unit's prompts.

        If replay covers none of a unit's logged responses (each has only one token), all logged
        responses are used.
        """
        rows = {name: row for row, name in enumerate(self.sequence_ids)}
        logs = []
        for unit in prompts:
            replayed = [rows[name] for name in unit if name in rows] or [*rows.values()]
            under_steps = self.steps[under][replayed].sum()
            over_steps = self.steps[over][replayed].sum()
            logs.append(math.log(under_steps / over_steps))
        return np.array(logs)


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
        return {str(size): self._row(blocks, size) for size in self.settings.concurrency}

    def _row(self, blocks: Sequence[Record], size: int) -> SpeedRow:
        references = {}
        for name, variant in (("current", CURRENT), ("lookup", LOOKUP)):
            measured = _blocks_of(blocks, size, variant)
            if measured:
                ratio = self.ratio(blocks, size, name)
                references[name] = Reference(block=pooled(measured), custom_over=ratio)
        figures = {variant: pooled(_blocks_of(blocks, size, variant)) for variant in VARIANTS}
        ratios = {name: self.ratio(blocks, size, name) for name in RATIOS}
        starts = _starts(paired(blocks, size, "custom", "base"))
        return SpeedRow(**figures, **ratios, **references, starts=starts)

    def ratio(self, blocks: Sequence[Record], concurrency: int, name: str) -> Estimate:
        """One ratio of COMPARED, at the confidence level for this many repeats.

        Uses exact replay's acceptance as a control variate if it agrees with the measurement
        (stats/speed_ratio.py), else the measured ratio.
        """
        over, under = COMPARED[name]
        pairs = paired(blocks, concurrency, over, under)
        level = LEVEL
        if self.settings.measure != "full":
            level = looks_of(self.settings).level(repeats_of(blocks))
        units = units_of(pairs)
        ratio = self._controlled(name, units, pairs, level) or self._measured(units, pairs, level)
        if _starts(pairs) != 1:
            return ratio
        # One start of each engine shows nothing of how speed differs between starts.
        quantile = NormalDist().inv_cdf((1 + level) / 2)
        # sqrt(2): the two engines' starts are independent, and their variances add.
        return widened(ratio, quantile * math.sqrt(2) * START_NOISE)

    def _controlled(
        self, name: str, units: Units, pairs: Sequence[tuple[Record, Record]], level: float
    ) -> Estimate | None:
        """The ratio with replayed acceptance; None if replay is unavailable or disagrees."""
        over, under = COMPARED[name]
        if self.replayed is None:
            return None
        lengths = self.replayed.ratio(over, under, level)
        if lengths is None:
            return None
        controlled = controlled_ratio(units, lengths, level)
        prompts = self._prompts(pairs, len(units.over_U4))
        expected_U = self.replayed.by_unit(over, under, prompts)
        # A disagreement means that replay describes another engine; the measured ratio is valid in
        # any case.
        if controlled is None or not agree(units, expected_U, controlled):
            return None
        return controlled

    def _prompts(self, pairs: Sequence[tuple[Record, Record]], units: int) -> list[list[str]]:
        """Sequence ids of each unit's prompts (unit: request pair or block)."""
        blocks = [[self.prompts[index].sequence_id for index in one["prompts"]] for one, _ in pairs]
        if units == len(blocks) > 1:
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
        by_session = clustered(
            sums_NM=sums_N4, sessions=sessions, statistic=speed_of, level=level, users=users
        )
        # The wider interval is that with the lower end: both are symmetric on the log scale around
        # the same ratio.
        if by_session.low is None or by_session.high is None or by_session.low > by_unit.low:
            return by_unit
        return by_unit.model_copy(
            update={"low": by_session.low, "high": by_session.high, "clusters": by_session.clusters}
        )


def units_of(pairs: Sequence[tuple[Record, Record]]) -> Units:
    """Divides two variants' blocks, paired by repeat, into units.

    Units are pairs of requests if the variants alternated or have one block each, otherwise pairs
    of blocks. If the engines were restarted for every repeat, units are always pairs of blocks, one
    pair per start.
    """
    over = [_charged(block) for block, _ in pairs]
    under = [_charged(block) for _, block in pairs]
    # Only requests that alternated share the machine's noise within a pair.
    by_request = all(block["alternated"] for pair in pairs for block in pair) or len(pairs) == 1
    observations = sum(map(len, over))
    if not by_request or _starts(pairs) not in (None, 1):
        over = [block.sum(axis=0, keepdims=True) for block in over]
        under = [block.sum(axis=0, keepdims=True) for block in under]
    over_prefill = _prefill_share([block for block, _ in pairs])
    under_prefill = _prefill_share([block for _, block in pairs])
    return Units(
        np.concatenate(over),
        np.concatenate(under),
        # b in stats/speed_ratio.py has one value for both variants, so their shares are averaged.
        later=1 - (over_prefill + under_prefill) / 2,
        observations=observations,
    )


def _prefill_share(blocks: Sequence[Record]) -> float:
    """Share of the requests' time that passed before their first token."""
    waited = sum(sum(block["ttft_ms"]) for block in blocks) / 1000
    return waited / sum(sum(block["request_seconds"]) for block in blocks)


def _starts(pairs: Sequence[tuple[Record, Record]]) -> int | None:
    """Number of engine starts per variant; None if both share an engine."""
    if all(over["engine"] == under["engine"] for over, under in pairs):
        return None
    return len({over["start"] for over, _ in pairs})


def pooled(blocks: Sequence[Record]) -> Block:
    """Tokens/s and latencies over all blocks; tokens/s is a ratio of sums."""

    def quantiles(name: str) -> Quantiles:
        values = [np.asarray(block[name], dtype=np.float64) for block in blocks]
        return Quantiles.of(np.concatenate(values))

    charged_N4 = np.concatenate([_charged(block) for block in blocks])
    tokens, seconds, *_ = charged_N4.sum(axis=0)
    return Block(
        tokens_per_s=float(tokens / seconds),
        requests=len(charged_N4),
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


def repeats_of(blocks: Sequence[Record]) -> int:
    """Number of repeats that were measured."""
    return len({block["repeat"] for block in blocks})


def _blocks_of(blocks: Sequence[Record], concurrency: int, variant: str) -> list[Record]:
    return [
        block
        for block in blocks
        if block["concurrency"] == concurrency and block["variant"] == variant
    ]


def paired(
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
    """Per request [N, 4]: tokens, seconds, tokens after the first, their deliveries.

    A delivery is a streamed chunk of one or more tokens.

    Each request counts with its share of `request_shares`. The block's seconds are divided in
    proportion to latencies, so that the sums give the block's tokens/s.
    """
    latency, tokens, deliveries, share = (
        np.asarray(block[f"request_{name}"], dtype=np.float64)
        for name in ("seconds", "tokens", "deliveries", "shares")
    )
    # Requests overlap, so their latencies sum to more than the block's seconds.
    seconds = block["seconds"] * latency / (share * latency).sum()
    return share[:, None] * np.stack([tokens, seconds, tokens - 1, deliveries], axis=1)
