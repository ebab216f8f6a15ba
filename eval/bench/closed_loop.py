"""Timed closed-loop blocks of none, base and custom, interleaved over the same prompts.

    with open_fleet(target, serving, speculators, k=3, mode="eager", log_dir=logs) as fleet:
        blocks = measure(fleet, load, prompts, sampling, evaluation, say=print)

The speed of a shared machine drifts by more than the differences to be measured, so speeds are
compared only within a repeat: every variant gets the same prompts, in an order that rotates. At one
request at a time, the variants alternate by request (exchanging the drafter's weights takes
milliseconds, changing servers a second), so that the requests of a pair share the machine's noise.

Base at other numbers of drafts (server_pool.EXTRAS) is measured next to base: at eval.current_k,
which the gate reads, in every repeat, at custom's K in every other one.

Repeats end when the verdict on speed is decided, or with the plan: `eval.measure`.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outrider.common.errors import OutriderError
from outrider.eval.bench.alternation import alternation
from outrider.eval.bench.metrics import noise_of, ratio
from outrider.eval.bench.server_pool import Fleet
from outrider.eval.bench.step_times import drafts_of
from outrider.eval.config import EvalConfig
from outrider.eval.results.parts import BASE_RATIOS, SAME_K
from outrider.eval.stats.sequential import decided, looks_of
from outrider.serving.client import Sampling
from outrider.serving.load_generator import WARM_UP_TOKENS
from outrider.serving.vllm_hooks.step_recorder import Drafts, Step

if TYPE_CHECKING:
    from outrider.serving.load_generator import BlockResult, LoadGenerator

Say = Callable[[str], None]
"""Prints a line of progress."""
Record = dict[str, Any]
"""A block as JSON values."""


def measure(
    fleet: Fleet,
    load: "LoadGenerator",
    prompts: Sequence[str],
    sampling: Sampling,
    evaluation: EvalConfig,
    say: Say,
) -> list[Record]:
    """Timed blocks, one per repeat, concurrency and variant.

    `prompts` are rendered text; a record's `prompts` are their indices, and its `alternated` is
    true where variants of one engine alternated by request.

    Requests carry no seed: under speculation the same seed draws other tokens, and seeded requests
    take a slower path through the sampler.
    """
    sampling = replace(sampling, seed=None)
    supply = itertools.cycle(range(len(prompts)))
    blocks: list[Record] = []
    begin = time.monotonic()
    for repeat in range(evaluation.repeats):
        if repeat and evaluation.restarts_before(repeat):
            say("restarting the servers")
            fleet.restart()
        chosen = {
            size: list(itertools.islice(supply, evaluation.block_requests(size)))
            for size in evaluation.concurrency
        }
        for concurrency, variants in turns(fleet, repeat, evaluation.concurrency):
            for variant in variants:
                if variant == variants[0] or fleet.needs_warm_up(variant):
                    warm_up(fleet, variant, load, prompts, sampling, evaluation, say)
            names = ", ".join(variants)
            say(f"repeat {repeat + 1}/{evaluation.repeats}, concurrency {concurrency}, {names}")
            place = {"repeat": repeat, "concurrency": concurrency, "prompts": chosen[concurrency]}
            texts = [prompts[index] for index in chosen[concurrency]]
            timed = _blocks(fleet, load, variants, texts, concurrency, sampling, evaluation, repeat)
            blocks += [{**place, **block} for block in timed]
        if reason := _end(blocks, repeat + 1, time.monotonic() - begin, evaluation):
            say(reason)
            break
    return blocks


def turns(
    fleet: Fleet, repeat: int, concurrencies: Sequence[int]
) -> Iterator[tuple[int, Sequence[str]]]:
    """The blocks of a repeat in order: a concurrency, and the variants that share the block.

    Groups of servers run in reverse order in every other repeat, so that a server that is up stays
    up for the next repeat.
    """
    for group in fleet.groups[:: -1 if repeat % 2 else 1]:
        extras = fleet.extras if "base" in group else ()
        own = [*group, *(each for each in extras if each != SAME_K or repeat % 2 == 0)]
        own.sort(key=lambda variant: ["none", "base", *fleet.extras, "custom"].index(variant))
        for place, concurrency in enumerate(concurrencies):
            blocks = _alternating(fleet, own) if concurrency == 1 else [[each] for each in own]
            first = (repeat + place) % len(blocks)
            for variants in blocks[first:] + blocks[:first]:
                yield concurrency, variants


def _alternating(fleet: Fleet, group: Sequence[str]) -> list[list[str]]:
    """Variants that alternate by request.

    All of them, where base and custom share an engine: in the order a, b, c, c, b, a, a, ... the
    machine changes servers once per request. With more engines only those of one alternate.
    """
    engines = fleet.engines(group)
    return [[*group]] if len(engines) <= 2 else engines


def _end(
    blocks: Sequence[Record], repeats: int, seconds: float, evaluation: EvalConfig
) -> str | None:
    """Why the measurement ends after these repeats; None where another one follows."""
    looks = looks_of(evaluation)
    if evaluation.measure == "full" or repeats < looks.first:
        return None
    main, noise = evaluation.gated_concurrency, noise_of({"": blocks})
    threshold = evaluation.gate.min_speed_ratio
    gated = {"custom / base": "custom_over_base", "custom / base at eval.current_k": "current"}
    measured = {block["variant"] for block in blocks}
    seen = {
        words: ratio(blocks, main, name, evaluation, noise)
        for words, name in gated.items()
        if BASE_RATIOS[name] in measured
    }
    found = ", ".join(
        f"{words} {each.value:.3f} [{each.low:.3f}, {each.high:.3f}]"
        for words, each in seen.items()
    )
    if all(decided(each, threshold) for each in seen.values()):
        return f"decided after {repeats} of at most {looks.last} repeats: {found}"
    if repeats == looks.last:
        return f"undecided after all {repeats} repeats: {found} includes {threshold:g}"
    if evaluation.max_seconds is not None and seconds >= evaluation.max_seconds:
        limit = f"eval.max_seconds = {evaluation.max_seconds:g}"
        return f"undecided after {repeats} repeats at {limit}: {found} includes {threshold:g}"
    return None


def warm_up(
    fleet: Fleet,
    variant: str,
    load: "LoadGenerator",
    prompts: Sequence[str],
    sampling: Sampling,
    evaluation: EvalConfig,
    say: Say,
) -> None:
    """A short block at the highest concurrency, if the variant's server has not served before."""
    url, widest = fleet.server(variant).url, max(evaluation.concurrency)
    if fleet.is_fresh(variant):
        say(f"warm-up {variant}")
        first = list(itertools.islice(itertools.cycle(prompts), widest))
        run_block(url, load, first, widest, sampling, WARM_UP_TOKENS)


def _blocks(
    fleet: Fleet,
    load: "LoadGenerator",
    variants: Sequence[str],
    prompts: Sequence[str],
    concurrency: int,
    sampling: Sampling,
    evaluation: EvalConfig,
    repeat: int,
) -> list[Record]:
    """A block of each variant.

    Several variants alternate by request: a, b, c, c, b, a in one repeat, c, b, a, a, b, c in the
    next. Where loading weights takes long, they alternate by several requests.
    """
    alternated = len(variants) > 1
    ahead, size, place = list(prompts), 1 if alternated else len(prompts), 0
    records: dict[str, list[Record]] = {variant: [] for variant in variants}
    steps: dict[str, list[Step]] = {variant: [] for variant in variants}
    seconds, requests = 0.0, 0
    while ahead:
        texts, ahead = ahead[:size], ahead[size:]
        for variant in variants[:: -1 if (repeat + place) % 2 else 1]:
            url = fleet.server(variant).url
            fleet.new_steps(variant)  # drops steps recorded before this block
            record = run_block(url, load, texts, concurrency, sampling, evaluation.max_tokens)
            records[variant].append(record)
            own = fleet.new_steps(variant)
            _check_drafts(variant, fleet.drafts(variant), own)
            steps[variant] += own
            seconds, requests = seconds + sum(record["request_seconds"]), requests + len(texts)
        place += 1
        size = alternation(fleet.swap_seconds, seconds / requests)
    return [
        {
            "variant": variant,
            "alternated": alternated,
            **joined(records[variant]),
            "drafts": drafts_of(steps[variant]),
        }
        for variant in variants
    ]


def _check_drafts(variant: str, drafts: Drafts | None, steps: Sequence[Step]) -> None:
    """Checks that the engine drafted as many tokens as were set.

    The first step may belong to an earlier block.
    """
    if isinstance(drafts, int) and (made := {step.drafts for step in steps[1:]} - {drafts}):
        raise OutriderError(
            f"timed blocks: {variant} must draft {drafts} tokens per step, but the engine drafted "
            f"{', '.join(map(str, sorted(made)))}: vLLM disables schedules of drafts with data "
            "parallelism; set eval.k, so that base and custom draft the same number"
        )


def run_block(
    url: str,
    load: "LoadGenerator",
    prompts: list[str],
    concurrency: int,
    sampling: Sampling,
    max_tokens: int,
) -> Record:
    """One closed-loop block on the server at `url`."""
    return record_of(load.run_block(url, prompts, concurrency, sampling, max_tokens))


def record_of(block: "BlockResult") -> Record:
    """A block's figures; lists are in the order of its requests."""
    requests = block.requests
    tpot_ms = [request.tpot_ms for request in requests if request.tpot_ms is not None]
    itl_ms = itertools.chain.from_iterable(request.itl_ms for request in requests)
    return {
        "seconds": block.seconds,
        "output_tokens": block.output_tokens,
        "request_tokens": [request.output_tokens for request in requests],
        "request_seconds": [request.latency_s for request in requests],
        "request_deliveries": [len(request.itl_ms) for request in requests],
        "ttft_ms": [round(request.ttft_ms, 3) for request in requests],
        "tpot_ms": [round(value, 3) for value in tpot_ms],
        "itl_ms": [round(value, 3) for value in itl_ms],
        "counters": asdict(block.counters),
    }


def joined(records: Sequence[Mapping[str, Any]]) -> Record:
    """One record of consecutive blocks: lists concatenated, numbers and counters added."""
    whole: Record = {}
    for name, first in records[0].items():
        values = [record[name] for record in records]
        if name == "counters":
            whole[name] = {
                count: np.sum([value[count] for value in values], axis=0).tolist()
                for count in first
            }
        elif isinstance(first, list):
            whole[name] = list(itertools.chain.from_iterable(values))
        else:
            whole[name] = sum(values)
    return whole
