"""What a head and a lookup would deliver together, by replay. No engine serves it.

    rule = fit_rule(validation, time)
    combined = combine_drafters(heldout, rule)
    combined.steps_R, combined.lookup_steps_R

At each step, a server would search the lookup and run one pass of the head, which its KV cache
needs anyway. So it would know the probability p of the head's first draft, and the score and the
length of the lookup's match. It drafts with the lookup where

    expected accepted drafts of the lookup (score, length) > those of the head (p) + handicap

and runs the head's other passes elsewhere. The expectations are tables fitted on the validation
part. The handicap is the one with the most tokens/s there: a step with the lookup's drafts takes
less time than one with the head's, and verifies more drafts.

Probabilities of the head's later drafts are not used. They would need passes that such a step does
not have. Also, the unroll reads the logged tokens after the first draft, so it has them only for
drafts that follow accepted ones.

Both drafts are deterministic, so every anchor has one number of accepted drafts of each, and the
steps of a response are one walk. The steps equal those of `replay_chain` on the rows of the two
acceptance matrices that the rule picks (tests/eval/replay/test_both_together.py).

Shapes: R responses, N their anchors in a flat list, one response after another.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.eval.replay.lookups import LoggedText, accepted_drafts
from outrider.eval.replay.sums import ReplaySums
from outrider.speculators.kinds import weightless_kind
from outrider.speculators.kinds.protocol import Lookup, Matches

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Feature = tuple[Array | Counts, Sequence[float]]
"""What is known at each anchor [N], and the boundaries of its bins."""

PROBABILITIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
"""Boundaries of the bins of the head's first probability. A value on a boundary is in the bin
above it."""

SCORES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
"""Boundaries of the bins of a match's score: the lookup's own estimate of accepted drafts, up to
24. N-gram lookup has none."""

LENGTHS = (1, 2, 3, 5, 9, 17)
"""Boundaries of the bins of a match's length in tokens; suffix lookup's longest is 24."""

PRIOR = 10.0
"""Number of anchors that the mean of the larger bin counts as in a bin within it, so that a bin
with few anchors does not decide by chance."""

HANDICAPS = (-math.inf, *np.arange(-3.0, 3.25, 0.25).tolist(), math.inf)
"""Candidates, in accepted drafts. With the infinite ones, the lookup drafts always, or never."""


@dataclasses.dataclass(frozen=True)
class Anchors:
    """What is known before the drafts of each anchor, and how many are accepted."""

    anchors_R: Counts
    """Number of anchors of each response, its tokens but one."""
    probability_N: Array
    """Probability of the head's first draft."""
    head_N: Counts
    """Number of accepted drafts of the head."""
    score_N: Array
    length_N: Counts
    """Tokens of the lookup's match; 0 without one."""
    lookup_N: Counts
    """Number of accepted drafts of the lookup."""


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Milliseconds of a step of the two, each with its own number of drafts."""

    head_ms: float
    """A step with the head alone: all its passes, and the verification of its drafts."""
    lookup_ms: float
    """A step with the lookup alone."""
    pass_ms: float
    """One pass of the head."""

    @property
    def both_ms(self) -> float:
        """A step of a server with both in which the lookup drafts."""
        return self.lookup_ms + self.pass_ms

    @classmethod
    def of_timed(
        cls, head: Mapping[int, float], k: int, lookup: Mapping[int, float], lookup_k: int
    ) -> "StepTime":
        """Derives a pass from timed steps of the two, by number of drafts.

        Verifying the drafts takes as long whoever made them. So at equal numbers of drafts, the
        head's step is longer by one pass for each draft: the slope of a line through the origin.
        """
        both = sorted(head.keys() & lookup.keys())
        longer = sum(number * (head[number] - lookup[number]) for number in both)
        pass_ms = longer / sum(number**2 for number in both)
        return cls(head_ms=head[k], lookup_ms=lookup[lookup_k], pass_ms=max(pass_ms, 0.0))

    def of_steps(self, steps_R: Counts, lookup_steps_R: Counts) -> Array:
        """Milliseconds of responses, in some of whose steps the lookup drafts."""
        return self.head_ms * (steps_R - lookup_steps_R) + self.both_ms * lookup_steps_R


@dataclasses.dataclass(frozen=True)
class LookupRule:
    """Which of the two drafts: tables of expected accepted drafts, and the handicap."""

    head: Array
    """By bin of the probability."""
    lookup: Array
    """By bin of the score and of the length."""
    handicap: float

    def picks_lookup(self, anchors: Anchors) -> NDArray[np.bool_]:
        """Whether the lookup drafts, at each anchor."""
        head_N = self.head[_bins(anchors.probability_N, PROBABILITIES)]
        lookup_N = self.lookup[_bins(anchors.score_N, SCORES), _bins(anchors.length_N, LENGTHS)]
        return lookup_N > head_N + self.handicap


@dataclasses.dataclass(frozen=True)
class CombinedSteps:
    """Steps of each response."""

    steps_R: Counts
    lookup_steps_R: Counts
    """Those with the lookup's drafts."""


def fit_rule(validation: Anchors, time: StepTime) -> LookupRule:
    """Fits the tables, and chooses the handicap with the most tokens/s.

    Of equal ones, the first of HANDICAPS is chosen.
    """
    head = mean_accepted_by_bin([(validation.probability_N, PROBABILITIES)], validation.head_N)
    match: list[Feature] = [(validation.score_N, SCORES), (validation.length_N, LENGTHS)]
    lookup = mean_accepted_by_bin(match, validation.lookup_N)
    rules = [LookupRule(head, lookup, handicap) for handicap in HANDICAPS]
    return min(rules, key=lambda rule: _total_ms(validation, rule, time))


def _total_ms(anchors: Anchors, rule: LookupRule, time: StepTime) -> float:
    combined = combine_drafters(anchors, rule)
    return float(time.of_steps(combined.steps_R, combined.lookup_steps_R).sum())


def mean_accepted_by_bin(features: Sequence[Feature], accepted_N: Counts) -> Array:
    """Mean accepted drafts by bin of one feature, or of a feature within those before it.

    The mean of each bin is drawn towards that of the larger bin, which counts as PRIOR anchors.
    """
    mean = np.array(accepted_N.mean())
    cell_N = np.zeros(len(accepted_N), np.int64)
    for values_N, boundaries in features:
        bins = len(boundaries) + 1
        cell_N = cell_N * bins + _bins(values_N, boundaries)
        shape = (*mean.shape, bins)
        count = np.bincount(cell_N, minlength=math.prod(shape)).reshape(shape)
        total = np.bincount(cell_N, accepted_N, math.prod(shape)).reshape(shape)
        mean = (total + PRIOR * mean[..., None]) / (count + PRIOR)
    return mean


def _bins(values_N: Array | Counts, boundaries: Sequence[float]) -> NDArray[np.int64]:
    return np.searchsorted(boundaries, values_N, side="right")


def combine_drafters(anchors: Anchors, rule: LookupRule) -> CombinedSteps:
    """Walks through all responses by the rule."""
    picks_N = rule.picks_lookup(anchors)
    accepted_N = np.where(picks_N, anchors.lookup_N, anchors.head_N)
    visits_N = step_starts(accepted_N, anchors.anchors_R)
    return CombinedSteps(
        steps_R=_by_response(visits_N, anchors.anchors_R),
        lookup_steps_R=_by_response(visits_N & picks_N, anchors.anchors_R),
    )


def step_starts(accepted_N: Counts, anchors_R: Counts) -> NDArray[np.bool_]:
    """Whether a step starts at each anchor, if it accepts that many drafts there."""
    # A step delivers its accepted drafts and one token of the target.
    next_N = (np.arange(len(accepted_N)) + 1 + accepted_N).tolist()
    visits_N = np.zeros(len(accepted_N), bool)
    for start, end in itertools.pairwise([0, *np.cumsum(anchors_R).tolist()]):
        anchor = start
        while anchor < end:
            visits_N[anchor] = True
            anchor = next_N[anchor]
    return visits_N


def _by_response(marks_N: NDArray[np.bool_], anchors_R: Counts) -> Counts:
    """Number of marked anchors of each response; each has at least one anchor."""
    return np.add.reduceat(marks_N.astype(np.int64), np.cumsum(anchors_R) - anchors_R)


def fewest_steps(anchors: Anchors) -> int:
    """Steps if each had the drafts that save the most, which no server can know.

    The longer of the two drafts is not always the better one, because it may end where neither
    drafts well. So the steps to the end are computed from each anchor, backwards.
    """
    longest = int(max(anchors.head_N.max(), anchors.lookup_N.max()))
    total = 0
    ends = np.cumsum(anchors.anchors_R)
    for end, count in zip(ends.tolist(), anchors.anchors_R.tolist(), strict=True):
        both_N = zip(
            anchors.head_N[end - count : end].tolist(),
            anchors.lookup_N[end - count : end].tolist(),
            strict=True,
        )
        # steps[-1 - m]: steps from m tokens after the anchor at hand. None are left past the end.
        steps = [0] * (longest + 1)
        for head, lookup in reversed([*both_N]):
            steps.append(1 + min(steps[-1 - head], steps[-1 - lookup]))
        total += steps[-1]
    return total


def anchors_of(
    head: ReplaySums, k: int, *, texts: Iterable[LoggedText], lookup: Lookup, lookup_k: int
) -> Anchors:
    """Both drafters at the anchors of replayed responses.

    `head` was replayed `by_anchor`, for at least k drafts; `texts` are the same responses.
    """
    kind = weightless_kind(lookup.kind)
    assert kind is not None
    accepted: list[Counts] = []
    matches: list[Matches] = []
    for text in texts:
        of_tenant = dataclasses.replace(lookup, tenant=text.tenant)
        match = kind.all_matches(text.token_ids_T, text.completion_start, lookup_k, of_tenant)
        (accepted_A,) = accepted_drafts(match.drafts_AK[None], text, [lookup_k])
        accepted.append(accepted_A)
        matches.append(match)
    head_N = np.concatenate([accepted_A for accepted_A, _ in head.anchors])
    thousandths_N = np.concatenate([first_A for _, first_A in head.anchors])
    return Anchors(
        anchors_R=np.array([len(accepted_A) for accepted_A in accepted]),
        probability_N=thousandths_N / 1000,
        # With k drafts, those after them are not offered.
        head_N=np.minimum(head_N, k),
        score_N=np.concatenate([match.score_A for match in matches]),
        length_N=np.concatenate([match.length_A for match in matches]),
        lookup_N=np.concatenate(accepted),
    )
