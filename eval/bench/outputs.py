"""The verification pass: sends the same held-out prompts to every variant.

    outputs = collect(context, servers, "eager", k, requests)
    outputs.sampled.custom.token_ids

Each variant answers once greedily and once with the customer's sampling settings; tokens and the
engine's counts are cached. Kernels whose results depend on the batch change greedy responses even
without speculation. So a control repeats greedy requests without speculation at half the
concurrency and in reverse order: CONTROL_PROMPTS prompts if all greedy responses are equal, else
all prompts. Custom repeats CONTROL_PROMPTS prompts in the same way, because batching changes its
step count, which limits how closely exact replay can predict that count.
"""

import itertools
import statistics
import time
from typing import Literal

from outrider.eval.bench.prompts import HeldoutRequests
from outrider.eval.bench.servers import Servers
from outrider.eval.context import EvaluationContext
from outrider.eval.results.parts import VARIANTS, Drafters, Part, Variants
from outrider.serving.client import Sampling, SpeculationCounters, complete

Regime = Literal["greedy", "sampled"]
REGIMES: tuple[Regime, ...] = ("greedy", "sampled")

CONTROL_PROMPTS = 4
"""Number of control prompts if all greedy responses are equal, leaving nothing to explain."""


class Recorded(Part):
    """One variant's responses in one regime."""

    token_ids: list[list[int]]
    """Token ids by prompt."""
    counted: list[SpeculationCounters]
    """vLLM's counters by prompt."""

    @property
    def counters(self) -> SpeculationCounters:
        """vLLM's counters summed over all prompts."""
        return sum(
            self.counted,
            SpeculationCounters(
                drafts=0,
                draft_tokens=0,
                accepted_tokens=0,
                accepted_per_position=(),
                generation_tokens=0,
            ),
        )

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted / drafts; None without drafts."""
        return self.counters.acceptance_length if self.counters.drafts else None


class Outputs(Part):
    """The responses of every variant in both regimes; customer text."""

    samplings: dict[Regime, Sampling]
    greedy: Variants[Recorded]
    sampled: Variants[Recorded]
    control: Recorded
    """Greedy responses without speculation to the first prompts, batched differently."""
    repeated: Recorded
    """Greedy responses with custom to the first prompts, batched differently."""

    def of(self, regime: Regime) -> Variants[Recorded]:
        """The responses in one of REGIMES."""
        return self.greedy if regime == "greedy" else self.sampled


def collect(
    context: EvaluationContext,
    servers: Servers,
    mode: str,
    k: Drafters[int],
    requests: HeldoutRequests,
) -> Outputs:
    """Sends all prompts to all variants in both regimes; responses are cached."""
    settings = context.settings
    prompts = requests.verification
    samplings: dict[Regime, Sampling] = {
        "greedy": Sampling(temperature=0.0, top_p=1.0),
        "sampled": requests.sampling,
    }
    token_ids = [prompt.token_ids for prompt in prompts]
    seats = context.serving.engine.seats
    few = min(CONTROL_PROMPTS, len(prompts))
    drafts = {"none": None, "base": k.base, "custom": k.custom}
    numbers = itertools.count(1)
    total = len(REGIMES) * len(drafts) + 2
    took_s: list[float] = []

    def answered(name: str, variant: str, regime: Regime, indices: range, seats: int) -> Recorded:
        """Responses by prompt; `indices` are the prompts in sending order."""
        number = next(numbers)

        def work() -> Recorded:
            place = f"verification, {mode}, {number} of {total}, {name}, {len(indices)} prompts"
            seconds = statistics.mean(took_s or [0]) * (total - number + 1)
            context.say(f"{place}, about {seconds / 60:.0f} min left" if took_s else place)
            began = time.monotonic()
            server = servers.server(mode, variant, drafts[variant])
            responses = complete(
                url=server.url,
                model=server.model_name,
                prompts=[token_ids[index] for index in indices],
                sampling=samplings[regime],
                max_tokens=settings.verification_max_tokens,
                concurrency=seats,
            )
            took_s.append(time.monotonic() - began)
            found = dict(zip(indices, responses, strict=True))
            return Recorded(
                token_ids=[found[index].token_ids for index in sorted(indices)],
                counted=[found[index].counters for index in sorted(indices)],
            )

        kept = f"responses_{mode}_{name.replace(' ', '_')}_k{drafts[variant] or 0}"
        return context.cached(kept, Recorded, work)

    def again(variant: str, count: int) -> Recorded:
        name = f"greedy {variant} again"
        half = max(seats // 2, 1)
        return answered(
            name=name, variant=variant, regime="greedy", indices=range(count)[::-1], seats=half
        )

    recorded: dict[Regime, dict[str, Recorded]] = {regime: {} for regime in REGIMES}
    repeated: dict[str, Recorded] = {}
    for group in servers.groups([*drafts.items()]):
        for regime in REGIMES:
            for variant, _ in group:
                name = f"{regime} {variant}"
                everything = range(len(prompts))
                recorded[regime][variant] = answered(
                    name=name, variant=variant, regime=regime, indices=everything, seats=seats
                )
        if ("custom", k.custom) in group:
            repeated["custom"] = again("custom", few)
        if ("none", None) in group:
            texts = [each.token_ids for each in recorded["greedy"].values()]
            equal = len(texts) == len(VARIANTS) and all(text == texts[0] for text in texts)
            repeated["none"] = again("none", few if equal else len(prompts))
    greedy, sampled = (Variants[Recorded](**recorded[regime]) for regime in REGIMES)
    return Outputs(
        samplings=samplings,
        greedy=greedy,
        sampled=sampled,
        control=repeated["none"],
        repeated=repeated["custom"],
    )
