"""Speed in the real engine: none, base and custom with the same flags, measured in short interleaved blocks.

A shared machine's speed drifts by more than what is to be measured, so speeds are compared only within a repeat: the same prompts
go to each variant in turn, in an order that rotates.

    with open_fleet(target, serving, speculators, k=3, mode="eager", log_dir=logs) as fleet:
        blocks = measure(fleet, load, prompts, sampling, evaluation, say=print)
        table = summarise(blocks, evaluation)
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outrider.eval.config import EvalConfig
from outrider.eval.fleet import Fleet
from outrider.eval.statistics import bootstrap, two_level_bootstrap
from outrider.serving.client import Sampling
from outrider.speculators.errors import OutriderError

if TYPE_CHECKING:
    from outrider.serving.load import LoadGenerator

VARIANTS = ("none", "base", "custom")
WARM_UP_TOKENS = 32


@dataclass(frozen=True)
class CountedPass:
    """What the engine counted while the same prompts went through base and custom."""

    prompts: str
    """Passes with the same prompts have the same name here; they are no independent evidence."""
    counters: dict[str, dict[str, Any]]
    """Per variant the fields of `SpeculationCounters`."""


def measure(
    fleet: Fleet,
    load: "LoadGenerator",
    prompts: Sequence[str],
    sampling: Sampling,
    evaluation: EvalConfig,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """The timed blocks, as plain records: one a repeat, concurrency and variant. `prompts` are rendered text; `say` hears of each block.

    Requests carry no seed of their own: under speculation the same seed draws other tokens anyway, and seeded requests
    take a slower path through the sampler.
    """
    sampling = replace(sampling, seed=None)
    widest = max(evaluation.concurrency)
    warm_up = list(itertools.islice(itertools.cycle(prompts), widest))
    supply = itertools.cycle(prompts)
    blocks = []
    for repeat in range(evaluation.repeats):
        chosen = {n: list(itertools.islice(supply, evaluation.block_requests(n))) for n in evaluation.concurrency}
        for group in fleet.groups[:: -1 if repeat % 2 else 1]:  # a server that is up stays for the next repeat
            for place, concurrency in enumerate(evaluation.concurrency):
                turn = (repeat + place) % len(group)
                for variant in group[turn:] + group[:turn]:
                    server = fleet.server(variant)
                    if fleet.is_fresh(variant):
                        say(f"warm-up {variant}")
                        run_block(server.url, load, warm_up, widest, sampling, WARM_UP_TOKENS)
                    say(f"repeat {repeat + 1}/{evaluation.repeats}, concurrency {concurrency}, {variant}")
                    record = run_block(
                        server.url, load, chosen[concurrency], concurrency, sampling, evaluation.max_tokens
                    )
                    blocks.append({"repeat": repeat, "concurrency": concurrency, "variant": variant, **record})
    return blocks


def summarise(blocks: Sequence[Mapping[str, Any]], evaluation: EvalConfig) -> dict[str, Any]:
    """Per concurrency: each variant's tokens/s and latencies, pooled over the blocks, and the paired ratios with their intervals."""
    speed: dict[str, Any] = {}
    for concurrency in evaluation.concurrency:
        own = {v: [b for b in blocks if b["concurrency"] == concurrency and b["variant"] == v] for v in VARIANTS}
        row: dict[str, Any] = {variant: pooled(own[variant]) for variant in VARIANTS}
        for over, under in (("custom", "base"), ("custom", "none"), ("base", "none")):
            row[f"{over}_over_{under}"] = _speed_ratio(own[over], own[under], evaluation)
        speed[str(concurrency)] = row
    return speed


def counted_acceptance(passes: Sequence[CountedPass], evaluation: EvalConfig) -> dict[str, dict[str, Any]]:
    """The engine's own figures for base, custom and their ratio, pooled over passes.

    `acceptance_length` is the counters' form, 1 + accepted / drafts, which includes drafts accepted past the ends of responses. The
    ratio's interval draws groups of passes with the same prompts.
    """
    result: dict[str, dict[str, Any]] = {}
    for variant in ("base", "custom"):
        counters = [one.counters[variant] for one in passes]
        drafts, accepted = sum(c["drafts"] for c in counters), sum(c["accepted_tokens"] for c in counters)
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
            "conditional": [b / a if a else 0.0 for a, b in itertools.pairwise([drafts, *per_position])],
        }
    sums = [
        [one.counters[variant][name] for variant in ("base", "custom") for name in ("accepted_tokens", "drafts")]
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
            passes.setdefault(prompts, CountedPass(prompts, {})).counters[block["variant"]] = block["counters"]
    return list(passes.values())


def run_block(
    url: str, load: "LoadGenerator", prompts: list[str], concurrency: int, sampling: Sampling, max_tokens: int
) -> dict[str, Any]:
    """One closed-loop block on the server at `url`, as a plain record."""
    block = load.run_block(url, prompts, concurrency, sampling, max_tokens)
    return {
        "seconds": block.seconds,
        "output_tokens": block.output_tokens,
        "request_tokens": [request.output_tokens for request in block.requests],
        "request_seconds": [(request.ttft_ms + sum(request.itl_ms)) / 1000 for request in block.requests],
        "ttft_ms": [round(request.ttft_ms, 3) for request in block.requests],
        "tpot_ms": [round(request.tpot_ms, 3) for request in block.requests if request.tpot_ms is not None],
        "itl_ms": [round(itl, 3) for request in block.requests for itl in request.itl_ms],
        "counters": asdict(block.counters),
    }


def pooled(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Tokens/s and latencies of blocks taken together: sums first, one ratio last."""

    def milliseconds(name: str) -> dict[str, float]:
        values = np.concatenate([np.asarray(block[name], dtype=np.float64) for block in blocks])
        p50, p99 = np.quantile(values, [0.5, 0.99]) if len(values) else (0.0, 0.0)
        return {"p50": float(p50), "p99": float(p99)}

    tokens, seconds = sum(b["output_tokens"] for b in blocks), sum(b["seconds"] for b in blocks)
    return {
        "tokens_per_s": tokens / seconds,
        "output_tokens": tokens,
        "seconds": seconds,
        "requests": sum(len(b["request_tokens"]) for b in blocks),
        "ttft_ms": milliseconds("ttft_ms"),
        "tpot_ms": milliseconds("tpot_ms"),
        "itl_ms": milliseconds("itl_ms"),
    }


def _speed_ratio(
    over: Sequence[Mapping[str, Any]], under: Sequence[Mapping[str, Any]], evaluation: EvalConfig
) -> dict[str, Any]:
    """Ratio of tokens/s, paired by prompt within a repeat; draws repeats, and prompts within each."""
    pairs = [np.concatenate([_charged(a), _charged(b)], axis=1) for a, b in zip(over, under, strict=True)]
    return two_level_bootstrap(
        pairs,
        lambda s: (s[..., 0] / s[..., 1]) / (s[..., 2] / s[..., 3]),
        samples=evaluation.bootstrap_samples,
        seed=evaluation.seed,
    ).as_dict()


def _charged(block: Mapping[str, Any]) -> np.ndarray:
    """(tokens, seconds) of each request; the block's wall time is charged to its requests in proportion to how long each took, so
    that the sums give the block's tokens/s."""
    latency = np.asarray(block["request_seconds"], dtype=np.float64)
    return np.stack([np.asarray(block["request_tokens"], float), latency * (block["seconds"] / latency.sum())], axis=1)
