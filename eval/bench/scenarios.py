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
from outrider.eval.config import EvalConfig, ScenarioConfig
from outrider.eval.results.speed import Lengths, Scenario
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


@dataclass(frozen=True)
class LoggedLengths:
    """Tokens of each held-out request's prompt and response."""

    prompt_N: NDArray[np.int64]
    response_N: NDArray[np.int64]

    @classmethod
    def of(cls, heldout: "Dataset") -> "LoggedLengths":
        """From the columns `token_ids` and `completion_start`."""
        prompt_N = np.array(heldout["completion_start"])
        total_N = np.array([len(ids) for ids in heldout["token_ids"]])
        return cls(prompt_N, total_N - prompt_N)


def select(heldout: "Dataset", settings: EvalConfig, serving: ServingConfig) -> list[Traffic]:
    """The requests of each of `eval.scenarios`, or one scenario of all; empty without rates.

    `heldout` has the columns `time`, `prompt_text`, `token_ids` and `completion_start`.
    """
    if not settings.rates:
        return []
    lengths = LoggedLengths.of(heldout)
    times, texts = list(heldout["time"]), heldout["prompt_text"]
    order_N = sorted(range(len(times)), key=log_order(times).__getitem__)
    traffic = []
    for name, scenario in (settings.scenarios or {EVERYTHING: ScenarioConfig()}).items():
        max_tokens = scenario.max_tokens or settings.max_tokens
        room = serving.engine.max_model_len - max_tokens - 1
        rows = _fitting(name, scenario, lengths, order_N, room, bool(settings.scenarios))
        described = Scenario(
            requests=len(rows),
            prompt_tokens=_quantiles(lengths.prompt_N[rows]),
            response_tokens=_quantiles(lengths.response_N[rows]),
        )
        chosen_texts, chosen_times = [texts[row] for row in rows], [times[row] for row in rows]
        traffic.append(Traffic(name, chosen_texts, chosen_times, max_tokens, described))
    return traffic


def _fitting(
    name: str,
    scenario: ScenarioConfig,
    lengths: LoggedLengths,
    order_N: Sequence[int],
    room: int,
    named: bool,
) -> list[int]:
    """Rows in the scenario's ranges whose prompts have at most `room` tokens."""
    prompts = _range(scenario.prompt_tokens, scenario.prompt_quantiles, lengths.prompt_N)
    responses = _range(scenario.response_tokens, scenario.response_quantiles, lengths.response_N)
    inside = [
        row
        for row in order_N
        if _inside(lengths.prompt_N[row], prompts) and _inside(lengths.response_N[row], responses)
    ]
    fitting = [row for row in inside if lengths.prompt_N[row] <= room]
    if len(fitting) < LEAST_REQUESTS and (named or not fitting):
        key = f"eval.scenarios.{name}" if named else "eval.rates"
        longer = len(inside) - len(fitting)
        raise OutriderError(
            f"{key}: {len(fitting)} of {len(order_N)} held-out requests have prompts of "
            f"{_in_words(prompts)} and responses of {_in_words(responses)} tokens"
            + (
                f" ({longer} more exceed the {room} prompt tokens for which "
                "serving.engine.max_model_len leaves room)"
                if longer
                else ""
            )
            + f"; at least {LEAST_REQUESTS} are needed. The prompts have "
            f"{_spread(lengths.prompt_N)} tokens, the responses {_spread(lengths.response_N)}: "
            "widen the ranges, or keep more requests with split.max_heldout_sequences or "
            "split.heldout_fraction"
        )
    return fitting


def _range(
    tokens: tuple[int, int | None] | None,
    quantiles: tuple[float, float] | None,
    values_N: NDArray[np.int64],
) -> Range:
    """Least and most tokens, both included."""
    if quantiles is not None:
        low, high = quantiles
        return float(np.quantile(values_N, low)), float(np.quantile(values_N, high))
    least, most = tokens or (0, None)
    return float(least), float("inf") if most is None else float(most)


def _inside(value: float, limits: Range) -> bool:
    return limits[0] <= value <= limits[1]


def _quantiles(values: NDArray[np.int64]) -> Lengths:
    p10, p50, p90 = (int(np.percentile(values, rank)) for rank in (10, 50, 90))
    return Lengths(p10=p10, p50=p50, p90=p90)


def _in_words(limits: Range) -> str:
    least, most = limits
    return f"{least:.0f} or more" if np.isinf(most) else f"{least:.0f} to {most:.0f}"


def _spread(values_N: NDArray[np.int64]) -> str:
    quantiles = np.percentile(values_N, (0, 10, 50, 90, 100))
    return " / ".join(f"{value:.0f}" for value in quantiles) + " (0/10/50/90/100 %)"
