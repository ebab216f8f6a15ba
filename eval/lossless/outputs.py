"""The verification pass in the servers: the same held-out prompts through every variant.

    outputs = collect(fleet, prompts, sampling, max_tokens=400, concurrency=8, say=print)
    outputs.sampled.custom.token_ids

Each variant answers once greedily and once at the customer's sampling. Tokens and the engine's
counters are kept; eval/lossless/verification.py compares them.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from outrider.eval.bench.prompts import Prompt
from outrider.eval.bench.server_pool import Fleet
from outrider.eval.results.parts import Part, Variants
from outrider.serving.client import Sampling, complete
from outrider.serving.counters import SpeculationCounters

Regime = Literal["greedy", "sampled"]
REGIMES: tuple[Regime, ...] = ("greedy", "sampled")


class Recorded(Part):
    """One variant's responses in one regime."""

    token_ids: list[list[int]]
    """By prompt."""
    counters: SpeculationCounters
    """What vLLM counted during the pass."""


class Outputs(Part):
    """The responses of every variant in both regimes; customer text."""

    samplings: dict[Regime, Sampling]
    greedy: Variants[Recorded]
    sampled: Variants[Recorded]

    def of(self, regime: Regime) -> Variants[Recorded]:
        """The responses of one of REGIMES."""
        return self.greedy if regime == "greedy" else self.sampled


def collect(
    fleet: Fleet,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    max_tokens: int,
    concurrency: int,
    say: Callable[[str], None],
) -> Outputs:
    """Sends every prompt to every variant in both regimes; `say` prints each pass."""
    samplings: dict[Regime, Sampling] = {
        "greedy": Sampling(temperature=0.0, top_p=1.0),
        "sampled": sampling,
    }
    recorded: dict[Regime, dict[str, Recorded]] = {regime: {} for regime in REGIMES}
    for group in fleet.groups:
        for regime in REGIMES:
            for variant in group:
                say(f"verification, {regime}, {variant}")
                server = fleet.server(variant)
                before = server.counters()
                completions = complete(
                    server.url,
                    server.model_name,
                    [prompt.token_ids for prompt in prompts],
                    samplings[regime],
                    max_tokens,
                    concurrency=concurrency,
                )
                recorded[regime][variant] = Recorded(
                    token_ids=[completion.token_ids for completion in completions],
                    counters=server.counters() - before,
                )
    greedy, sampled = (Variants[Recorded](**recorded[regime]) for regime in REGIMES)
    return Outputs(samplings=samplings, greedy=greedy, sampled=sampled)
