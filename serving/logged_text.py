"""A logged completion on its way through the engine: which of its tokens are checked, and what they sum up to so far.

The worker holds one `LoggedText` for each request that brought a `Claim` and, after each engine step, scores the tokens
that follow the states of that step: the head runs in the worker, so that no logits and no tokens leave it, only sums. Every
rank must call `score_step` alike, for a head that is spread over ranks answers only when all of them ask.

    claim = Claim(completion_start=57, temperature=0.6, top_p=0.95, positions=1024)
    text = LoggedText(prompt_token_ids, claim)
    score_step([Step(text, row=0, start=0, tokens=96)], hidden_NH, model.compute_logits, vocabulary, keep=True)
    text.sums_PC      # float64 [2, C]: the first HEAD tokens of the completion, and the rest

Shapes: N positions of a step, H hidden size, P the two parts of a completion, C columns (token_scores.COLUMNS).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from outrider.serving.token_scores import COLUMNS, token_scores

HEAD = 8
"""Tokens at a completion's start that are summed apart: a wrong template shows there and is forgotten soon after."""

LOGITS_AT_ONCE_ON_CPU, LOGITS_AT_ONCE = 2**20, 2**25
"""Floats of logits held at a time: what stays in a CPU's cache; on a GPU 134 MB, 259 positions of R1's vocabulary."""

REQUEST_ARGUMENT = "outrider_claim"
"""The name under which a claim travels with vLLM's request."""


class Claim(NamedTuple):
    """What a log says of one sequence; travels with the request."""

    completion_start: int
    """Index of the first token that the target is said to have written."""
    temperature: float
    top_p: float
    positions: int
    """About how many tokens of the completion are checked at most."""

    def as_request_argument(self) -> dict[str, Any]:
        """As vLLM carries it along with a request (`SamplingParams.extra_args`)."""
        return {REQUEST_ARGUMENT: list(self)}

    @classmethod
    def from_request_argument(cls, extra_args: dict[str, Any] | None) -> "Claim | None":
        """The claim that a request brought, if any."""
        values = (extra_args or {}).get(REQUEST_ARGUMENT)
        return None if values is None else cls(*values)


class LoggedText:
    """One request's completion while it is prefilled."""

    def __init__(self, token_ids: Sequence[int], claim: Claim) -> None:
        self.token_ids = np.asarray(token_ids, np.int64)
        self.claim = claim
        self.checked = checked_positions(claim.completion_start, len(token_ids), claim.positions)
        self.sums_PC = torch.zeros(2, len(COLUMNS), dtype=torch.float64)
        self._done = 0

    def take(self, start: int, tokens: int) -> np.ndarray:
        """The checked positions whose states, one position earlier, are among `tokens` from `start` on; each is given once,
        also when a preempted request is computed again."""
        first, last = np.searchsorted(self.checked, (start + 1, start + tokens + 1))
        first = max(first, self._done)
        self._done = max(last, self._done)
        return self.checked[first:last]


class Step(NamedTuple):
    """A request's share of one engine step: its states are rows `row` .. `row + tokens - 1` for positions from `start` on."""

    text: LoggedText
    row: int
    start: int
    tokens: int


def checked_positions(completion_start: int, length: int, limit: int) -> np.ndarray:
    """Positions of the completion's tokens that are checked: all, or its head and `limit` evenly spread over the whole."""
    # A completion's very first token has no state before it when there is no prompt.
    start = max(completion_start, 1)
    tokens = length - start
    if tokens <= limit:
        return np.arange(start, length)
    return np.union1d(
        np.arange(start, min(start + HEAD, length)), start + np.arange(limit) * tokens // limit
    )


def score_step(
    steps: Sequence[Step],
    hidden_NH: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor | None],
    vocabulary: int,
    keep: bool,
) -> None:
    """Adds the scores of one engine step to the texts' sums, on the rank that shall `keep` them."""
    rows, tokens, sampling, owners = [], [], [], []
    for index, (text, row, start, count) in enumerate(steps):
        position_N = text.take(start, count)
        rows.append(position_N - 1 - start + row)
        tokens.append(text.token_ids[position_N])
        sampling.append(
            np.tile(np.float32([text.claim.temperature, text.claim.top_p]), (len(position_N), 1))
        )
        owners.append(2 * index + (position_N >= max(text.claim.completion_start, 1) + HEAD))
    if not sum(map(len, rows)):
        return
    device = hidden_NH.device
    row_N, token_N, sampling_N2, owner_N = (
        torch.from_numpy(np.concatenate(part)).to(device)
        for part in (rows, tokens, sampling, owners)
    )
    sums_PC = torch.zeros(2 * len(steps), len(COLUMNS), dtype=torch.float64, device=device)
    floats = LOGITS_AT_ONCE_ON_CPU if device.type == "cpu" else LOGITS_AT_ONCE
    at_once = max(floats // vocabulary, 1)
    for part in torch.arange(len(row_N), device=device).split(at_once):
        logits_NV = head(hidden_NH[row_N[part]])
        if keep:
            scores_NC = token_scores(logits_NV, token_N[part], *sampling_N2[part].unbind(-1))
            sums_PC.index_add_(0, owner_N[part], scores_NC.double())
    for (text, *_), text_sums_PC in zip(steps, sums_PC.cpu().view(len(steps), 2, -1), strict=True):
        text.sums_PC += text_sums_PC
