"""Speed and acceptance in the real engine: what is made of timed blocks and of the engine's counters.

blocks = measure(fleet, load, prompts, sampling, evaluation, say=print)     # blocks.py
table = summarise(blocks, evaluation, noise_of({"eager": blocks}))
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outrider.common.errors import OutriderError
from outrider.eval.config import EvalConfig
from outrider.eval.stats.bootstrap import Estimate, bootstrap
from outrider.eval.stats.sequential import level_after
from outrider.eval.stats.speed_ratio import BlockNoise, alternated_ratio, block_noise, speed_ratio

VARIANTS = ("none", "base", "custom")
RATIOS = {
    "custom_over_base": ("custom", "base"),
    "custom_over_none": ("custom", "none"),
    "base_over_none": ("base", "none"),
}
Noise = Mapping[str, BlockNoise | None]
"""Of each of RATIOS."""


@dataclass(frozen=True)
class CountedPass:
    """What the engine counted while the same prompts went through base and custom."""

    prompts: str
    """Passes with the same prompts have the same name here; they are no independent evidence."""
    counters: dict[str, dict[str, Any]]
    """Per variant the fields of `SpeculationCounters`."""


def noise_of(measured: Mapping[str, Sequence[Mapping[str, Any]]]) -> Noise:
    """How much timed blocks differ for no reason but prompts and machine, from the blocks of all engine modes and concurrencies together.
    Alternated blocks differ less: they are left out unless there are no others."""
    kinds = sorted(
        {(mode, block["concurrency"]) for mode, blocks in measured.items() for block in blocks}
    )
    noise = {}
    for name, variants in RATIOS.items():
        apart = [
            (mode, size) for mode, size in kinds if not _alternated(measured[mode], size, *variants)
        ]
        noise[name] = block_noise(
            _pairs(measured[mode], size, *variants) for mode, size in apart or kinds
        )
    return noise


def summarise(
    blocks: Sequence[Mapping[str, Any]], evaluation: EvalConfig, noise: Noise
) -> dict[str, Any]:
    """Per concurrency: each variant's tokens/s and latencies, pooled over the blocks, and the paired ratios with their intervals."""
    speed: dict[str, Any] = {}
    for size in evaluation.concurrency:
        row: dict[str, Any] = {variant: pooled(_own(blocks, size, variant)) for variant in VARIANTS}
        for name in RATIOS:
            row[name] = ratio(blocks, size, name, evaluation, noise).as_dict()
        speed[str(size)] = row
    return speed


def ratio(
    blocks: Sequence[Mapping[str, Any]],
    concurrency: int,
    name: str,
    evaluation: EvalConfig,
    noise: Noise,
) -> Estimate:
    """One of RATIOS, with the interval that is valid after as many repeats as `blocks` has."""
    variants = RATIOS[name]
    pairs = _pairs(blocks, concurrency, *variants)
    level = level_after(len(pairs), evaluation)
    if _alternated(blocks, concurrency, *variants):
        return alternated_ratio(np.concatenate(pairs), level)
    samples, seed = evaluation.bootstrap_samples, evaluation.seed
    return speed_ratio(pairs, noise[name], samples=samples, seed=seed, level=level)


def counted_acceptance(
    passes: Sequence[CountedPass], evaluation: EvalConfig
) -> dict[str, dict[str, Any]]:
    """The engine's own figures for base, custom and their ratio, pooled over passes.

    `acceptance_length` is the counters' form, 1 + accepted / drafts, which includes drafts accepted past the ends of responses. The
    ratio's interval draws groups of passes with the same prompts.
    """
    result: dict[str, dict[str, Any]] = {}
    for variant in ("base", "custom"):
        counters = [one.counters[variant] for one in passes]
        drafts, accepted = (
            sum(c["drafts"] for c in counters),
            sum(c["accepted_tokens"] for c in counters),
        )
        if not drafts:
            raise OutriderError(
                f"the engine counted no draft of the {variant} speculator: were all responses of one token, or did its server start "
                "without speculation? The server's log says which speculator it loaded"
            )
        per_position = np.sum([c["accepted_per_position"] for c in counters], axis=0).tolist()
        result[variant] = {
            "acceptance_length": 1 + accepted / drafts,
            "drafts": drafts,
            "accepted_tokens": accepted,
            "cumulative": [count / drafts for count in per_position],
            "conditional": [
                b / a if a else 0.0 for a, b in itertools.pairwise([drafts, *per_position])
            ],
        }
    sums = [
        [
            one.counters[variant][name]
            for variant in ("base", "custom")
            for name in ("accepted_tokens", "drafts")
        ]
        for one in passes
    ]
    result["ratio"] = bootstrap(
        np.array(sums),
        [one.prompts for one in passes],
        lambda s: (1 + s[..., 2] / s[..., 3]) / (1 + s[..., 0] / s[..., 1]),
        samples=evaluation.bootstrap_samples,
        seed=evaluation.seed,
    ).as_dict()
    return result


def counted_passes(blocks: Sequence[Mapping[str, Any]]) -> list[CountedPass]:
    """The timed blocks as passes: base and custom of one repeat and concurrency belong together."""
    passes: dict[str, CountedPass] = {}
    for block in blocks:
        prompts = f"repeat {block['repeat']}, concurrency {block['concurrency']}"
        if block["variant"] != "none":
            passes.setdefault(prompts, CountedPass(prompts, {})).counters[block["variant"]] = block[
                "counters"
            ]
    return list(passes.values())


def pooled(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Tokens/s, requests/s and latencies of blocks taken together: sums first, one ratio last.

    `itl_ms` is between deliveries, `token_gap_ms` between tokens: those of one delivery come at once, 0 ms apart. `tokens_per_delivery`
    is the mean burst (`RequestResult.tokens_per_delivery`): `value` over all tokens, the percentiles over requests.
    """

    def all_of(name: str) -> np.ndarray:
        return np.concatenate([np.asarray(block[name], dtype=np.float64) for block in blocks])

    tokens, seconds = sum(b["output_tokens"] for b in blocks), sum(b["seconds"] for b in blocks)
    itl_ms, tokens_R, deliveries_R = (
        all_of("itl_ms"),
        all_of("request_tokens"),
        all_of("request_deliveries"),
    )
    later_R = np.maximum(tokens_R - 1, 0)
    at_once = max(int(later_R.sum() - deliveries_R.sum()), 0)
    streamed_R = deliveries_R > 0
    return {
        "tokens_per_s": tokens / seconds,
        "requests_per_s": len(tokens_R) / seconds,
        "output_tokens": tokens,
        "seconds": seconds,
        "requests": len(tokens_R),
        "ttft_ms": _percentiles(all_of("ttft_ms"), 50, 90, 99),
        "tpot_ms": _percentiles(all_of("tpot_ms"), 50, 90, 99),
        "itl_ms": _percentiles(itl_ms, 50, 90, 99),
        "token_gap_ms": _percentiles(np.concatenate([np.zeros(at_once), itl_ms]), 50, 90, 99),
        "tokens_per_delivery": {
            "value": float(later_R.sum() / max(deliveries_R.sum(), 1)),
            **_percentiles(later_R[streamed_R] / deliveries_R[streamed_R], 10, 50, 90),
        },
    }


def _percentiles(values: np.ndarray, *ranks: int) -> dict[str, float]:
    found = np.percentile(values, ranks) if len(values) else np.zeros(len(ranks))
    return {f"p{rank}": float(value) for rank, value in zip(ranks, found, strict=True)}


def _own(
    blocks: Sequence[Mapping[str, Any]], concurrency: int, variant: str
) -> list[Mapping[str, Any]]:
    return [
        block
        for block in blocks
        if block["concurrency"] == concurrency and block["variant"] == variant
    ]


def _alternated(
    blocks: Sequence[Mapping[str, Any]], concurrency: int, over: str, under: str
) -> bool:
    """Whether the two took turns request by request."""
    return all(
        block["alternated"]
        for variant in (over, under)
        for block in _own(blocks, concurrency, variant)
    )


def _pairs(
    blocks: Sequence[Mapping[str, Any]], concurrency: int, over: str, under: str
) -> list[np.ndarray]:
    """Paired by prompt within a repeat, as `speed_ratio` takes them."""
    both = zip(_own(blocks, concurrency, over), _own(blocks, concurrency, under), strict=True)
    return [np.concatenate([_charged(a), _charged(b)], axis=1) for a, b in both]


def _charged(block: Mapping[str, Any]) -> np.ndarray:
    """(tokens, seconds) of each request; the block's wall time is charged to its requests in proportion to how long each took, so
    that the sums give the block's tokens/s."""
    latency = np.asarray(block["request_seconds"], dtype=np.float64)
    return np.stack(
        [np.asarray(block["request_tokens"], float), latency * (block["seconds"] / latency.sum())],
        axis=1,
    )
