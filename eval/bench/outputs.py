"""The verification pass: sends the same held-out prompts to every variant.

    outputs = collect_outputs(context, servers, "eager", k, requests)
    outputs.sampled.custom.token_ids

Each variant answers once greedily and once with the customer's sampling settings; tokens and the
engine's counts are cached. Kernels whose results depend on the batch change greedy responses even
without speculation. So a control repeats greedy requests without speculation at half the
concurrency and in reverse order: CONTROL_PROMPTS prompts if all greedy responses are equal, else
all prompts. Custom repeats CONTROL_PROMPTS prompts in the same way, because batching changes its
step count, which limits how closely exact replay can predict that count.
"""

import functools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from outrider.eval.bench.prompts import HeldoutRequests, Prompt
from outrider.eval.bench.request_fields import RequestFields
from outrider.eval.bench.servers import Servers
from outrider.eval.context import EvaluationContext
from outrider.eval.results.parts import VARIANTS, Drafters, Part, Variants
from outrider.serving.client import Sampling, SpeculationCounters, complete

Regime = Literal["greedy", "sampled"]
REGIMES: tuple[Regime, ...] = ("greedy", "sampled")

CONTROL_PROMPTS = 4
"""Number of control prompts if all greedy responses are equal, leaving nothing to explain."""


class RecordedOutputs(Part):
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
    greedy: Variants[RecordedOutputs]
    sampled: Variants[RecordedOutputs]
    control: RecordedOutputs
    """Greedy responses without speculation to the first prompts, batched differently."""
    repeated: RecordedOutputs
    """Greedy responses with custom to the first prompts, batched differently."""

    def of(self, regime: Regime) -> Variants[RecordedOutputs]:
        """The responses in one of REGIMES."""
        return self.greedy if regime == "greedy" else self.sampled


@dataclass(frozen=True)
class Pass:
    """One variant's responses in one regime, to be recorded."""

    variant: str
    regime: Regime
    again: bool = False
    """Whether it repeats the first prompts in other batches."""

    @property
    def name(self) -> str:
        """Its name in progress lines and, with underscores, in the cache."""
        return f"{self.regime} {self.variant}{' again' if self.again else ''}"


def planned_passes(groups: Sequence[Sequence[tuple[str, int | None]]]) -> list[Pass]:
    """All passes, ordered so that each server is started once."""
    passes = []
    for group in groups:
        variants = [variant for variant, _ in group]
        passes += [Pass(variant, regime) for regime in REGIMES for variant in variants]
        # The control is last, since the number of its prompts depends on the other greedy passes.
        repeated = [variant for variant in ("custom", "none") if variant in variants]
        passes += [Pass(variant, "greedy", again=True) for variant in repeated]
    return passes


def collect_outputs(
    context: EvaluationContext,
    servers: Servers,
    mode: str,
    k: Drafters[int],
    requests: HeldoutRequests,
) -> Outputs:
    """Sends all prompts to all variants in both regimes; responses are cached."""
    drafts = {"none": None, "base": k.base, "custom": k.custom}
    samplings: dict[Regime, Sampling] = {
        "greedy": Sampling(temperature=0.0, top_p=1.0),
        "sampled": requests.sampling,
    }
    sender = _Sender(
        context=context,
        servers=servers,
        mode=mode,
        drafts=drafts,
        samplings=samplings,
        prompts=requests.verification,
        fields=requests.fields,
    )
    passes = planned_passes(servers.groups([*drafts.items()]))
    recorded: dict[Pass, RecordedOutputs] = {}
    for number, one in enumerate(passes, 1):
        indices = range(len(requests.verification))
        if one.again:
            indices = range(_repeated_prompts(one, recorded, len(indices)))[::-1]
        where = f"{number} of {len(passes)}"
        left = len(passes) - number + 1
        work = functools.partial(sender.send, one, indices, where=where, left=left)
        key = f"responses_{mode}_{one.name.replace(' ', '_')}_k{drafts[one.variant] or 0}"
        recorded[one] = context.cached_measurement(key, RecordedOutputs, work)
    greedy = {variant: recorded[Pass(variant, "greedy")] for variant in VARIANTS}
    sampled = {variant: recorded[Pass(variant, "sampled")] for variant in VARIANTS}
    return Outputs(
        samplings=samplings,
        greedy=Variants[RecordedOutputs](**greedy),
        sampled=Variants[RecordedOutputs](**sampled),
        control=recorded[Pass("none", "greedy", again=True)],
        repeated=recorded[Pass("custom", "greedy", again=True)],
    )


def _repeated_prompts(one: Pass, recorded: Mapping[Pass, RecordedOutputs], prompts: int) -> int:
    """Number of the first prompts that a pass repeats.

    The control repeats all of them, unless all variants' greedy responses are known and equal.
    """
    few = min(CONTROL_PROMPTS, prompts)
    if one.variant != "none":
        return few
    greedy = [
        answers.token_ids
        for sent, answers in recorded.items()
        if sent.regime == "greedy" and not sent.again
    ]
    # If servers alternate, the control may run before other variants have answered.
    equal = len(greedy) == len(VARIANTS) and all(ids == greedy[0] for ids in greedy)
    return few if equal else prompts


@dataclass(frozen=True)
class _Sender:
    """Sends passes and estimates the time left from those that were not cached."""

    context: EvaluationContext
    servers: Servers
    mode: str
    drafts: Mapping[str, int | None]
    samplings: Mapping[Regime, Sampling]
    prompts: Sequence[Prompt]
    fields: RequestFields
    seconds: list[float] = field(default_factory=list)
    """Duration of each pass that was sent."""

    def send(self, one: Pass, indices: Sequence[int], where: str, left: int) -> RecordedOutputs:
        """Responses to the prompts `indices`, which are sent in this order.

        `left` is the number of passes that are not finished, this one included.
        """
        line = f"verification, {self.mode}, {where}, {one.name}, {len(indices)} prompts"
        if self.seconds:
            minutes = statistics.mean(self.seconds) * left / 60
            line += f", about {minutes:.0f} min left"
        self.context.say(line)
        self.servers.prepare(self.mode, [*self.drafts.items()])
        began = time.monotonic()
        server = self.servers.server(self.mode, one.variant, self.drafts[one.variant])
        seats = self.context.serving.engine.seats
        responses = complete(
            url=server.url,
            model=server.model_name,
            prompts=[self.prompts[index].token_ids for index in indices],
            fields=[self.fields.get(self.prompts[index].text, {}) for index in indices],
            sampling=self.samplings[one.regime],
            max_tokens=self.context.settings.verification_max_tokens,
            # Half the batch and the reverse order put each request among other ones, so kernels
            # round differently.
            concurrency=max(seats // 2, 1) if one.again else seats,
        )
        self.seconds.append(time.monotonic() - began)
        by_prompt = dict(zip(indices, responses, strict=True))
        return RecordedOutputs(
            token_ids=[by_prompt[index].token_ids for index in sorted(indices)],
            counted=[by_prompt[index].counters for index in sorted(indices)],
        )
