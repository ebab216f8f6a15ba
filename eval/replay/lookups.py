"""Exact replay of lookups from token ids alone, and the choice of their settings.

    texts = [LoggedText.of(row) for row in table]     # columns token_ids and completion_start
    settings = best_settings(Lookup("ngram"), texts)
    lookup = Lookup("ngram", settings)
    lookup_sums(lookup, texts).acceptance_length()    # K = 1..24

A lookup's drafts are deterministic: a draft is accepted if it equals the logged token. So the steps
of a response are a walk over its tokens, one for each number of drafts, and need no probabilities.

Shapes: R responses, A anchors, N numbers of drafts per step, K drafts, G regions.
"""

import dataclasses
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.common.errors import OutriderError
from outrider.eval.config import SEED
from outrider.eval.replay.regions import Regions
from outrider.eval.replay.sums import NOTHING_REPLAYED, ReplaySums, has_steps
from outrider.speculators.kinds import weightless_kind
from outrider.speculators.kinds.protocol import MOST_LOOKED_UP, Lookup, Settings, WeightlessKind

NUMBERS = range(1, MOST_LOOKED_UP + 1)
"""Numbers of drafts per step that are replayed."""

SEARCHED_TOKENS = 40_000
"""Maximum number of response tokens on which settings are compared. On the shipped traffic, another
sample of this size changes the acceptance length of the best settings by less than 2 %."""

MIN_GAIN = 0.01
"""Minimum relative gain in acceptance length from settings that propose more drafts."""


@dataclasses.dataclass(frozen=True)
class LoggedText:
    """A logged request and its response as token ids."""

    sequence_id: str
    session: str
    user: str
    token_ids_T: NDArray[np.int32]
    completion_start: int
    tenant: str = ""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "LoggedText":
        """Reads a row of the sequence table."""
        return cls(
            sequence_id=row["sequence_id"],
            session=row["session"],
            user=row.get("user", ""),
            token_ids_T=np.array(row["token_ids"], np.int32),
            completion_start=row["completion_start"],
            tenant=row.get("tenant", ""),
        )

    @property
    def anchors(self) -> int:
        """Number of tokens of the response after which a step may start: all but the last."""
        return len(self.token_ids_T) - 1 - self.completion_start


def best_settings(lookup: Lookup, texts: Sequence[LoggedText]) -> Settings:
    """The searched settings with the largest acceptance length at their best K.

    The first, which proposes the fewest drafts, that no other beats by more than MIN_GAIN: drafts
    that are rejected cost time. The comparison uses a sample of SEARCHED_TOKENS.
    """
    kind = _kind(lookup)
    sample = _sample(texts)
    candidates = [{**settings} for settings in kind.searched_settings]
    if not sample or not candidates:
        return {}
    best = [
        max(lookup_sums(dataclasses.replace(lookup, settings=settings), sample).acceptance_length())
        for settings in candidates
    ]
    return next(
        settings
        for settings, length in zip(candidates, best, strict=True)
        if max(best) <= (1 + MIN_GAIN) * length
    )


def _sample(texts: Sequence[LoggedText]) -> list[LoggedText]:
    """Random texts with at most SEARCHED_TOKENS response tokens, at least one if there is any."""
    with_steps = [text for text in texts if has_step(text)]
    random.Random(SEED).shuffle(with_steps)
    sample: list[LoggedText] = []
    tokens = 0
    for text in with_steps:
        tokens += text.anchors
        if sample and tokens > SEARCHED_TOKENS:
            break
        sample.append(text)
    return sample


def has_step(text: LoggedText) -> bool:
    """Whether the text has a speculative step."""
    return has_steps(len(text.token_ids_T), text.completion_start)


def lookup_sums(
    lookup: Lookup, texts: Iterable[LoggedText], regions: Regions | None = None
) -> ReplaySums:
    """Replays the texts for every number of drafts up to MOST_LOOKED_UP.

    Responses of one token have no step and are left out.
    """
    kind = _kind(lookup)
    replayed = [text for text in texts if has_step(text)]
    if not replayed:
        raise OutriderError(NOTHING_REPLAYED)
    count = len(replayed)
    numbers = len(NUMBERS)
    groups = len(regions.names) if regions else 0
    steps_RK = np.zeros((count, numbers))
    accepted_RKK = np.zeros((count, numbers, numbers))
    tokens_RG = np.zeros((count, groups))
    steps_RGK = np.zeros((count, groups, numbers))
    for row, text in enumerate(replayed):
        of_tenant = dataclasses.replace(lookup, tenant=text.tenant)
        drafts_NAK = kind.drafts(text.token_ids_T, text.completion_start, NUMBERS, of_tenant)
        accepted_NA = accepted_drafts(drafts_NAK, text)
        visits_AN = lookup_step_starts(accepted_NA)
        steps_RK[row] = visits_AN.sum(axis=0)
        for k in range(numbers):
            lengths = accepted_NA[k, visits_AN[:, k]]
            # Steps whose drafts 1..j were all accepted are those that accepted j or more.
            accepted_RKK[row, k] = (lengths[:, None] >= NUMBERS).sum(axis=0)
        if regions:
            ids_T = torch.from_numpy(text.token_ids_T)
            visits = torch.from_numpy(visits_AN).double()
            tokens_RG[row], steps_RGK[row] = regions.sums(ids_T, text.completion_start, visits)
    return ReplaySums(
        sequence_ids=[text.sequence_id for text in replayed],
        sessions=[text.session for text in replayed],
        users=[text.user for text in replayed],
        tokens_R=np.array([float(text.anchors) for text in replayed]),
        steps_RK=steps_RK,
        accepted_RKK=accepted_RKK,
        region_tokens_RG=tokens_RG,
        region_steps_RGK=steps_RGK,
        regions=regions.names if regions else (),
    )


def accepted_drafts(
    drafts_NAK: NDArray[np.int32], text: LoggedText, numbers: Sequence[int] = NUMBERS
) -> NDArray[np.int64]:
    """Number of drafts [N, A] before the first that is not the logged token.

    Drafts past the end of the response have no logged token, and count as rejected.
    """
    most = drafts_NAK.shape[2]
    # No draft equals the padding: NO_DRAFT is -1.
    padded_T = np.concatenate([text.token_ids_T, np.full(most, -2, np.int32)])
    after = text.completion_start + 1
    logged_AK = np.lib.stride_tricks.sliding_window_view(padded_T[after:], most)[: text.anchors]
    accepted_NA = np.zeros(drafts_NAK.shape[:2], np.int64)
    for row, number in enumerate(numbers):
        # With `number` drafts per step, those after it are not offered.
        equal_AK = drafts_NAK[row, :, :number] == logged_AK[:, :number]
        accepted_NA[row] = equal_AK.cumprod(axis=1).sum(axis=1)
    return accepted_NA


def lookup_step_starts(accepted_NA: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a step starts at each anchor, [A, N].

    The prefill delivers the token of anchor 0. A step delivers its accepted drafts and one token of
    the target.
    """
    numbers, anchors = accepted_NA.shape
    row_N = np.arange(numbers)
    visits_AN = np.zeros((anchors + MOST_LOOKED_UP + 1, numbers), bool)
    visits_AN[0] = True
    for anchor in range(anchors):
        here_N = row_N[visits_AN[anchor]]
        visits_AN[anchor + 1 + accepted_NA[here_N, anchor], here_N] = True
    return visits_AN[:anchors]


def _kind(lookup: Lookup) -> WeightlessKind:
    kind = weightless_kind(lookup.kind)
    assert kind is not None
    return kind
