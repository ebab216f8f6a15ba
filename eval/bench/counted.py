"""Acceptance from vLLM's counters, for every kind of speculator.

    counted_acceptance(counted_passes(blocks, prompts), speculators, k).ratio

A pass is a timed block, or one prompt of the verification pass, with the answers of both base and
custom. Acceptance length is the number of tokens after each response's first, divided by the number
of steps. N-gram lookup also takes steps without a draft, which vLLM does not count. Every step
delivers its accepted drafts and one more token, so lookup's number of steps is the number of tokens
after each response's first, less the accepted drafts.

The interval is clustered by session, or by user if that is wider, because responses to one prompt
resemble each other. With single turns as clusters, a custom speculator equal to base would be
judged better in 22 % of simulations with 5 sessions, instead of 2.5 % (tests/eval/test_counted.py).
vLLM counts a block as a whole; its steps are divided among responses in proportion to their
deliveries (streamed chunks of one or more tokens).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.common.errors import OutriderError
from outrider.eval.bench.outputs import Outputs
from outrider.eval.bench.prompts import Prompt
from outrider.eval.results.parts import DRAFTERS, Drafter, Drafters
from outrider.eval.results.sections import DrafterAcceptance, EngineAcceptance
from outrider.eval.stats.clusters import clustered_estimate
from outrider.serving.speculator import Speculator


@dataclass(frozen=True)
class CountedPass:
    """vLLM's counters while base and custom answered the same prompts."""

    prompts: Sequence[Prompt]
    """The prompt of each response."""
    counters: Mapping[Drafter, Mapping[str, Any]]
    """The fields of `SpeculationCounters`, summed over all responses."""
    received: Mapping[Drafter, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """Tokens and deliveries of each response; not needed for a single response."""


def counted_passes(
    blocks: Sequence[Mapping[str, Any]], prompts: Sequence[Prompt]
) -> list[CountedPass]:
    """Converts timed blocks of `prompts` to passes, by repeat and concurrency."""
    blocks_of: dict[tuple[int, int], dict[Drafter, Mapping[str, Any]]] = {}
    for block in blocks:
        if block["variant"] in DRAFTERS:
            key = block["repeat"], block["concurrency"]
            blocks_of.setdefault(key, {})[block["variant"]] = block
    return [_counted_pass(by_drafter, prompts) for by_drafter in blocks_of.values()]


def _counted_pass(
    blocks: Mapping[Drafter, Mapping[str, Any]], prompts: Sequence[Prompt]
) -> CountedPass:
    received: dict[Drafter, Sequence[tuple[int, int]]] = {}
    for drafter, block in blocks.items():
        received[drafter] = [
            *zip(block["request_tokens"], block["request_deliveries"], strict=True)
        ]
    return CountedPass(
        prompts=[prompts[index] for index in blocks["base"]["prompts"]],
        counters={drafter: block["counters"] for drafter, block in blocks.items()},
        received=received,
    )


def verification_passes(outputs: Outputs, prompts: Sequence[Prompt]) -> list[CountedPass]:
    """Converts sampled responses of the verification pass to passes, one per prompt."""
    sampled = outputs.sampled
    return [
        CountedPass(
            [prompt], {drafter: asdict(sampled.of(drafter).counted[index]) for drafter in DRAFTERS}
        )
        for index, prompt in enumerate(prompts)
    ]


def counted_acceptance(
    passes: Sequence[CountedPass], speculators: Mapping[Drafter, Speculator], k: Drafters[int]
) -> EngineAcceptance:
    """Pooled acceptance of base and custom, each at its own k."""
    prompts = [prompt for one in passes for prompt in one.prompts]
    sums_R4 = np.concatenate(
        [
            np.hstack([_by_response(one, name, speculators[name]) for name in DRAFTERS])
            for one in passes
        ]
    )
    base_tokens, base_steps, custom_tokens, custom_steps = sums_R4.sum(axis=0)
    return EngineAcceptance(
        base=_pooled(passes=passes, drafter="base", tokens=base_tokens, steps=base_steps, k=k.base),
        custom=_pooled(
            passes=passes, drafter="custom", tokens=custom_tokens, steps=custom_steps, k=k.custom
        ),
        ratio=clustered_estimate(
            sums_R4,
            [prompt.session for prompt in prompts],
            # As a ratio of sums: a mean of per-response ratios would weight short responses like
            # long ones.
            lambda s: (s[..., 2] / s[..., 3]) / (s[..., 0] / s[..., 1]),
            users=[prompt.user for prompt in prompts],
        ),
    )


def _by_response(one: CountedPass, drafter: Drafter, speculator: Speculator) -> NDArray[np.float64]:
    """Divides a pass's tokens and steps among its responses: [R, 2]."""
    counters = one.counters[drafter]
    responses = len(one.prompts)
    tokens = counters["generation_tokens"] - responses
    steps = speculator.steps(counters, responses)
    received_R2 = np.array(one.received.get(drafter, [(2, 1)]), np.float64)
    received_R2[:, 0] -= 1  # the first token comes from the prefill
    sums_2 = received_R2.sum(axis=0)
    # If all responses have one token, none has a step, and all shares are equal.
    even_R2 = np.full_like(received_R2, 1 / responses)
    # The counters are sums over the block's requests. Tokens and deliveries of each response are
    # known, and a delivery is one step unless the server merged some.
    return np.divide(received_R2, sums_2, out=even_R2, where=sums_2 > 0) * (tokens, steps)


def _pooled(
    passes: Sequence[CountedPass], drafter: Drafter, tokens: float, steps: float, k: int
) -> DrafterAcceptance:
    counters = [one.counters[drafter] for one in passes]
    if not steps:
        raise OutriderError(
            f"vLLM counted no draft of the {drafter} speculator: either all responses have one "
            "token, or its server started without speculation; the server's log names the "
            "speculator that it loaded"
        )
    reached = np.zeros(k)
    for of_pass in counters:
        counts = of_pass["accepted_per_position"][:k]
        reached[: len(counts)] += counts
    return DrafterAcceptance(
        acceptance_length=float(tokens / steps),
        steps=round(steps),
        cumulative=(reached / steps).tolist(),
    )
