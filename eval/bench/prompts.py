"""Selects an evaluation's held-out requests and the customer's sampling settings.

    sampling = customers_sampling(heldout)
    verification_prompts, timed_prompts = evaluation_prompts(heldout, evaluation, serving)
    for traffic in select_requests(heldout, settings, serving):       # of the open loop
        traffic.name, traffic.texts, traffic.times, traffic.max_tokens

Common benchmarks cut or pad prompts and generate past the end of the response (`ignore_eos`). Such
text is not the customer's, so its acceptance and speed do not carry over. Here, a scenario with
long answers selects requests whose logged answers are long.
"""

import collections
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from datasets import Dataset
from numpy.typing import ArrayLike, NDArray

from outrider.common.errors import OutriderError
from outrider.data.sequences import log_order
from outrider.eval.bench.request_fields import RequestFields
from outrider.eval.config import SEED, Bound, EvalConfig, LengthRange, ScenarioConfig
from outrider.eval.results.sections import Quantiles, Scenario
from outrider.serving.client import Sampling
from outrider.serving.config import ServingConfig

EVERYTHING = "all held-out traffic"
"""Name of the only scenario if the recipe defines none."""

LEAST_REQUESTS = 10
"""Minimum number of requests in a scenario; fewer would not be representative."""


@dataclass(frozen=True)
class Prompt:
    """A held-out request."""

    sequence_id: str
    session: str
    user: str
    token_ids: list[int]
    text: str


@dataclass(frozen=True)
class ScenarioRequests:
    """Requests of one scenario, in the log's order."""

    name: str
    texts: list[str]
    """Rendered prompts, special tokens as text."""
    times: list[float | None]
    """Unix seconds; None if the log has no time."""
    max_tokens: int
    described: Scenario


@dataclass(frozen=True)
class HeldoutRequests:
    """The held-out requests that an evaluation sends."""

    sampling: Sampling
    """The most frequent sampling settings of the customer's requests."""
    verification: list[Prompt]
    """Prompts of the verification pass."""
    timed: list[Prompt]
    """Prompts of the timed blocks."""
    traffic: list[ScenarioRequests] = field(default_factory=list)
    """Open-loop requests of each scenario; empty if no rate is measured."""
    everything: ScenarioRequests | None = None
    """All held-out requests, whose capacity is measured; None if it is not."""
    fields: RequestFields = field(default_factory=dict)
    """Further fields of requests, by rendered prompt"""
    times: Mapping[str, float | None] = field(default_factory=dict)
    """Time of each held-out and validation request, by sequence id; None if it is not logged."""
    context: float = 0.0
    """Mean number of tokens before a token of the held-out responses."""
    lost_ends: tuple[str, ...] = ()
    """Message about held-out prompts that are too long to send; empty if there are none."""


def customers_sampling(heldout: Any) -> Sampling:
    """The most frequent sampling parameters of the held-out requests."""
    counts: collections.Counter[Sampling] = collections.Counter()
    columns = (heldout["temperature"], heldout["top_p"], heldout["top_k"])
    for temperature, top_p, top_k in zip(*columns, strict=True):
        # The table holds float32: 0.6 would be 0.6000000238.
        counts[Sampling(round(float(temperature), 4), round(float(top_p), 4), top_k)] += 1
    return counts.most_common(1)[0][0]


def mean_context(prompt_tokens: ArrayLike, response_tokens: ArrayLike) -> float:
    """Mean number of tokens before a token of these responses."""
    prompt_R = np.asarray(prompt_tokens, dtype=np.float64)
    response_R = np.asarray(response_tokens, dtype=np.float64)
    return float(response_R @ (prompt_R + (response_R - 1) / 2) / response_R.sum())


def prompt_room(evaluation: EvalConfig, serving: ServingConfig) -> int:
    """Maximum prompt length, in tokens, that leaves room for the longest response."""
    longest = max(evaluation.verification_max_tokens, evaluation.max_tokens)
    return serving.engine.max_model_len - longest - 1


def evaluation_prompts(
    heldout: Any, evaluation: EvalConfig, serving: ServingConfig
) -> tuple[list[Prompt], list[Prompt]]:
    """Prompts of the verification pass and of the timed blocks, in the order of `spread_sessions`.

    The two do not overlap, except that all prompts are timed if there are fewer than twice
    `eval.verification_requests`.
    """
    room = prompt_room(evaluation, serving)
    order = spread_sessions(heldout["session"])
    prompts = [
        Prompt(
            sequence_id=row["sequence_id"],
            session=row["session"],
            user=row["user"],
            token_ids=list(row["token_ids"][: row["completion_start"]]),
            text=row["prompt_text"],
        )
        for row in (heldout[index] for index in order)
        if row["completion_start"] <= room
    ]
    if not prompts:
        raise OutriderError(
            "evaluate: no held-out prompt leaves room for eval.verification_max_tokens = "
            f"{evaluation.verification_max_tokens} in serving.engine.max_model_len = "
            f"{serving.engine.max_model_len}; lower the former or raise the latter"
        )
    verified = evaluation.verification_requests
    timed = prompts if len(prompts) < 2 * verified else prompts[verified:]
    return prompts[:verified], timed


def spread_sessions(sessions: Sequence[str]) -> list[int]:
    """A random order of the rows, in which those of a session are as far apart as possible.

    The held-out part is in log order; the first rows of it would be one time of day. In a block,
    two turns of one conversation would share more of the prefix cache than in production, where
    the earlier one is answered first.
    """
    generator = random.Random(SEED)
    rows_of: dict[str, list[int]] = {}
    for row, session in enumerate(sessions):
        rows_of.setdefault(session, []).append(row)
    position: dict[int, float] = {}
    for rows in rows_of.values():
        generator.shuffle(rows)
        offset = generator.random()
        for number, row in enumerate(rows):
            position[row] = (number + offset) / len(rows)
    return sorted(position, key=position.__getitem__)


def select_requests(
    heldout: Dataset, settings: EvalConfig, serving: ServingConfig
) -> list[ScenarioRequests]:
    """Selects each scenario's requests (default: one scenario); returns [] without rates."""
    if not settings.rates:
        return []
    scenarios = settings.scenarios or {EVERYTHING: ScenarioConfig()}
    return select_scenarios(heldout, settings, serving, scenarios)


def select_scenarios(
    heldout: Dataset,
    settings: EvalConfig,
    serving: ServingConfig,
    scenarios: Mapping[str, ScenarioConfig],
) -> list[ScenarioRequests]:
    """Selects the requests of `scenarios`.

    `heldout` has the columns `time`, `prompt_text`, `token_ids` and `completion_start`.
    """
    prompt_N = np.array(heldout["completion_start"])
    response_N = np.array([len(ids) for ids in heldout["token_ids"]]) - prompt_N
    times = list(heldout["time"])
    texts = heldout["prompt_text"]
    order_N = np.array(sorted(range(len(times)), key=log_order(times).__getitem__))
    traffic = []
    for name, scenario in scenarios.items():
        max_tokens = scenario.max_tokens or settings.max_tokens
        room = serving.engine.max_model_len - max_tokens - 1
        inside_N = _inside(scenario.prompt_tokens, prompt_N)
        inside_N &= _inside(scenario.response_tokens, response_N)
        rows = order_N[(inside_N & (prompt_N <= room))[order_N]].tolist()
        # A scenario is a claim about some traffic; without one, a small held-out part is all there
        # is.
        if len(rows) < LEAST_REQUESTS and (name != EVERYTHING or not rows):
            key = f"eval.scenarios.{name}" if name != EVERYTHING else "eval.rates"
            selected = (
                f"{key}: {len(rows)} of {len(texts)} held-out requests lie in its ranges"
                f" (prompt_tokens {scenario.prompt_tokens}, response_tokens"
                f" {scenario.response_tokens})"
                f" ({inside_N.sum() - len(rows)} more exceed the {room} prompt tokens for which "
                f"serving.engine.max_model_len leaves room)"
            )
            raise _too_few(selected, prompt_N, response_N)
        described = Scenario(
            requests=len(rows),
            prompt_tokens=Quantiles.of(prompt_N[rows]),
            response_tokens=Quantiles.of(response_N[rows]),
        )
        chosen_texts = [texts[row] for row in rows]
        chosen_times = [times[row] for row in rows]
        traffic.append(
            ScenarioRequests(
                name=name,
                texts=chosen_texts,
                times=chosen_times,
                max_tokens=max_tokens,
                described=described,
            )
        )
    return traffic


def _too_few(
    selected: str, prompt_N: NDArray[np.int64], response_N: NDArray[np.int64]
) -> OutriderError:
    """The error for a scenario with too few requests, with the lengths that there are."""
    lengths = np.percentile([prompt_N, response_N], (0, 10, 50, 90, 100), axis=1).T.round()
    return OutriderError(
        f"{selected}; at least {LEAST_REQUESTS} are needed."
        f" The 0, 10, 50, 90 and 100 % quantiles of prompt and response tokens "
        f"are {lengths.astype(int).tolist()}: widen the ranges, or keep more requests with "
        "split.max_heldout_sequences or split.heldout_fraction"
    )


def _inside(limits: LengthRange | None, values_N: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Marks the values in a range, ends included; percentages are quantiles."""
    least, most = limits or (0, None)
    return (values_N >= _bound(least, values_N, 0)) & (values_N <= _bound(most, values_N, np.inf))


def _bound(end: Bound | None, values_N: NDArray[np.int64], default: float) -> float:
    """The end of a range as a number; a percentage is a quantile of the values."""
    if end is None:
        return default
    if isinstance(end, str):
        return float(np.quantile(values_N, int(end.rstrip("%")) / 100))
    return end
