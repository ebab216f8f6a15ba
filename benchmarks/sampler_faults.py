"""How often each lossless check refuses a sampler with a planted fault.

    python -m benchmarks.sampler_faults --runs 40                       # minutes of one core
    python -m benchmarks.sampler_faults --target nano_r1 --runs 6       # ten times as long

A run draws prompts of a shipped log, and responses to each without speculation, from a correct
sampler and from each faulty one, all in float32 and in one batch, so that nothing else differs. The
product's functions (eval/lossless/equal_text.py) then compare them as the verification pass does.

The target is nano R1, or a table of the log's trigrams, which is a hundred times faster to sample.
A fault is another temperature, another top-p, or an acceptance that emits rejected drafts all the
same; drafts are those of n-gram lookup with one token, so they are plausible and often wrong. Only
faults named so change greedy responses. The last line of stdout is JSON. Results:
results/sampler_faults.md.

Shapes: N rows, which are prompts times samplers; T tokens; V vocabulary.
"""

import argparse
import gzip
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

from outrider.data.tokenize.tokens import load_tokenizer
from outrider.eval.config import EvalConfig, GateConfig
from outrider.eval.gate import LEAST_GREEDY_P
from outrider.eval.lossless.equal_text import compare_greedy, excess, same_tokens, tail_share
from outrider.pipeline.recipe.shipped import EMBEDDED_TRAFFIC
from outrider.serving.config import TargetConfig
from outrider.speculators.acceptance import target_distribution

TARGET_DIR = TargetConfig(model="nano_r1").directory()

TEMPERATURE = 0.6
TOP_P = 0.95
"""Sampling of the log's requests."""

CHECKS = ("greedy responses", "tail share", "token counts")


@dataclass(frozen=True)
class Sampler:
    """How a row's tokens are drawn."""

    temperature: float = TEMPERATURE
    top_p: float = TOP_P
    accepts_rejected: float = 0.0
    """Share of the rejected drafts that are emitted all the same."""


CORRECT = Sampler()
GREEDY = Sampler(temperature=0.0, top_p=1.0)

FAULTS: dict[str, tuple[Sampler, Sampler]] = {
    "none (a correct sampler)": (CORRECT, GREEDY),
    **{
        f"temperature times {factor:g}": (Sampler(temperature=factor * TEMPERATURE), GREEDY)
        for factor in (1.05, 1.1, 1.2, 1.5, 2.0, 0.9, 0.5, 0.0)
    },
    "top-p switched off": (Sampler(top_p=1.0), GREEDY),
    "top-p 0.8": (Sampler(top_p=0.8), GREEDY),
    **{
        f"{share:.0%} of rejected drafts, sampled requests alone": (
            Sampler(accepts_rejected=share),
            GREEDY,
        )
        for share in (0.05, 0.25, 1.0)
    },
    **{
        f"{share:.0%} of rejected drafts, greedy requests too": (
            Sampler(accepts_rejected=share),
            Sampler(temperature=0.0, top_p=1.0, accepts_rejected=share),
        )
        for share in (0.05, 0.25)
    },
}
"""Samplers of sampled and of greedy requests, by fault."""

SAMPLERS = tuple(
    dict.fromkeys([CORRECT, GREEDY, *(sampler for pair in FAULTS.values() for sampler in pair)])
)


@dataclass
class Response:
    """A response, with the target's log-probabilities at its temperature before top-p."""

    prompt: list[int]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    logits_TV: list[np.ndarray] = field(default_factory=list)
    """Unscaled log-probabilities of all tokens, kept for greedy responses alone."""
    ended: bool = False

    def draft(self) -> int | None:
        """The token that last followed the newest token, as n-gram lookup drafts it."""
        ids = [*self.prompt, *self.token_ids]
        for position in range(len(ids) - 2, -1, -1):
            if ids[position] == ids[-1]:
                return ids[position + 1]
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=TARGETS, default="trigrams")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--traffic", default="social_chat", help="a log of recipes/nano_r1/traffic")
    parser.add_argument("--requests", type=int, default=EvalConfig().verification_requests)
    parser.add_argument("--max-tokens", type=int, default=96)
    options = parser.parse_args()
    began = time.monotonic()
    logged = list(logged_ids(options.traffic))
    target = TARGETS[options.target](logged)
    random = np.random.default_rng(0)
    refused = {name: dict.fromkeys((*CHECKS, "any"), 0) for name in FAULTS}
    p_values: dict[str, list[float]] = {name: [] for name in FAULTS}
    tokens: list[int] = []
    for run in range(options.runs):
        chosen = random.choice(len(logged), options.requests, replace=False)
        drawn = generate(
            target=target,
            prompts=[logged[index][0] for index in chosen],
            max_tokens=options.max_tokens,
            random=torch.Generator().manual_seed(run),
        )
        tokens += [len(response.token_ids) for response in drawn[(CORRECT, 0)]]
        for name, (sampled, greedy) in FAULTS.items():
            outcome, p_value = checks(drawn, sampled, greedy)
            p_values[name].append(p_value)
            for check, fails in outcome.items():
                refused[name][check] += fails
            refused[name]["any"] += any(outcome.values())
        print(f"run {run + 1} of {options.runs}, {time.monotonic() - began:.0f} s", flush=True)
    print_table(refused, p_values, options.runs)
    print(
        json.dumps(
            {
                "target": options.target,
                "traffic": options.traffic,
                "runs": options.runs,
                "requests": options.requests,
                "tokens": float(np.mean(tokens)),
                "refused": refused,
                "p_values": p_values,
            }
        )
    )


def logged_ids(traffic: str) -> Iterator[tuple[list[int], list[int]]]:
    """Token ids of the log's prompts and responses."""
    tokenizer = load_tokenizer(TARGET_DIR)

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    with gzip.open(EMBEDDED_TRAFFIC / f"{traffic}.jsonl.gz", "rt", encoding="utf-8") as log:
        for line in log:
            exchange = json.loads(line)
            prompt = tokenizer.apply_chat_template(
                exchange["request"]["messages"], add_generation_prompt=True, tokenize=False
            )
            message = exchange["response"]["choices"][0]["message"]
            response = f"{message['reasoning'] or ''}</think>{message['content']}"
            yield ids(prompt), [*ids(response), tokenizer.eos_token_id]


class Trigrams:
    """A target whose next token depends on the last two, as often as in the log's responses.

    A hundredth of the probability is spread by the tokens' own frequencies, so that there is a tail
    that top-p cuts. The log was sampled at `TEMPERATURE`, so the frequencies hold there.
    """

    def __init__(self, logged: Sequence[tuple[list[int], list[int]]]) -> None:
        ids = np.concatenate([response for _, response in logged])
        self._tokens, counts = np.unique(ids, return_counts=True)
        index_of = {token: index for index, token in enumerate(self._tokens.tolist())}
        self.end_id = index_of[logged[0][1][-1]]
        self._index_of = index_of
        self._common_V = counts / counts.sum()
        self._following: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for prompt, response in logged:
            text = self.indices([*prompt[-2:], *response])
            for position in range(2, len(text)):
                for length in (1, 2):
                    context = tuple(text[position - length : position])
                    self._following[context][text[position]] += 1
        self._rows: dict[tuple[int, ...], torch.Tensor] = {}

    def indices(self, ids: Sequence[int]) -> list[int]:
        """Positions in the vocabulary; -1 for tokens that are in prompts alone."""
        return [self._index_of.get(token, -1) for token in ids]

    def start(self, prompts: Sequence[list[int]]) -> None:
        """Begins rows of these prompts."""
        self._texts = [prompt[-2:] for prompt in prompts]

    def logits(self, token_N: Sequence[int] | None) -> torch.Tensor:
        """[N, V] the logits after these tokens; None: after the prompts."""
        if token_N is not None:
            self._texts = [
                [text[-1], token] for text, token in zip(self._texts, token_N, strict=True)
            ]
        return torch.stack([self._row(tuple(text)) for text in self._texts])

    def _row(self, context: tuple[int, ...]) -> torch.Tensor:
        if context not in self._rows:
            # A context that the log lacks: the last token alone decides.
            following = self._following.get(context) or self._following.get(context[-1:], {})
            seen_V = np.zeros(len(self._tokens))
            for index, count in following.items():
                seen_V[index] = count
            share = 0.99 if following else 0.0
            p_V = share * seen_V / max(seen_V.sum(), 1) + (1 - share) * self._common_V
            self._rows[context] = torch.from_numpy(TEMPERATURE * np.log(p_V)).float()
        return self._rows[context]


class NanoR1:
    """The embedded target, in float32 with a cache of keys and values."""

    def __init__(self, logged: Sequence[tuple[list[int], list[int]]]) -> None:
        transformers.logging.set_verbosity_error()
        model: Any = AutoModelForCausalLM.from_pretrained(TARGET_DIR, dtype=torch.float32)
        self._model = model.eval()
        self.end_id: int = model.config.eos_token_id

    def indices(self, ids: Sequence[int]) -> list[int]:
        """The ids themselves."""
        return list(ids)

    def start(self, prompts: Sequence[list[int]]) -> None:
        """Begins rows of these prompts, padded on the left."""
        longest = max(map(len, prompts))
        padding = [longest - len(prompt) for prompt in prompts]
        self._token_NT = torch.tensor(
            [[0] * pad + prompt for pad, prompt in zip(padding, prompts, strict=True)]
        )
        self._mask_NT = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding])
        self._cache: Any = None

    def logits(self, token_N: Sequence[int] | None) -> torch.Tensor:
        """[N, V] the logits after these tokens; None: after the prompts."""
        if token_N is not None:
            self._token_NT = torch.tensor(token_N)[:, None]
            self._mask_NT = torch.cat([self._mask_NT, torch.ones_like(self._token_NT)], dim=-1)
        position_NT = (self._mask_NT.cumsum(-1) - 1).clamp_min(0)
        output = self._model(
            self._token_NT,
            attention_mask=self._mask_NT,
            position_ids=position_NT[:, -self._token_NT.shape[1] :],
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._cache = output.past_key_values
        logits_NV: torch.Tensor = output.logits[:, -1].float()
        return logits_NV


TARGETS = {"trigrams": Trigrams, "nano_r1": NanoR1}


@torch.no_grad()
def generate(
    target: Trigrams | NanoR1,
    prompts: Sequence[list[int]],
    max_tokens: int,
    random: torch.Generator,
) -> dict[tuple[Sampler, int], list[Response]]:
    """A response of every sampler to every prompt, and a second one of the correct samplers.

    The number in the key is 0, or 1 for the second response.
    """
    keys = [(sampler, 0) for sampler in SAMPLERS] + [(CORRECT, 1), (GREEDY, 1)]
    rows = {key: [Response(target.indices(prompt)) for prompt in prompts] for key in keys}
    responses = [response for key in keys for response in rows[key]]
    samplers = [sampler for sampler, _ in keys for _ in prompts]
    temperature_N = torch.tensor([sampler.temperature for sampler in samplers])
    top_p_N = torch.tensor([sampler.top_p for sampler in samplers])
    target.start([response.prompt for response in responses])
    token_N: list[int] | None = None
    for _ in range(max_tokens):
        logits_NV = target.logits(token_N)
        p_NV = target_distribution(logits_NV, temperature_N, top_p_N)
        token_N = next_tokens(
            responses=responses,
            samplers=samplers,
            logits_NV=logits_NV,
            drawn_N=torch.multinomial(p_NV, 1, generator=random)[:, 0],
            chance_N=torch.rand(len(responses), generator=random),
            end_id=target.end_id,
        )
        if all(response.ended for response in responses):
            break
    return rows


def next_tokens(
    *,
    responses: Sequence[Response],
    samplers: Sequence[Sampler],
    logits_NV: torch.Tensor,
    drawn_N: torch.Tensor,
    chance_N: torch.Tensor,
    end_id: int,
) -> list[int]:
    """Adds a token to every response that has not ended; returns the tokens of all rows.

    A draft is accepted with the probability that the target gives it, so a correct rejection
    sampler emits `drawn_N`; a faulty one emits the draft instead if `chance_N` says so.
    """
    raw_NV = logits_NV.log_softmax(-1)
    scaled_NV = (logits_NV / TEMPERATURE).log_softmax(-1)
    tokens = drawn_N.tolist()
    chances = chance_N.tolist()
    for row, (response, sampler) in enumerate(zip(responses, samplers, strict=True)):
        if response.ended:
            continue
        if chances[row] < sampler.accepts_rejected:
            draft = response.draft()
            tokens[row] = tokens[row] if draft is None else draft
        response.logprobs.append(float(scaled_NV[row, tokens[row]]))
        if sampler is GREEDY:
            response.logits_TV.append(raw_NV[row].numpy())
        response.token_ids.append(tokens[row])
        response.ended = tokens[row] == end_id
    return tokens


def checks(
    drawn: dict[tuple[Sampler, int], list[Response]], sampled: Sampler, greedy: Sampler
) -> tuple[dict[str, bool], float]:
    """Whether each check refuses the samplers of a fault, and the token counts' p-value."""
    gate = GateConfig()
    without = drawn[GREEDY, 0]

    def gap(response: int, index: int, token: int, alternative: int) -> float:
        logits_V = without[response].logits_TV[index]
        return abs(float(logits_V[token] - logits_V[alternative]))

    def compared(responses: Sequence[Response]) -> Any:
        return compare_greedy(ids_of(without), ids_of(responses), gap, gate.near_tie_nats)

    added = excess(compared(of_sampler(drawn, greedy)), compared(drawn[GREEDY, 1]))
    first = drawn[CORRECT, 0]
    second = of_sampler(drawn, sampled)
    tails = [tail_share([np.array(row.logprobs) for row in rows]) for rows in (first, second)]
    p_value = same_tokens(ids_of(first), ids_of(second)).p_value
    outcomes = (
        added.p_value < LEAST_GREEDY_P,
        tails[1] - tails[0] > gate.max_tail_excess,
        p_value < gate.min_same_text_p,
    )
    return dict(zip(CHECKS, outcomes, strict=True)), p_value


def of_sampler(
    drawn: dict[tuple[Sampler, int], list[Response]], sampler: Sampler
) -> list[Response]:
    """The responses of a sampler with speculation: of a correct one, its second ones."""
    return drawn.get((sampler, 1)) or drawn[sampler, 0]


def ids_of(responses: Sequence[Response]) -> list[list[int]]:
    """The token ids of each response."""
    return [response.token_ids for response in responses]


def print_table(
    refused: dict[str, dict[str, int]], p_values: dict[str, list[float]], runs: int
) -> None:
    """Prints how many runs each check refuses, and the spread of the token counts' p-values."""
    print(f"| fault | {' | '.join(CHECKS)} | any | p-values of token counts |")
    print("|---|" + "---|" * (len(CHECKS) + 2))
    for name, counts in refused.items():
        low, middle, high = np.quantile(p_values[name], [0.0, 0.5, 1.0])
        shown = " | ".join(f"{count} of {runs}" for count in counts.values())
        print(f"| {name} | {shown} | {low:.2g} to {high:.2g}, median {middle:.2g} |")


if __name__ == "__main__":
    main()
