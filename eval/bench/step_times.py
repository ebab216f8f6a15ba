"""Times the engine's steps for every number of drafts, to choose K.

    prompts = step_prompts(heldout, target_dir, serving.engine.max_model_len)
    times = time_steps(servers=servers, mode="eager", load=load, numbers={"custom": [1, 2, 3]},
                       batch_sizes={"custom": [1, 8]}, prompts=prompts, sampling=sampling,
                       speculators=speculators)
    times.seconds["custom"][8][3]       # seconds of a step of 8 requests with 3 drafts

A step takes longer the more tokens precede it, so steps are timed at the contexts of the log: each
request continues a logged response from one of its positions, for at most STEP_TOKENS tokens. A
block's step time is the time between deliveries while a full batch only decodes, divided by its
steps. In each round, every number of drafts is timed on the same prompts. The log step time for a
number of drafts is estimated by its median deviation from the rounds' medians, which is robust to
blocks in which the machine was busy.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray
from pydantic import BaseModel

from outrider.common.errors import OutriderError
from outrider.data.tokenize.tokens import load_tokenizer
from outrider.eval.bench.servers import Servers
from outrider.eval.config import STEP_ROUNDS, STEP_TOKENS, step_requests
from outrider.eval.results.sections import Quantiles
from outrider.serving.client import Sampling
from outrider.serving.load_generator import BlockResult, LoadGenerator
from outrider.serving.speculator import Speculator

MOST_PROMPTS = 640
"""Maximum number of prompts on which steps are timed: those of 5 rounds at 64 requests."""

GOLDEN = (5**0.5 - 1) / 2

ROUNDING_S = 1e-6


@dataclass(frozen=True)
class StepPrompts:
    """Beginnings of logged sequences, which the engine continues."""

    texts: Sequence[str]
    contexts: Sequence[int]
    """Tokens of each text; any few that follow one another spread over the log's contexts"""
    prompt_share: float
    """Logged prompt tokens per response token"""


class StepTimes(BaseModel):
    """Times of steps and of prefill at the contexts of the log."""

    seconds: dict[str, dict[int, dict[int, float]]] = {}
    """Seconds per step: variant -> batch size -> number of drafts"""
    prefill: dict[str, dict[int, float]] = {}
    """Seconds of prefill per token of a response: variant -> batch size. Those of all requests of
    the batch, because each request waits for the others' too."""
    contexts: Quantiles | None = None
    """Tokens before the timed steps"""


def step_prompts(rows: Dataset, target_dir: Path, max_model_len: int) -> StepPrompts:
    """Draws positions of logged responses at which steps are timed.

    Every logged token counts the same: a response is divided into equal parts of about STEP_TOKENS
    tokens, and the engine continues from the beginning of a part. A grammar cannot be continued, so
    only a response's first part is sent with one.
    """
    lengths_R = np.array([len(ids) for ids in rows["token_ids"]])
    starts_R = np.array(rows["completion_start"])
    responses_R = lengths_R - starts_R
    parts_R = np.maximum(np.round(responses_R / STEP_TOKENS), 1).astype(int)
    row_P = np.repeat(np.arange(len(parts_R)), parts_R)
    part_P = np.concatenate([np.arange(parts) for parts in parts_R])
    context_P = starts_R[row_P] + part_P * responses_R[row_P] // parts_R[row_P]
    # The shortest always fits: `evaluation_prompts` has checked that a prompt does.
    room = max(max_model_len - STEP_TOKENS - 1, int(context_P.min()))
    fits_P = context_P <= room
    ranked = np.argsort(np.where(fits_P, context_P, np.inf), kind="stable")[: fits_P.sum()]
    # Multiples of the golden ratio, modulo 1, are spread evenly however many are taken (Weyl).
    visits = np.argsort(np.argsort((np.arange(len(ranked)) + 0.5) * GOLDEN % 1))[:MOST_PROMPTS]
    tokenizer = load_tokenizer(target_dir)
    chosen = ranked[visits].tolist()
    texts = []
    for place in chosen:
        row = rows[int(row_P[place])]
        said = row["token_ids"][row["completion_start"] : int(context_P[place])]
        texts.append(row["prompt_text"] + tokenizer.decode(said, skip_special_tokens=False))
    return StepPrompts(
        texts=texts,
        contexts=context_P[chosen].tolist(),
        prompt_share=float(starts_R.sum() / responses_R.sum()),
    )


def time_steps(
    *,
    servers: Servers,
    mode: str,
    load: LoadGenerator,
    numbers: Mapping[str, Sequence[int]],
    batch_sizes: Mapping[str, Sequence[int]],
    prompts: StepPrompts,
    sampling: Sampling,
    speculators: Mapping[Any, Speculator],
) -> StepTimes:
    """Times each variant's steps at each of its batch sizes and numbers of drafts.

    Raises an `OutriderError` if responses are too short for a step.
    """
    turns = [(variant, k) for variant, counts in numbers.items() for k in counts]
    sizes = list(dict.fromkeys(itertools.chain.from_iterable(batch_sizes.values())))
    seconds: dict[str, dict[int, dict[int, float]]] = {
        variant: {size: {} for size in batch_sizes[variant]} for variant in numbers
    }
    prefill: dict[str, dict[int, float]] = {variant: {} for variant in numbers}
    for group in servers.groups(turns):
        servers.prepare(mode, group)
        supply = itertools.cycle(zip(prompts.texts, prompts.contexts, strict=True))
        timed: dict[tuple[str, int], dict[int, list[_Timed]]] = {}
        for _, size in itertools.product(range(STEP_ROUNDS), sizes):
            texts, contexts = zip(*itertools.islice(supply, step_requests(size)), strict=True)
            for variant, k in group:
                if size not in batch_sizes[variant]:
                    continue
                server = servers.server(mode, variant, k)
                block = load.run_block(
                    url=server.url,
                    prompts=texts,
                    concurrency=size,
                    sampling=sampling,
                    max_tokens=STEP_TOKENS,
                )
                times = _timed(
                    block=block,
                    prefilled=sum(contexts[:size]),
                    size=size,
                    speculator=speculators[variant],
                    k=k,
                )
                timed.setdefault((variant, size), {}).setdefault(k, []).append(times)
        for (variant, size), blocks in timed.items():
            step_s = [[block.step_s for block in rounds] for rounds in blocks.values()]
            seconds[variant][size].update(zip(blocks, _typical_times(step_s), strict=True))
            prefill[variant][size] = size * prompts.prompt_share * _prefill_rate(blocks)
    contexts_P = np.array(prompts.contexts)
    return StepTimes(seconds=seconds, prefill=prefill, contexts=Quantiles.of(contexts_P))


class _Timed(NamedTuple):
    """One block's times."""

    step_s: float
    prefill_s: float
    """Until all requests of the first batch have their first token"""
    prefilled: int
    """Prompt tokens of these requests"""


def _timed(block: BlockResult, prefilled: int, size: int, speculator: Speculator, k: int) -> _Timed:
    """Seconds per step of a full batch that only decodes, and of its prefill."""
    counters = asdict(block.counters)
    responses = len(block.requests)
    # Each response's first token comes from its prefill, which is no step.
    steps = counters["generation_tokens"] - responses
    if k:
        steps = speculator.steps(counters, responses)
    if not steps:
        raise OutriderError(
            f"timing the engine's steps: vLLM counted none with {k} drafts; are the"
            " held-out responses a single token long? Set eval.k"
        )
    gaps_G, decodes_G = _gaps(block)
    if not decodes_G.any():  # prefill overlaps every step
        decodes_G = np.ones_like(decodes_G)
    # Deliveries are steps, except that the server may join two; so the counted steps are divided.
    step_s = gaps_G[decodes_G].sum() / (steps * decodes_G.mean())
    prefill_s = max(request.start_s + request.ttft_ms / 1000 for request in block.requests[:size])
    return _Timed(float(step_s), prefill_s, prefilled)


def _gaps(block: BlockResult) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Seconds between deliveries, and whether a full batch only decoded in them [G]."""
    sent_R = np.array([request.start_s for request in block.requests])
    first_R = sent_R + np.array([request.ttft_ms for request in block.requests]) / 1000
    gaps = []
    decodes = []
    for request, first_s in zip(block.requests, first_R, strict=True):
        gaps_G = np.array(request.itl_ms) / 1000
        ends_G = first_s + np.cumsum(gaps_G)
        begins_G = ends_G - gaps_G + ROUNDING_S
        # Chunks of another request's prompt are computed in the same steps, which they prolong.
        prefills_G = ((sent_R < ends_G[:, None]) & (begins_G[:, None] < first_R)).any(axis=1)
        gaps.append(gaps_G)
        decodes.append(~prefills_G & (ends_G <= block.full_until_s + ROUNDING_S))
    return np.concatenate(gaps), np.concatenate(decodes)


def _prefill_rate(blocks: Mapping[int, Sequence[_Timed]]) -> float:
    """Seconds per prompt token, while the engine does nothing else."""
    # K does not change the prefill of prompts, so all blocks show the same rate.
    rates = [block.prefill_s / block.prefilled for rounds in blocks.values() for block in rounds]
    return float(np.median(rates))


def _typical_times(seconds: Sequence[Sequence[float]]) -> list[float]:
    """The typical time for each number of drafts, from its times in all rounds.

    Two-way layout: log time = round effect + effect of k, as in one sweep of Tukey's median polish
    (Exploratory Data Analysis, 1977, ch. 10).
    """
    logs_KR = np.log(seconds)
    # Medians, because a busy machine only slows: its errors have one sign and long tails.
    round_R = np.median(logs_KR, axis=0)
    number_K = np.median(logs_KR - round_R, axis=1)
    times: list[float] = np.exp(np.median(round_R) + number_K).tolist()
    return times
