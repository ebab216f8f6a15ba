"""Timed closed-loop blocks of none, base and custom on the same prompts.

    plan = {"none": None, "base": 2, "custom": 3}
    blocks = measure_closed_loop(servers, mode="eager", plan=plan, load=load, sampling=sampling,
    speeds=speeds,
                     say=print)

The speed of a shared machine drifts by more than the differences to be measured, so speeds are
compared only within a repeat: the variants take turns, in rotating order, on the same prompts. At
concurrency 1 the variants whose servers are up alternate by request, so that the requests of a pair
share the machine's noise (swapping the drafter's weights takes milliseconds). In the demo, where
suffix lookup and base have two engines, the log ratio of their seconds per step differed between
repeats by 26 % with blocks of five requests, and by 6 % with alternation.

Speed also differs between starts of the same engine, by 3 to 10 %. So variants of two engines are
compared over several starts: custom and no speculation, which has an engine of its own, custom and
lookup, and base and custom if they cannot share one. The servers are started again before a repeat
while such a comparison is open, at most `eval.starts` times; if base and custom have two engines,
before every repeat. Base at eval.current_k uses base's engine. `eval.measure` determines when to
stop.

Before its requests are timed, a variant's prefix cache is emptied, so that it finds nothing of
another variant with the same weights, and brought to production's state (prefix_cache.py).
"""

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from outrider.common.fingerprint import CachedResult
from outrider.eval.bench.metrics import Record, SpeedRatios
from outrider.eval.bench.prefix_cache import ProductionCache
from outrider.eval.bench.prompts import Prompt
from outrider.eval.bench.servers import Servers, Turn
from outrider.eval.config import EvalConfig
from outrider.eval.results.parts import CURRENT, LOOKUP
from outrider.eval.speed_checks import LEAST_STARTS, SUPERIOR, speed_demands
from outrider.eval.stats.sequential import interim_looks
from outrider.serving.client import Sampling, SpeculationCounters
from outrider.serving.load_generator import BlockResult, LoadGenerator
from outrider.serving.vllm_hooks.drafts_file import Drafts

Plan = Mapping[str, Drafts | None]
"""Variant -> drafts per step."""

ORDER = ("none", LOOKUP, "base", CURRENT, "custom")
SHARE_OF_SWAPS = 0.1
"""Maximum share of time spent loading weights."""

NO_COUNTS = SpeculationCounters(
    drafts=0, draft_tokens=0, accepted_tokens=0, accepted_per_position=(), generation_tokens=0
)


def measure_closed_loop(
    servers: Servers,
    *,
    mode: str,
    plan: Plan,
    load: LoadGenerator,
    sampling: Sampling,
    speeds: SpeedRatios,
    say: Callable[[str], None],
    production: ProductionCache | None = None,
    finished: CachedResult | None = None,
) -> list[Record]:
    """Times blocks of `speeds.prompts`, one per repeat, concurrency and variant.

    Blocks of finished repeats are kept in `finished`, from which an interrupted measurement
    continues with newly started engines: speeds are compared within a repeat only.

    Prompts find in the prefix cache what `production` holds of them; without it, nothing.

    In a record, `prompts` holds prompt indices, `engine` is the server's name, `start` counts its
    earlier starts, and `alternated` is true if variants alternated by request.
    """
    evaluation = speeds.settings
    two_engines = servers.name("base") != servers.name("custom")
    blocks: list[Record] = finished.get() if finished is not None and finished.done() else []
    first = 1 + max((block["repeat"] for block in blocks), default=-1)
    start = 1 + max((block["start"] for block in blocks), default=-1)
    if first and _end(blocks, first, speeds) is not None:
        return blocks
    # Consecutive prompts in every repeat, so that all prompts are timed about equally often.
    used = first * sum(map(evaluation.block_requests, evaluation.concurrency))
    supply = itertools.islice(itertools.cycle(range(len(speeds.prompts))), used, None)
    began = time.monotonic()
    for repeat in range(first, evaluation.repeats):
        if repeat > first and (two_engines or open_across_engines(blocks, speeds)):
            servers.stop()
            start += 1
        chosen = {
            size: list(itertools.islice(supply, evaluation.block_requests(size)))
            for size in evaluation.concurrency
        }
        restarted = start == repeat
        ahead = turns_of(
            servers=servers, plan=plan, repeat=repeat, speeds=speeds, restarted=restarted
        )
        servers.prepare(mode, [turn for _, turns in ahead for turn in turns])
        for size, turns in ahead:
            names = ", ".join(variant for variant, _ in turns)
            left = _time_left(evaluation, repeat, first, time.monotonic() - began)
            say(f"repeat {repeat + 1}/{evaluation.repeats}, concurrency {size}, {names}{left}")
            timed = _blocks(
                servers,
                mode=mode,
                load=load,
                turns=turns,
                prompts=[speeds.prompts[index] for index in chosen[size]],
                concurrency=size,
                sampling=sampling,
                max_tokens=evaluation.max_tokens,
                repeat=repeat,
                production=production,
            )
            facts = {
                "repeat": repeat,
                "concurrency": size,
                "prompts": chosen[size],
                "start": start,
            }
            for block in timed:
                blocks.append({**facts, "engine": servers.name(block["variant"]), **block})
        if finished is not None:
            finished.put(blocks)
        reason = _end(blocks, repeat + 1, speeds)
        if reason is not None:
            say(reason)
            break
    return blocks


def open_across_engines(blocks: Sequence[Record], speeds: SpeedRatios) -> bool:
    """Whether another start may decide a comparison of two engines."""
    starts = 1 + max(block["start"] for block in blocks)
    if starts >= speeds.settings.starts or starts < LEAST_STARTS:
        return starts < speeds.settings.starts
    across = [
        demand
        for demand in speed_demands(speeds.summarise(blocks), speeds.main, speeds.settings.gate)
        if demand.starts is not None
    ]
    return any(demand.outcome == "undecided" for demand in across)


def _time_left(evaluation: EvalConfig, repeat: int, first: int, elapsed_s: float) -> str:
    """Ending of a progress line; empty in the first repeat that is measured."""
    if repeat == first:
        return ""
    minutes = elapsed_s / 60 / (repeat - first) * (evaluation.repeats - repeat)
    most = "at most " if evaluation.measure == "until_decided" else ""
    return f", {most}{minutes:.0f} min left"


def turns_of(
    servers: Servers, plan: Plan, repeat: int, speeds: SpeedRatios, restarted: bool
) -> list[tuple[int, list[Turn]]]:
    """Lists the blocks of a repeat: concurrency and variants of each.

    Groups of servers run in reverse order in every other repeat, so a running server stays up for
    the next repeat. Lookup is measured only at the main concurrency; if servers take turns, only in
    repeats that start all of them.
    """
    turns = [(variant, plan[variant]) for variant in ORDER if variant in plan]
    if not restarted and len(servers.groups(turns)) > 1:
        turns = [turn for turn in turns if turn[0] != LOOKUP]
    groups = servers.groups(turns)
    if repeat % 2:
        groups.reverse()
    blocks = []
    for group in groups:
        for position, size in enumerate(speeds.settings.concurrency):
            at_size = [turn for turn in group if turn[0] != LOOKUP or size == speeds.main]
            for variants in _rotated(_alternating(at_size, size), repeat + position):
                blocks.append((size, variants))
    return blocks


def _alternating(turns: list[Turn], size: int) -> list[list[Turn]]:
    """Divides variants whose servers are up into blocks; those of one block alternate by request.

    They do so only at concurrency 1, in one engine or in several.
    """
    if size > 1:
        return [[turn] for turn in turns]
    return [turns] if turns else []


def _rotated(blocks: list[list[Turn]], by: int) -> list[list[Turn]]:
    # Rotation gives every variant every position, so that warm-up and drift do not favour one.
    first = by % max(len(blocks), 1)
    return blocks[first:] + blocks[:first]


def _end(blocks: Sequence[Record], repeats: int, speeds: SpeedRatios) -> str | None:
    """Reason to end the measurement after `repeats` repeats; None to continue."""
    looks = interim_looks(speeds.settings)
    if speeds.settings.measure == "full" or repeats not in looks.repeats:
        return None
    asked = speed_demands(speeds.summarise(blocks), speeds.main, speeds.settings.gate)
    measured = {block["variant"] for block in blocks if block["repeat"] == repeats - 1}
    if LOOKUP not in measured:  # measured only once, so more repeats cannot decide its comparison
        asked = [demand for demand in asked if "lookup" not in demand.versus]
    figures = "; ".join(map(str, asked))
    lost = any(demand.outcome == "failed" for demand in asked if demand.kind == SUPERIOR)
    if lost or all(demand.outcome != "undecided" for demand in asked):
        return f"decided after {repeats} of at most {looks.last} repeats: {figures}"
    if repeats == looks.last:
        return f"undecided after all {repeats} repeats: {figures}"
    return None


def _blocks(
    servers: Servers,
    *,
    mode: str,
    load: LoadGenerator,
    turns: Sequence[Turn],
    prompts: Sequence[Prompt],
    concurrency: int,
    sampling: Sampling,
    max_tokens: int,
    repeat: int,
    production: ProductionCache | None,
) -> list[Record]:
    """Times a block of each variant.

    Several variants alternate by request: a, b, c, c, b, a in one repeat; c, b, a, a, b, c in the
    next. If loading weights is slow, they switch only after several requests.
    """
    alternated = len(turns) > 1
    ahead = list(prompts)
    size = 1 if alternated else len(prompts)
    rounds = 0
    results: dict[str, list[BlockResult]] = {variant: [] for variant, _ in turns}
    seconds = 0.0
    requests = 0
    swap = 0.0
    caches: dict[str, Record] = {}
    expected: Counter[str] = Counter()
    while ahead:
        batch = ahead[:size]
        ahead = ahead[size:]
        # Alternating the order cancels a linear drift of the machine within two rounds.
        for variant, drafts in reversed(turns) if (repeat + rounds) % 2 else turns:
            server = servers.server(mode, variant, drafts)
            swap = max(swap, server.swap_seconds or 0.0)
            if production is not None:
                expected[variant] += production.restore(server, batch)
                caches[variant] = {
                    "kv_tokens": server.kv_cache.tokens,
                    "production_tokens": expected[variant],
                }
            block = load.run_block(
                url=server.url,
                prompts=[prompt.text for prompt in batch],
                concurrency=concurrency,
                sampling=sampling,
                max_tokens=max_tokens,
            )
            results[variant].append(block)
            seconds += sum(request.latency_s for request in block.requests)
            requests += len(batch)
        rounds += 1
        # Alternating after every request would spread the machine's noise most evenly. But each
        # swap loads weights: 0.03 s for nano R1, and for R1's 11.6 GB at least the time to read
        # them, 12 s at 1 GB/s.
        wait = swap * (1 - SHARE_OF_SWAPS) / SHARE_OF_SWAPS
        # A round of `size` requests takes size * seconds / requests; swaps must be at most
        # SHARE_OF_SWAPS of it.
        size = max(math.ceil(wait * requests / seconds), 1)
    return [
        {
            "variant": variant,
            "alternated": alternated,
            **record_of(timed, concurrency),
            "cache": caches.get(variant),
        }
        for variant, timed in results.items()
    ]


def record_of(blocks: Sequence[BlockResult], concurrency: int | None) -> Record:
    """Merges consecutive blocks into one JSON record; lists are in request order.

    `seconds` are those in which `request_shares` of the requests' tokens were delivered: of a
    closed loop, while `concurrency` requests were in flight; of an open loop (None), all.
    """
    shares: list[float] = []
    seconds: list[float] = []
    for block in blocks:
        if concurrency is None:
            shares += [1.0] * len(block.requests)
            seconds.append(block.seconds)
        else:
            steady_shares, steady_seconds = block.steady(concurrency)
            shares += steady_shares
            seconds.append(steady_seconds)
    requests = [request for block in blocks for request in block.requests]
    # A response of one token has no time per output token.
    tpot_ms = [request.tpot_ms for request in requests if request.tpot_ms is not None]
    itl_ms = itertools.chain.from_iterable(request.itl_ms for request in requests)
    counters = sum((block.counters for block in blocks), NO_COUNTS)
    record = {
        "ttft_ms": [round(request.ttft_ms, 3) for request in requests],
        "tpot_ms": [round(value, 3) for value in tpot_ms],
        "itl_ms": [round(value, 3) for value in itl_ms],
        "counters": asdict(counters),
    }
    return record | {
        "seconds": sum(seconds),
        "request_shares": shares,
        "output_tokens": sum(block.output_tokens for block in blocks),
        "request_tokens": [request.output_tokens for request in requests],
        "request_seconds": [request.latency_s for request in requests],
        "request_deliveries": [len(request.itl_ms) for request in requests],
    }
