"""Timed blocks: none, base and custom with the same flags, asked the same prompts in turn.

A shared machine's speed drifts by more than what is to be measured, so speeds are compared only within a repeat: the same prompts
go to each variant in turn, in an order that rotates. Where one request at a time is asked, base and custom take turns request by request
(exchanging the drafter's weights takes milliseconds), so that each pair of requests meets the machine in nearly the same mood.

    with open_fleet(target, serving, speculators, k=3, mode="eager", log_dir=logs) as fleet:
        blocks = measure(fleet, load, prompts, sampling, evaluation, say=print)
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outrider.eval.bench.server_pool import Fleet
from outrider.eval.config import EvalConfig
from outrider.serving.client import Sampling
from outrider.serving.load_generator import WARM_UP_TOKENS
from outrider.serving.step_times import tally
from outrider.serving.vllm_hooks.step_recorder import Step

if TYPE_CHECKING:
    from outrider.serving.load_generator import BlockResult, LoadGenerator


def measure(
    fleet: Fleet,
    load: "LoadGenerator",
    prompts: Sequence[str],
    sampling: Sampling,
    evaluation: EvalConfig,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """The timed blocks, as plain records: one a repeat, concurrency and variant. `prompts` are rendered text; `say` hears of each block.
    `alternated`: variants of one engine took turns request by request.

    Requests carry no seed of their own: under speculation the same seed draws other tokens anyway, and seeded requests
    take a slower path through the sampler.
    """
    sampling = replace(sampling, seed=None)
    supply = itertools.cycle(prompts)
    blocks = []
    for repeat in range(evaluation.repeats):
        if repeat and evaluation.starts_anew(repeat):
            say("servers started anew")
            fleet.restart()
        chosen = {
            n: list(itertools.islice(supply, evaluation.block_requests(n)))
            for n in evaluation.concurrency
        }
        for group in fleet.groups[
            :: -1 if repeat % 2 else 1
        ]:  # a server that is up stays for the next repeat
            for nth, concurrency in enumerate(evaluation.concurrency):
                taking_turns = (
                    fleet.engines(group) if concurrency == 1 else [[variant] for variant in group]
                )
                turn = (repeat + nth) % len(taking_turns)
                for variants in taking_turns[turn:] + taking_turns[:turn]:
                    warm_up(fleet, variants[0], load, prompts, sampling, evaluation, say)
                    say(
                        f"repeat {repeat + 1}/{evaluation.repeats}, concurrency {concurrency}, {', '.join(variants)}"
                    )
                    own = _blocks(
                        fleet,
                        load,
                        variants,
                        chosen[concurrency],
                        concurrency,
                        sampling,
                        evaluation,
                        repeat,
                    )
                    blocks += [
                        {"repeat": repeat, "concurrency": concurrency, **block} for block in own
                    ]
    return blocks


def warm_up(
    fleet: Fleet,
    variant: str,
    load: "LoadGenerator",
    prompts: Sequence[str],
    sampling: Sampling,
    evaluation: EvalConfig,
    say: Callable[[str], None],
) -> str:
    """The address of the variant's server, which has answered as many requests at once as will ever be asked of it."""
    url, widest = fleet.server(variant).url, max(evaluation.concurrency)
    if fleet.is_fresh(variant):
        say(f"warm-up {variant}")
        first = list(itertools.islice(itertools.cycle(prompts), widest))
        run_block(url, load, first, widest, sampling, WARM_UP_TOKENS)
    return url


def _blocks(
    fleet: Fleet,
    load: "LoadGenerator",
    variants: Sequence[str],
    prompts: Sequence[str],
    concurrency: int,
    sampling: Sampling,
    evaluation: EvalConfig,
    repeat: int,
) -> list[dict[str, Any]]:
    """A block of each variant. Several take turns request by request: a, b, b, a, ... in one repeat, b, a, a, b, ... in the next."""
    alternated = len(variants) > 1
    records: dict[str, list[dict[str, Any]]] = {variant: [] for variant in variants}
    steps: dict[str, list[Step]] = {variant: [] for variant in variants}
    for nth, asked in enumerate(
        [[prompt] for prompt in prompts] if alternated else [list(prompts)]
    ):
        for variant in variants[:: -1 if (repeat + nth) % 2 else 1]:
            url = fleet.server(variant).url
            fleet.new_steps(variant)  # what is not this block's
            records[variant].append(
                run_block(url, load, asked, concurrency, sampling, evaluation.max_tokens)
            )
            steps[variant] += fleet.new_steps(variant)
    return [
        {
            "variant": variant,
            "alternated": alternated,
            **joined(records[variant]),
            "steps": tally(steps[variant]),
        }
        for variant in variants
    ]


def run_block(
    url: str,
    load: "LoadGenerator",
    prompts: list[str],
    concurrency: int,
    sampling: Sampling,
    max_tokens: int,
) -> dict[str, Any]:
    """One closed-loop block on the server at `url`, as a plain record."""
    return record_of(load.run_block(url, prompts, concurrency, sampling, max_tokens))


def record_of(block: "BlockResult") -> dict[str, Any]:
    """A block as a plain record; lists are in the requests' order."""
    return {
        "seconds": block.seconds,
        "output_tokens": block.output_tokens,
        "request_tokens": [request.output_tokens for request in block.requests],
        "request_seconds": [request.latency_s for request in block.requests],
        "request_deliveries": [len(request.itl_ms) for request in block.requests],
        "ttft_ms": [round(request.ttft_ms, 3) for request in block.requests],
        "tpot_ms": [
            round(request.tpot_ms, 3) for request in block.requests if request.tpot_ms is not None
        ],
        "itl_ms": [round(itl, 3) for request in block.requests for itl in request.itl_ms],
        "counters": asdict(block.counters),
    }


def joined(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Records of blocks asked one after the other as the record of one."""
    record: dict[str, Any] = {}
    for name, first in records[0].items():
        values = [each[name] for each in records]
        if name == "counters":
            record[name] = {
                count: np.sum([each[count] for each in values], axis=0).tolist() for count in first
            }
        else:
            record[name] = (
                [item for each in values for item in each]
                if isinstance(first, list)
                else sum(values)
            )
    return record
