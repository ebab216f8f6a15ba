"""Scores a logged completion while the engine prefills it.

The worker holds one `ScoredCompletion` for each request with a `Claim`. After each engine step it
scores the tokens that follow the states of that step. The head runs in the worker, so only sums
leave it, not logits or tokens. Every rank must call `score_step`, because a sharded head uses
collectives.

    claim = Claim(completion_start=57, temperature=0.6, top_p=0.95, positions=1024)
    text = ScoredCompletion(prompt_token_ids, claim)
    score_step([RequestSlice(text, row=0, start=0, tokens=96)], hidden_NH, model.compute_logits,
               vocabulary, keep=True)
    text.sums_PC      # float64 [2, C]: the first HEAD tokens of the completion, and the rest

Shapes: N positions of a step, H hidden size, P two parts of a completion, C token_scores.COLUMNS.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from outrider.serving.token_scores import COLUMNS, token_scores
from outrider.serving.vllm_hooks.grammar_masks import TokenMasks
from outrider.speculators.acceptance import mask_forbidden_tokens

HEAD = 8
"""Number of leading completion tokens to sum separately; a wrong template shows only there."""

FIT_EVERY = 4
"""The temperature fit, six times as costly as the other scores, uses every fourth position."""

REQUEST_ARGUMENT = "outrider_claim"
"""Key of the claim in `SamplingParams.extra_args`."""


class Claim(NamedTuple):
    """What the log claims about a sequence's generation; sent with the request."""

    completion_start: int
    """Index of the first token that the target generated."""
    temperature: float
    top_p: float
    positions: int
    """Approximate maximum number of completion tokens to score."""
    top_k: int = 0
    grammar: str = ""
    """The grammar of the completion, if it has one."""


class ScoredCompletion:
    """The completion of one request, with the scores so far.

    A completion with a grammar but without usable `masks` is not scored.
    """

    def __init__(
        self, token_ids: Sequence[int], claim: Claim, masks: TokenMasks | None = None
    ) -> None:
        self.token_ids = np.asarray(token_ids, np.int64)
        self.claim = claim
        self.masks = masks
        scored = 0 if claim.grammar and masks is None else len(token_ids)
        self.checked = checked_positions(claim.completion_start, scored, claim.positions)
        self.sums_PC = torch.zeros(2, len(COLUMNS), dtype=torch.float64)
        self._done = 0

    def take(self, start: int, tokens: int) -> np.ndarray:
        """Returns the positions scored by the `tokens` states that begin at `start`.

        A state scores the next position. Each position is returned once, even after preemption.
        """
        first, last = np.searchsorted(self.checked, (start + 1, start + tokens + 1))
        first = max(first, self._done)
        self._done = max(last, self._done)
        return self.checked[first:last]

    def masks_at(self, position_N: np.ndarray) -> TokenMasks:
        """Returns the masks of these positions; the index is -1 where there is none."""
        if self.masks is None:
            nothing_0W = torch.empty(0, 1, dtype=torch.int32)
            return TokenMasks(nothing_0W, torch.full((len(position_N),), -1))
        index_N = self.masks.index_N[torch.from_numpy(position_N - self.claim.completion_start)]
        return TokenMasks(self.masks.masks_MW, index_N)


class RequestSlice(NamedTuple):
    """One request's part of an engine step.

    Its `tokens` rows begin at `row` in the step and at position `start` in the request.
    """

    text: ScoredCompletion
    row: int
    start: int
    tokens: int


def checked_positions(completion_start: int, length: int, limit: int) -> np.ndarray:
    """Positions to score: all, or the first `HEAD` plus `limit` evenly spaced."""
    # Without a prompt, the first token has no state before it.
    start = max(completion_start, 1)
    tokens = length - start
    if tokens <= limit:
        return np.arange(start, length)
    return np.union1d(
        np.arange(start, min(start + HEAD, length)), start + np.arange(limit) * tokens // limit
    )


def score_step(
    steps: Sequence[RequestSlice],
    hidden_NH: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor | None],
    vocabulary: int,
    keep: bool,
) -> None:
    """Adds one engine step's scores to the texts' sums if `keep`."""
    rows = []
    tokens = []
    sampling = []
    fits = []
    owners = []
    allowed = []
    for index, (text, row, start, count) in enumerate(steps):
        position_N = text.take(start, count)
        rows.append(position_N - 1 - start + row)
        tokens.append(text.token_ids[position_N])
        allowed.append(text.masks_at(position_N))
        claim = text.claim
        settings = np.array([claim.temperature, claim.top_p, claim.top_k], np.float32)
        sampling.append(np.tile(settings, (len(position_N), 1)))
        fits.append(np.isin(position_N, text.checked[::FIT_EVERY]))
        owners.append(2 * index + (position_N >= max(text.claim.completion_start, 1) + HEAD))
    if not sum(map(len, rows)):
        return
    device = hidden_NH.device
    row_N, token_N, sampling_N3, fit_N, owner_N = (
        torch.from_numpy(np.concatenate(part)).to(device)
        for part in (rows, tokens, sampling, fits, owners)
    )
    masks_MW, mask_N = (values.to(device) for values in _joined(allowed))
    sums_PC = torch.zeros(2 * len(steps), len(COLUMNS), dtype=torch.float64, device=device)
    # Each chunk's logits fit in a CPU's cache; on a GPU they take 134 MB (259 positions of R1).
    at_once = max(2 ** (20 if device.type == "cpu" else 25) // vocabulary, 1)
    for part in torch.arange(len(row_N), device=device).split(at_once):
        logits_NV = head(hidden_NH[row_N[part]])
        if keep and logits_NV is not None:
            if len(masks_MW):
                logits_NV = mask_forbidden_tokens(logits_NV, masks_MW, mask_N[part])
            scores_NC = token_scores(
                logits_NV, token_N[part], *sampling_N3[part].unbind(-1), fit_N=fit_N[part]
            )
            sums_PC.index_add_(0, owner_N[part], scores_NC.double())
    for (text, *_), text_sums_PC in zip(steps, sums_PC.cpu().view(len(steps), 2, -1), strict=True):
        text.sums_PC += text_sums_PC


def _joined(parts: Sequence[TokenMasks]) -> TokenMasks:
    """Joins the masks of several texts, of which some have none."""
    with_masks = [part.masks_MW for part in parts if len(part.masks_MW)]
    index = []
    count = 0
    for part in parts:
        index.append(torch.where(part.index_N < 0, -1, part.index_N + count))
        count += len(part.masks_MW)
    return TokenMasks(torch.cat(with_masks or [parts[0].masks_MW]), torch.cat(index))
