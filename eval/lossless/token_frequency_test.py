"""Permutation test: are sampled responses with and without speculation equally distributed?

    same_tokens(without, with_speculation).p_value

If speculation is lossless, both responses to a prompt are draws from the target, so each could
carry the other's label. The test swaps labels within prompts and ranks the token counts'
chi-square distance under the true labels among those under random ones. It assumes nothing about
the tokens of one response, which depend on each other.

Shapes: R prompts, B bins of tokens, S permutations.
"""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import permutation_test

from outrider.eval.config import BOOTSTRAP_SAMPLES, SEED
from outrider.eval.results.verification import SameText

RARE = 10
"""Tokens that occur fewer times in all responses together share one bin."""


def same_tokens(
    without: Sequence[Sequence[int]],
    with_speculation: Sequence[Sequence[int]],
    *,
    samples: int = BOOTSTRAP_SAMPLES,
    seed: int = SEED,
) -> SameText:
    """The p-value of the distance of the token counts, sum (a - b)^2 / (a + b) over bins.

    The p-value is exact where there are at most `samples` relabelings.
    """
    counts_2RB = _counts(without, with_speculation)
    total_B = counts_2RB.sum(axis=(0, 1))
    difference_RB = (counts_2RB[0] - counts_2RB[1]) / np.sqrt(total_B)
    prompts = len(difference_RB)

    def distance_S(
        first: NDArray[np.int64], second: NDArray[np.int64], axis: int
    ) -> NDArray[np.float64]:
        # A relabeling is which of a prompt's two responses, 0 or 1, has the first label.
        sign_SR = np.moveaxis(second - first, axis, -1)
        squared_SB: NDArray[np.float64] = (sign_SR @ difference_RB) ** 2
        # Sums in another order differ in their last bits. Equal distances must stay equal.
        return np.round(squared_SB.sum(axis=-1), 9)

    found = permutation_test(
        (np.zeros(prompts, np.int64), np.ones(prompts, np.int64)),
        distance_S,
        permutation_type="samples",
        vectorized=True,
        alternative="greater",
        n_resamples=samples,
        rng=np.random.default_rng(seed),
    )
    return SameText(
        prompts=prompts,
        tokens=int(total_B.sum()),
        p_value=float(found.pvalue),
    )


def _counts(
    without: Sequence[Sequence[int]], with_speculation: Sequence[Sequence[int]]
) -> NDArray[np.float64]:
    """[2, R, B]: how often each common token, and any rare one, occurs in each response."""
    everything = list(itertools.chain(*without, *with_speculation))
    tokens, occurrences = np.unique(np.asarray(everything, np.int64), return_counts=True)
    common = tokens[occurrences >= RARE]
    counts_2RB = np.zeros((2, len(without), len(common) + 1))
    for side, responses in enumerate((without, with_speculation)):
        for row, response in enumerate(responses):
            ids = np.asarray(response, np.int64)
            place = np.searchsorted(common, ids)
            known = place < len(common)
            known[known] = common[place[known]] == ids[known]
            np.add.at(counts_2RB[side, row], np.where(known, place, len(common)), 1)
    used_B = counts_2RB.sum(axis=(0, 1)) > 0
    return counts_2RB[:, :, used_B]
