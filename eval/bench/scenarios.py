"""Usage scenarios: which of the customer's held-out requests are sent, by the lengths that were logged.

    for traffic in select(heldout, evaluation, serving):
        traffic.name, traffic.texts, traffic.times, traffic.max_tokens

The usual benchmark makes its lengths: it cuts or pads prompts and lets the model write on past its end (`ignore_eos`). A drafter sees
other text there than the customer's, and after the end token text that nobody would read, so acceptance, and with it the speed, is
of nothing. A request with a long answer is here one that the customer's log has a long answer to; the target ends it when it ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outrider.common.errors import OutriderError
from outrider.data.sequences import log_order
from outrider.eval.bench.scenario_config import ScenarioConfig
from outrider.eval.config import EvalConfig
from outrider.serving.config import ServingConfig

EVERYTHING = "all held-out traffic"
"""The name of what is sent where the recipe names no scenario."""

LEAST_REQUESTS = 10
"""Requests of a scenario: the same few again and again would say little of it."""


@dataclass(frozen=True)
class Traffic:
    """Requests of one scenario, in the log's order."""

    name: str
    texts: list[str]
    """Rendered prompts, special tokens as text."""
    times: list[float | None]
    """Unix seconds; None where the log has none."""
    max_tokens: int
    described: dict[str, Any]
    """`requests`, of how many (`heldout`), quantiles of `prompt_tokens` and `response_tokens` as logged, `max_tokens`."""


def select(heldout: Any, evaluation: EvalConfig, serving: ServingConfig) -> list[Traffic]:
    """The requests of each of `eval.scenarios`, or all where there are none; nothing where no rate is measured. `heldout` is the table's
    part, with `time`, `prompt_text`, `token_ids` and `completion_start`."""
    if not evaluation.rates:
        return []
    prompt_N = np.array(heldout["completion_start"])
    response_N = np.array([len(ids) for ids in heldout["token_ids"]]) - prompt_N
    times, texts = heldout["time"], heldout["prompt_text"]
    order_N = sorted(range(len(prompt_N)), key=log_order(times).__getitem__)
    traffic = []
    for name, scenario in (evaluation.scenarios or {EVERYTHING: ScenarioConfig()}).items():
        max_tokens = scenario.max_tokens or evaluation.max_tokens
        room = serving.engine.max_model_len - max_tokens - 1
        prompts, responses = (
            _range(scenario, "prompt", prompt_N),
            _range(scenario, "response", response_N),
        )
        rows = [
            row
            for row in order_N
            if _inside(prompt_N[row], prompts) and _inside(response_N[row], responses)
        ]
        fitting = [row for row in rows if prompt_N[row] <= room]
        if len(fitting) < LEAST_REQUESTS and (evaluation.scenarios or not fitting):
            raise OutriderError(
                _too_few(
                    name, len(fitting), len(rows), prompts, responses, prompt_N, response_N, room
                )
            )
        described = {
            "requests": len(fitting),
            "heldout": len(prompt_N),
            "prompt_tokens": _quantiles(prompt_N[fitting]),
            "response_tokens": _quantiles(response_N[fitting]),
            "max_tokens": max_tokens,
        }
        picked = ([column[row] for row in fitting] for column in (texts, times))
        traffic.append(Traffic(name, *picked, max_tokens, described))
    return traffic


def _range(scenario: ScenarioConfig, length: str, values_N: np.ndarray) -> tuple[float, float]:
    tokens, quantiles = (
        getattr(scenario, f"{length}_tokens"),
        getattr(scenario, f"{length}_quantiles"),
    )
    if quantiles is not None:
        return tuple(float(np.quantile(values_N, share)) for share in quantiles)
    least, most = tokens or (0, None)
    return float(least), float("inf") if most is None else float(most)


def _inside(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]


def _quantiles(values: np.ndarray) -> dict[str, int]:
    return {f"p{rank}": int(np.percentile(values, rank)) for rank in (10, 50, 90)}


def _too_few(
    name: str,
    fitting: int,
    inside: int,
    prompts: tuple[float, float],
    responses: tuple[float, float],
    prompt_N: np.ndarray,
    response_N: np.ndarray,
    room: int,
) -> str:
    key = "eval.rates" if name == EVERYTHING else f"eval.scenarios.{name}"
    cut = f" ({inside - fitting} more are longer than serving.engine.max_model_len leaves room for, {room} tokens)"
    return (
        f"{key}: {fitting} of {len(prompt_N)} held-out requests have prompts of {_told(prompts)} and responses of {_told(responses)} tokens"
        f"{cut if inside > fitting else ''}; {LEAST_REQUESTS} are the least. Their prompts have {_spread(prompt_N)} tokens, their responses "
        f"{_spread(response_N)}: widen the ranges, or keep more requests with split.max_heldout_sequences or split.heldout_fraction"
    )


def _told(limits: tuple[float, float]) -> str:
    return (
        f"{limits[0]:.0f} and more"
        if np.isinf(limits[1])
        else f"{limits[0]:.0f} to {limits[1]:.0f}"
    )


def _spread(values_N: Sequence[int]) -> str:
    return (
        " / ".join(f"{value:.0f}" for value in np.percentile(values_N, (0, 10, 50, 90, 100)))
        + " (0/10/50/90/100 %)"
    )
