"""The verification pass in the servers: the same held-out prompts through every variant.

    outputs = collect(fleet, prompts, sampling, 400, 8, logs, digest, say=print)
    outputs.sampled.custom.token_ids

Each variant answers once greedily and once at the customer's sampling. Tokens and the engine's
counts are kept; eval/lossless/verification.py compares them.

Kernels whose result depends on the batch change greedy responses without any speculation. So a
control repeats greedy requests without speculation in other batches: at half the concurrency and in
reverse order. It has CONTROL_PROMPTS prompts where all greedy responses are equal, and all prompts
where any differs. Custom repeats CONTROL_PROMPTS prompts in the same way: its own steps need not be
equal in other batches either, which bounds how closely exact replay can predict them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from outrider.eval.bench.prompts import Prompt
from outrider.eval.bench.server_pool import Fleet
from outrider.eval.lossless.response_log import ResponseLog
from outrider.eval.results.parts import VARIANTS, Part, Variants
from outrider.serving.client import Completion, Sampling, SpeculationCounters, complete
from outrider.serving.server import Server

Regime = Literal["greedy", "sampled"]
REGIMES: tuple[Regime, ...] = ("greedy", "sampled")

CONTROL_PROMPTS = 4
"""Prompts of the control where no greedy response differs: any further ones could only show that
the engine alone differs, which then excuses nothing."""


class Recorded(Part):
    """One variant's responses in one regime."""

    token_ids: list[list[int]]
    """By prompt."""
    counted: list[SpeculationCounters]
    """What vLLM counted for each."""

    @property
    def counters(self) -> SpeculationCounters:
        """What vLLM counted for all of them."""
        return sum(self.counted, SpeculationCounters(0, 0, 0, (), 0))


class Outputs(Part):
    """The responses of every variant in both regimes; customer text."""

    samplings: dict[Regime, Sampling]
    greedy: Variants[Recorded]
    sampled: Variants[Recorded]
    control: Recorded
    """The first prompts without speculation, greedily, in other batches."""
    repeated: Recorded
    """The first prompts with custom, greedily, in other batches."""

    def of(self, regime: Regime) -> Variants[Recorded]:
        """The responses of one of REGIMES."""
        return self.greedy if regime == "greedy" else self.sampled


def collect(
    fleet: Fleet,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    max_tokens: int,
    concurrency: int,
    logs: Path,
    digest: str,
    say: Callable[[str], None],
) -> Outputs:
    """Sends every prompt to every variant in both regimes; `say` prints each pass.

    Responses are stored in `logs` as they arrive. Those that are there, of the same `digest`, are
    not requested again.
    """
    samplings: dict[Regime, Sampling] = {
        "greedy": Sampling(temperature=0.0, top_p=1.0),
        "sampled": sampling,
    }
    token_ids = [prompt.token_ids for prompt in prompts]
    few = min(CONTROL_PROMPTS, len(prompts))

    def again(variant: str, count: int) -> Recorded:
        say(f"verification, greedy, {variant} again: {count} prompts in other batches")
        log, order = ResponseLog(logs / f"again_{variant}.jsonl", digest), range(count)[::-1]
        server, other = fleet.server(variant), max(concurrency // 2, 1)
        return answers(server, log, token_ids, order, samplings["greedy"], max_tokens, other)

    recorded: dict[Regime, dict[str, Recorded]] = {regime: {} for regime in REGIMES}
    control, repeated = Recorded(token_ids=[], counted=[]), Recorded(token_ids=[], counted=[])
    for group in fleet.groups:
        for regime in REGIMES:
            for variant in group:
                say(f"verification, {regime}, {variant}")
                log = ResponseLog(logs / f"{regime}_{variant}.jsonl", digest)
                server, order = fleet.server(variant), range(len(prompts))
                recorded[regime][variant] = answers(
                    server, log, token_ids, order, samplings[regime], max_tokens, concurrency
                )
        if "custom" in group:
            repeated = again("custom", few)
        if "none" in group:
            control = again("none", few if _all_equal(recorded["greedy"]) else len(prompts))
    greedy, sampled = (Variants[Recorded](**recorded[regime]) for regime in REGIMES)
    return Outputs(
        samplings=samplings, greedy=greedy, sampled=sampled, control=control, repeated=repeated
    )


def answers(
    server: Server,
    log: ResponseLog,
    prompts: Sequence[Sequence[int]],
    order: Sequence[int],
    sampling: Sampling,
    max_tokens: int,
    concurrency: int,
) -> Recorded:
    """The responses to the prompts of `order`, by prompt; requests what is not in the log."""
    known = log.known()
    missing = [index for index in order if index not in known]

    def arrived(place: int, completion: Completion) -> None:
        log.append(missing[place], completion)

    if missing:
        asked = [prompts[index] for index in missing]
        complete(
            server.url, server.model_name, asked, sampling, max_tokens, concurrency, arrived=arrived
        )
        known = log.known()
    responses = [known[index] for index in sorted(order)]
    return Recorded(
        token_ids=[response.token_ids for response in responses],
        counted=[response.counters for response in responses],
    )


def _all_equal(greedy: dict[str, Recorded]) -> bool:
    """Whether no response differs; False where a variant is not measured yet."""
    texts = [greedy[variant].token_ids for variant in VARIANTS if variant in greedy]
    return len(texts) == len(VARIANTS) and all(text == texts[0] for text in texts)
