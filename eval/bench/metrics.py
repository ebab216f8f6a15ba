"""Speed from timed blocks: each variant's pooled figures, and paired ratios with intervals.

blocks = measure(fleet, load, prompts, sampling, settings, say=print)     # closed_loop.py
rows = summarise(blocks, settings, noise_of({"eager": blocks}))
rows["4"].custom_over_base
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.eval.config import EvalConfig
from outrider.eval.results.parts import (
    CURRENT,
    CUSTOM_OVER,
    DRAFTERS,
    LOOKUP,
    RATIOS,
    SAME_K,
    VARIANTS,
    Drafters,
    Estimate,
)
from outrider.eval.results.speed import Block, Quantiles, Reference, SpeedRow
from outrider.eval.stats.sequential import level_after
from outrider.eval.stats.speed_ratio import BlockNoise, alternated_ratio, block_noise, speed_ratio

Noise = Mapping[str, BlockNoise | None]
"""By name of RATIOS and CUSTOM_OVER."""

COMPARED = RATIOS | {name: ("custom", base) for name, base in CUSTOM_OVER.items()}
"""Name of each ratio -> numerator and denominator."""

Record = Mapping[str, Any]
"""A timed block as closed_loop.py and open_loop.py record it."""


def noise_of(measured: Mapping[str, Sequence[Record]]) -> Noise:
    """How much equal timed blocks differ, pooled over all engine modes and concurrencies.

    Alternated blocks differ less. They are left out unless there are no others.
    """
    kinds = sorted(
        {(mode, block["concurrency"]) for mode, blocks in measured.items() for block in blocks}
    )
    noise = {}
    for name, variants in COMPARED.items():
        own = [(mode, size) for mode, size in kinds if paired(measured[mode], size, *variants)]
        if not own:
            continue
        apart = [
            (mode, size) for mode, size in own if not _alternated(measured[mode], size, *variants)
        ]
        noise[name] = block_noise(
            paired(measured[mode], size, *variants) for mode, size in apart or own
        )
    if LOOKUP in noise and noise[LOOKUP] is None:
        # One block, where servers take turns; the comparison with none also crosses engines.
        noise[LOOKUP] = noise["custom_over_none"]
    return noise


def same_k_variant(k: Drafters[int], current_k: int | None) -> str:
    """The variant that is base at custom's K."""
    if k.base == k.custom:
        return "base"
    return CURRENT if k.custom == current_k else SAME_K


def summarise(
    blocks: Sequence[Record], settings: EvalConfig, noise: Noise, same_k: str = SAME_K
) -> dict[str, SpeedRow]:
    """By concurrency: each variant's figures, pooled over the blocks, and the ratios.

    `same_k` names the variant that is base at custom's K.
    """
    others = {"same_k": same_k, "current": CURRENT, "lookup": LOOKUP}
    better = _shown_better(blocks, settings, noise)

    def estimate(size: int, name: str) -> Estimate:
        return ratio(blocks, size, name, settings, noise)

    def other(size: int, variant: str) -> Reference | None:
        own = _own(blocks, size, variant)
        if variant == "base" or not own:
            return None
        (name,) = (name for name, each in CUSTOM_OVER.items() if each == variant)
        return Reference(block=pooled(own), custom_over=estimate(size, name))

    return {
        str(size): SpeedRow(
            **{variant: pooled(_own(blocks, size, variant)) for variant in VARIANTS},
            **{name: estimate(size, name) for name in RATIOS},
            **{name: other(size, variant) for name, variant in others.items()},
            better=better[size],
            drafting=_drafting(blocks, size),
        )
        for size in settings.concurrency
    }


def _shown_better(blocks: Sequence[Record], settings: EvalConfig, noise: Noise) -> dict[int, bool]:
    """By concurrency: whether custom is shown to be faster than base.

    The main concurrency is the gate's own claim. The error probability of all others together is
    that of one (Bonferroni).
    """
    main, name, level = settings.main, "custom_over_base", _level(blocks, settings)
    claims = max(len(settings.concurrency) - 1, 1)
    levels = {
        size: level if size == main else 1 - (1 - level) / claims for size in settings.concurrency
    }
    return {
        size: ratio(blocks, size, name, settings, noise, own).low > 1
        for size, own in levels.items()
    }


def _level(blocks: Sequence[Record], settings: EvalConfig) -> float:
    return level_after(repeats_of(blocks), settings)


def _drafting(blocks: Sequence[Record], concurrency: int) -> Drafters[float]:
    """Share of the steps after the prefills that verified drafts."""
    shares = {}
    for drafter in DRAFTERS:
        counters = [block["counters"] for block in _own(blocks, concurrency, drafter)]
        drafts, accepted, tokens = (
            sum(each[name] for each in counters)
            for name in ("drafts", "accepted_tokens", "generation_tokens")
        )
        shares[drafter] = drafts / max(tokens - accepted, drafts, 1)
    return Drafters[float](**shares)


def pooled(blocks: Sequence[Record]) -> Block:
    """Tokens/s and latencies of blocks together: sums first, one ratio last."""

    def all_of(name: str) -> NDArray[np.float64]:
        return np.concatenate([np.asarray(block[name], dtype=np.float64) for block in blocks])

    tokens = sum(block["output_tokens"] for block in blocks)
    seconds = sum(block["seconds"] for block in blocks)
    return Block(
        tokens_per_s=tokens / seconds,
        requests=sum(len(block["request_tokens"]) for block in blocks),
        ttft_ms=quantiles(all_of("ttft_ms")),
        tpot_ms=quantiles(all_of("tpot_ms")),
        itl_ms=quantiles(all_of("itl_ms")),
    )


def ratio(
    blocks: Sequence[Record],
    concurrency: int,
    name: str,
    settings: EvalConfig,
    noise: Noise,
    level: float | None = None,
) -> Estimate:
    """One of COMPARED; by default with the level that is valid after these repeats."""
    variants = COMPARED[name]
    pairs = paired(blocks, concurrency, *variants)
    level = level or _level(blocks, settings)
    if _alternated(blocks, concurrency, *variants):
        return alternated_ratio(np.concatenate(pairs), level)
    return speed_ratio(pairs, noise[name], level=level)


def repeats_of(blocks: Sequence[Record]) -> int:
    """Number of repeats that were measured."""
    return len({block["repeat"] for block in blocks})


def quantiles(values: NDArray[Any]) -> Quantiles:
    """Median, 90th and 99th percentile; zeros where there are no values."""
    p50, p90, p99 = np.percentile(values, [50, 90, 99]).tolist() if len(values) else [0.0] * 3
    return Quantiles(p50=p50, p90=p90, p99=p99)


def _own(blocks: Sequence[Record], concurrency: int, variant: str) -> list[Record]:
    return [
        block
        for block in blocks
        if block["concurrency"] == concurrency and block["variant"] == variant
    ]


def _alternated(blocks: Sequence[Record], concurrency: int, over: str, under: str) -> bool:
    """Whether the two variants alternated by request."""
    both = _own(blocks, concurrency, over) + _own(blocks, concurrency, under)
    return all(block["alternated"] for block in both)


def paired(
    blocks: Sequence[Record], concurrency: int, over: str, under: str
) -> list[NDArray[np.float64]]:
    """Requests paired by prompt within a repeat, in the form of `speed_ratio`.

    Of the repeats in which both were measured.
    """
    numerators, denominators = (
        {block["repeat"]: _charged(block) for block in _own(blocks, concurrency, variant)}
        for variant in (over, under)
    )
    return [
        np.concatenate([numerators[repeat], denominators[repeat]], axis=1)
        for repeat in numerators
        if repeat in denominators
    ]


def _charged(block: Record) -> NDArray[np.float64]:
    """(tokens, seconds) of each request.

    The block's wall time is divided among its requests in proportion to their latencies, so that
    the sums give the block's tokens/s.
    """
    latency = np.asarray(block["request_seconds"], dtype=np.float64)
    tokens = np.asarray(block["request_tokens"], dtype=np.float64)
    return np.stack([tokens, latency * (block["seconds"] / latency.sum())], axis=1)
