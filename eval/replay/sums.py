"""Expected engine steps of a replay, by response and number of drafts per step.

    sums.acceptance_length()          # k = 1..K, pooled over requests
    compare_replays(base, custom, k=3)        # custom / base, interval over sessions

Shapes: R responses, K depth, G regions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.eval.replay.regions import TIMED
from outrider.eval.results.parts import ClusteredEstimate
from outrider.eval.stats.clusters import clustered_estimate

Array = NDArray[np.float64]

NOTHING_REPLAYED = (
    "exact replay: no sequence has a response of two tokens or more; is the held-out part empty?"
)
"""Message if no response has a step."""


def has_steps(length: int, completion_start: int) -> bool:
    """Whether a sequence has a speculative step.

    The first step needs a state before its anchor, so the prompt must have at least one token.
    """
    return length - completion_start >= 2 and completion_start >= 1


@dataclass(frozen=True)
class ReplaySums:
    """Expected counts per response, by number of drafts (`ReplayChain`).

    Index k - 1 of the first K axis holds the counts for k drafts per step. Without `by_region`,
    G = 0 (regions.py).
    """

    sequence_ids: list[str]
    sessions: list[str]
    users: list[str]
    tokens_R: Array
    steps_RK: Array
    accepted_RKK: Array
    region_tokens_RG: Array
    region_steps_RGK: Array
    regions: Sequence[tuple[str, str]] = ()
    """(dimension, name) of the G regions."""
    anchors: Sequence[tuple[list[int], list[int]]] = ()
    """Of each response, by anchor: accepted drafts, of K, and the probability of the first draft in
    thousandths. Empty unless they were asked for (both_together.py)."""

    @property
    def depth(self) -> int:
        """Largest number of drafts per step that was replayed."""
        return self.steps_RK.shape[1]

    def acceptance_length(self) -> list[float]:
        """Delivered tokens per step for k = 1..K, as a ratio of sums."""
        return [float(value) for value in self.tokens_R.sum() / self.steps_RK.sum(axis=0)]

    def steps_at(self, k: int) -> Array:
        """Expected steps of each response with k drafts per step, [R]."""
        return self.steps_RK[:, k - 1] if k else self.tokens_R

    def without_drafts(self) -> "ReplaySums":
        """The sums of an engine that drafts nothing, which delivers a token per step."""
        return replace(
            self,
            steps_RK=np.broadcast_to(self.tokens_R[:, None], self.steps_RK.shape),
            accepted_RKK=np.zeros_like(self.accepted_RKK),
        )

    def cumulative(self, k: int) -> list[float]:
        """Share of steps whose drafts 1..j were all accepted, by position j."""
        accepted_K = self.accepted_RKK[:, k - 1, :k].sum(axis=0)
        return [float(share) for share in accepted_K / self.steps_RK[:, k - 1].sum()]

    def cumulative_intervals(self, k: int) -> list[tuple[float, float] | None]:
        """95 % intervals of `cumulative`, by position.

        None where there are too few sessions or no accepted drafts.
        """
        intervals: list[tuple[float, float] | None] = []
        for j in range(k):
            sums_R2 = np.stack([self.accepted_RKK[:, k - 1, j], self.steps_RK[:, k - 1]], axis=1)
            share = clustered_estimate(
                sums_R2, self.sessions, lambda s: s[..., 0] / s[..., 1], users=self.users
            )
            low = share.low
            high = share.high
            intervals.append(None if low is None or high is None else (low, min(high, 1.0)))
        return intervals

    @classmethod
    def join(cls, parts: Sequence["ReplaySums"]) -> "ReplaySums":
        """Joins the responses of parts, which must share depth and regions."""
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS}
        return cls(
            sequence_ids=[name for part in parts for name in part.sequence_ids],
            sessions=[name for part in parts for name in part.sessions],
            users=[name for part in parts for name in part.users],
            **arrays,
            regions=parts[0].regions,
            anchors=[anchors for part in parts for anchors in part.anchors],
        )

    def select(self, ids: Sequence[str], sessions: Mapping[str, str] | None = None) -> "ReplaySums":
        """Selects the responses `ids`, in that order, skipping those not replayed.

        Replay leaves out responses of one token. `sessions` overrides the recorded sessions, by id.
        """
        row_of = {name: row for row, name in enumerate(self.sequence_ids)}
        replayed = [name for name in ids if name in row_of]
        rows = [row_of[name] for name in replayed]
        return ReplaySums(
            sequence_ids=replayed,
            sessions=[(sessions or {}).get(name, self.sessions[row_of[name]]) for name in replayed],
            users=[self.users[row] for row in rows],
            **{name: getattr(self, name)[rows] for name in ARRAYS},
            regions=self.regions,
            anchors=[self.anchors[row] for row in rows] if self.anchors else (),
        )

    def region(self, g: int) -> "ReplaySums":
        """Sums within region g, excluding responses that have no token there."""
        tokens_R = self.region_tokens_RG[:, g]
        steps_RK = self.region_steps_RGK[:, g]
        inside = [self.sequence_ids[row] for row in tokens_R.nonzero()[0]]
        return replace(self, tokens_R=tokens_R, steps_RK=steps_RK).select(inside)

    @property
    def is_timed(self) -> bool:
        """Whether the regions of the timed tokens were summed."""
        return any(dimension == TIMED for dimension, _ in self.regions)

    def timed_steps(self, k: int) -> Array:
        """Expected steps [R] until a response is cut after the timed tokens (regions.TIMED)."""
        first = next(g for g, (dimension, _) in enumerate(self.regions) if dimension == TIMED)
        if k:
            return self.region_steps_RGK[:, first, k - 1]
        return self.region_tokens_RG[:, first]

    def as_dict(self) -> dict[str, Any]:
        """Converts to JSON values; counts are rounded to six decimals."""
        arrays = {name: np.round(getattr(self, name), 6).tolist() for name in ARRAYS}
        return {**vars(self), **arrays, "regions": [[*region] for region in self.regions]}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "ReplaySums":
        """The inverse of `as_dict`."""
        arrays = {name: np.array(value[name]) for name in ARRAYS}
        regions = [(dimension, name) for dimension, name in value["regions"]]
        return cls(**{**value, **arrays, "regions": regions})


ARRAYS = ("tokens_R", "steps_RK", "accepted_RKK", "region_tokens_RG", "region_steps_RGK")


def length_at(sums: ReplaySums, k: int) -> ClusteredEstimate:
    """Acceptance length with k drafts."""
    sums_R2 = np.stack([sums.tokens_R, sums.steps_at(k)], axis=1)
    return clustered_estimate(
        sums_R2, sums.sessions, lambda s: s[..., 0] / s[..., 1], users=sums.users
    )


def compare_replays(base: ReplaySums, custom: ReplaySums, k: int) -> dict[str, ClusteredEstimate]:
    """Acceptance lengths of base and custom at k, and their paired ratio."""
    if base.sequence_ids != custom.sequence_ids:
        raise ValueError("base and custom were replayed on different sequences")
    sums_RM = np.stack([base.tokens_R, base.steps_RK[:, k - 1], custom.steps_RK[:, k - 1]], axis=1)
    statistics: dict[str, Callable[[Array], Any]] = {
        "base": lambda s: s[..., 0] / s[..., 1],
        "custom": lambda s: s[..., 0] / s[..., 2],
        "ratio": lambda s: s[..., 1] / s[..., 2],  # the token counts cancel
    }
    return {
        name: clustered_estimate(sums_RM, base.sessions, statistic, users=base.users)
        for name, statistic in statistics.items()
    }
