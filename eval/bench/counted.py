"""Acceptance from vLLM's counters, for every kind of speculator.

    counted_acceptance(counted_passes(blocks), speculators, k=3).ratio

A pass is base and custom answering the same prompts: a timed block, or one prompt of the
verification pass. For speculators with an unroll the acceptance
length is the counters' form, 1 + accepted / drafts, which includes drafts accepted past the ends of
responses. For other kinds it is the delivered form, (tokens - responses) / steps: n-gram lookup
makes steps without a draft, which vLLM does not count and which deliver one token each, so its
steps are tokens minus accepted drafts.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from outrider.common.errors import OutriderError
from outrider.eval.bench.prompts import Prompt
from outrider.eval.lossless.outputs import Outputs
from outrider.eval.results.acceptance import Counted, CountedDrafter
from outrider.eval.results.parts import DRAFTERS, ClusteredEstimate, Drafter, Drafters
from outrider.eval.stats.clusters import clustered
from outrider.serving.speculator import Speculator

Counters = Mapping[str, Any]
"""The fields of `SpeculationCounters`."""


@dataclass(frozen=True)
class CountedPass:
    """What vLLM counted while base and custom answered the same prompts."""

    prompts: str
    """Passes with the same prompts have the same name; they are not independent."""
    responses: int
    """Number of responses of each variant."""
    counters: dict[Drafter, Counters] = field(default_factory=dict)


def counted_passes(blocks: Sequence[Mapping[str, Any]], base: str = "base") -> list[CountedPass]:
    """The timed blocks as passes, one per repeat and concurrency, or per turn of both variants.

    `base` names base's blocks, which may be those at another number of drafts. Those are measured
    in every other repeat: without turns, two repeats would leave one pass of them.
    """
    names: dict[str, Drafter] = {base: "base", "custom": "custom"}
    found: dict[str, dict[Drafter, Mapping[str, Any]]] = {}
    for block in blocks:
        if block["variant"] in names:
            prompts = f"repeat {block['repeat']}, concurrency {block['concurrency']}"
            found.setdefault(prompts, {})[names[block["variant"]]] = block
    passes = []
    for prompts, both in found.items():
        if len(both) < len(DRAFTERS):
            continue
        turns = [both[drafter].get("turns", []) for drafter in DRAFTERS]
        # Variants that did not alternate with each other have other turns.
        alike = len(turns[0]) == len(turns[1]) > 1
        pairs = zip(*turns, strict=True) if alike else [[both[drafter] for drafter in DRAFTERS]]
        for nth, pair in enumerate(pairs):
            counters = [one["counters"] for one in pair]
            one = CountedPass(f"{prompts}, turn {nth}", len(pair[0]["request_tokens"]))
            one.counters.update(zip(DRAFTERS, counters, strict=True))
            passes.append(one)
    return passes


def verification_passes(outputs: Outputs, prompts: Sequence[Prompt]) -> list[CountedPass]:
    """The verification pass at the customer's sampling, a pass for each prompt.

    Passes of one session have the same name.
    """
    sampled = outputs.sampled
    passes = []
    for index, prompt in enumerate(prompts):
        counters: dict[Drafter, Counters] = {
            drafter: asdict(sampled.of(drafter).counted[index]) for drafter in DRAFTERS
        }
        passes.append(CountedPass(f"session {prompt.session}", 1, counters))
    return passes


def counted_acceptance(
    passes: Sequence[CountedPass], speculators: Mapping[Drafter, Speculator], k: Drafters[int]
) -> Counted:
    """Base, custom and their ratio, pooled over passes, each at its own k.

    The ratio's clusters are groups of passes with the same prompts.
    """
    delivered = not all(speculator.has_unroll for speculator in speculators.values())
    if not delivered:
        for drafter in DRAFTERS:
            _require_drafts(passes, drafter)
    sums = []
    for one in passes:
        row: list[float] = []
        for drafter in DRAFTERS:
            row += _tokens_and_steps(one, drafter, speculators[drafter], delivered)
        sums.append(row)
    ratio = clustered(
        np.array(sums),
        [one.prompts for one in passes],
        lambda s: (s[..., 2] / s[..., 3]) / (s[..., 0] / s[..., 1]),
    )
    base_tokens, base_steps, custom_tokens, custom_steps = np.sum(sums, axis=0)
    return Counted(
        base=_pooled(passes, "base", base_tokens, base_steps, k.base, delivered),
        custom=_pooled(passes, "custom", custom_tokens, custom_steps, k.custom, delivered),
        ratio=ClusteredEstimate.of(ratio),
    )


def _require_drafts(passes: Sequence[CountedPass], drafter: Drafter) -> None:
    if not any(one.counters[drafter]["drafts"] for one in passes):
        raise OutriderError(
            f"vLLM counted no draft of the {drafter} speculator: either all responses have one "
            "token, or its server started without speculation; the server's log names the "
            "speculator that it loaded"
        )


def _tokens_and_steps(
    one: CountedPass, drafter: Drafter, speculator: Speculator, delivered: bool
) -> tuple[float, float]:
    """Numerator and denominator of the acceptance length."""
    counters = one.counters[drafter]
    drafts, accepted = counters["drafts"], counters["accepted_tokens"]
    if not delivered:
        return drafts + accepted, drafts
    tokens = counters["generation_tokens"] - one.responses
    return tokens, drafts if speculator.drafts_every_step else tokens - accepted


def _pooled(
    passes: Sequence[CountedPass],
    drafter: Drafter,
    tokens: float,
    steps: float,
    k: int,
    delivered: bool,
) -> CountedDrafter:
    counters = [one.counters[drafter] for one in passes]
    drafts = sum(each["drafts"] for each in counters)
    reached = np.zeros(k)
    for each in counters:
        counts = each["accepted_per_position"][:k]
        reached[: len(counts)] += counts
    conditional = [
        after / before if before else 0.0
        for before, after in itertools.pairwise([drafts, *reached.tolist()])
    ]
    return CountedDrafter(
        acceptance_length=float(tokens / steps),
        drafts=drafts,
        accepted_tokens=sum(each["accepted_tokens"] for each in counters),
        cumulative=(reached / steps).tolist(),
        conditional=None if delivered else conditional,
        steps=int(steps) if delivered else None,
    )
