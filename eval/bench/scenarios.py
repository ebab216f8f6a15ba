"""Usage scenarios: which of the customer's held-out requests are sent, by their logged lengths.

    for traffic in select(heldout, settings, serving):
        traffic.name, traffic.texts, traffic.times, traffic.max_tokens

The usual benchmark makes its lengths: it cuts or pads prompts and makes the model generate past its
end (`ignore_eos`). A drafter then sees other text than the customer's, and after the end token text
that nobody reads, so acceptance and speed mean nothing. Here a request with a long answer is one
that has a long answer in the customer's log; the target ends it when it ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from outrider.common.errors import OutriderError
from outrider.data.sequences import log_order
from outrider.eval.bench.metrics import quantiles
from outrider.eval.config import EvalConfig, LengthRange, ScenarioConfig
from outrider.eval.results.speed import Scenario
from outrider.serving.config import ServingConfig

if TYPE_CHECKING:
    from datasets import Dataset

EVERYTHING = "all held-out traffic"
"""Name of the scenario of a recipe that names none."""

LEAST_REQUESTS = 10
"""Least requests of a scenario: repeating fewer would say little of it."""

Range = tuple[float, float]


@dataclass(frozen=True)
class Traffic:
    """Requests of one scenario, in the log's order."""

    name: str
    texts: list[str]
    """Rendered prompts, special tokens as text."""
    times: list[float | None]
    """Unix seconds; None where the log has no time."""
    max_tokens: int
    described: Scenario


def select(heldout: "Dataset", settings: EvalConfig, serving: ServingConfig) -> list[Traffic]:
    """The requests of each of `eval.scenarios`, or one scenario of all; empty without rates.

    `heldout` has the columns `time`, `prompt_text`, `token_ids` and `completion_start`.
    """
    if not settings.rates:
        return []
    prompt_N = np.array(heldout["completion_start"])
    response_N = np.array([len(ids) for ids in heldout["token_ids"]]) - prompt_N
    times, texts = list(heldout["time"]), heldout["prompt_text"]
    order_N = np.array(sorted(range(len(times)), key=log_order(times).__getitem__))
    traffic = []
    for name, scenario in (settings.scenarios or {EVERYTHING: ScenarioConfig()}).items():
        max_tokens = scenario.max_tokens or settings.max_tokens
        room = serving.engine.max_model_len - max_tokens - 1
        prompts = _range(scenario.prompt_tokens, prompt_N)
        responses = _range(scenario.response_tokens, response_N)
        inside_N = _inside(prompt_N, prompts) & _inside(response_N, responses)
        rows = order_N[(inside_N & (prompt_N <= room))[order_N]].tolist()
        if len(rows) < LEAST_REQUESTS and (settings.scenarios or not rows):
            key = f"eval.scenarios.{name}" if settings.scenarios else "eval.rates"
            longer = inside_N.sum() - len(rows)
            raise OutriderError(
                f"{key}: {len(rows)} of {len(texts)} held-out requests have prompts of "
                f"{_in_words(prompts)} and responses of {_in_words(responses)} tokens"
                f" ({longer} more exceed the {room} prompt tokens for which "
                f"serving.engine.max_model_len leaves room); at least {LEAST_REQUESTS} are needed."
                f" The prompts have {_spread(prompt_N)} tokens, the responses "
                f"{_spread(response_N)}: widen the ranges, or keep more requests with "
                "split.max_heldout_sequences or split.heldout_fraction"
            )
        described = Scenario(
            requests=len(rows),
            prompt_tokens=quantiles(prompt_N[rows]),
            response_tokens=quantiles(response_N[rows]),
        )
        chosen_texts, chosen_times = [texts[row] for row in rows], [times[row] for row in rows]
        traffic.append(Traffic(name, chosen_texts, chosen_times, max_tokens, described))
    return traffic


def logged_tokens_per_s(heldout: "Dataset", times: Sequence[float | None]) -> float | None:
    """Response tokens per second of the log over the time of its held-out part.

    `times` are those of all logged requests: the held-out part may be a sample. None where the log
    has no times.
    """
    own = [time for time in heldout["time"] if time is not None]
    if not own or max(own) == min(own):
        return None
    requests = sum(min(own) <= time <= max(own) for time in times if time is not None)
    tokens = [
        len(ids) - start
        for ids, start in zip(heldout["token_ids"], heldout["completion_start"], strict=True)
    ]
    return (requests - 1) * float(np.mean(tokens)) / (max(own) - min(own))


def _range(limits: LengthRange | None, values_N: NDArray[np.int64]) -> Range:
    """Least and most tokens, both included."""
    least, most = limits or (0, None)
    return _tokens(least, values_N), float("inf") if most is None else _tokens(most, values_N)


def _tokens(bound: int | str, values_N: NDArray[np.int64]) -> float:
    """A number of tokens; a share such as `50%` is a quantile of the values."""
    if isinstance(bound, str):
        return float(np.quantile(values_N, int(bound.rstrip("%")) / 100))
    return float(bound)


def _inside(values_N: NDArray[np.int64], limits: Range) -> NDArray[np.bool_]:
    inside_N: NDArray[np.bool_] = (limits[0] <= values_N) & (values_N <= limits[1])
    return inside_N


def _in_words(limits: Range) -> str:
    least, most = limits
    return f"{least:.0f} or more" if np.isinf(most) else f"{least:.0f} to {most:.0f}"


def _spread(values_N: NDArray[np.int64]) -> str:
    quantiles = np.percentile(values_N, (0, 10, 50, 90, 100))
    return " / ".join(f"{value:.0f}" for value in quantiles) + " (0/10/50/90/100 %)"
