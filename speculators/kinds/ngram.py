"""N-gram lookup: drafts what followed the same tokens earlier in the request.

    lookup = Lookup("ngram", {"prompt_lookup_min": 2, "prompt_lookup_max": 4}, runner="v2")
    NGramLookup().drafts(token_ids_T, first=10, numbers=[4], lookup=lookup)

vLLM 0.32 has three implementations of two algorithms. Each looks for the longest n-gram that ends
the context and also ends at an earlier token, with or without overlap, and drafts the tokens
between: k, or as many as there are. The match does not depend on k.

    model runner, method    occurrence    other drafts    source in vllm/v1
    V1, ngram               first         none            spec_decode/ngram_proposer.py:197
    V1, ngram_gpu           first         none            spec_decode/ngram_proposer_gpu.py:50
    V2, either              last          last token      worker/gpu/spec_decode/ngram/speculator.py

`max_model_len` has no effect on what is accepted, except that V1 stops to look up for a whole batch
when one of its requests is within k tokens of it (worker/gpu_model_runner.py:4298).

Shapes: T tokens of a sequence, G n-grams of one length, A anchors, N numbers of drafts per step, K
drafts.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from outrider.speculators.kinds.protocol import (
    NO_DRAFT,
    Lookup,
    Matches,
    Runner,
    Settings,
    WeightlessKind,
)

SHORTEST, LONGEST = "prompt_lookup_min", "prompt_lookup_max"
"""vLLM's keys for the range of n-gram lengths."""

NO_MATCH = -1
"""Index of no token."""


class NGramLookup(WeightlessKind):
    """Drafts the tokens after an earlier occurrence of the longest matching n-gram."""

    name = "ngram"
    in_words = "n-gram lookup"
    source_of_drafts = "what followed the same tokens earlier in the request"
    # vLLM's documentation uses a maximum of 4.
    default_settings: ClassVar[Settings] = {SHORTEST: 2, LONGEST: 4}
    # A shorter minimum finds matches in more steps, so the longest minimum proposes the fewest.
    searched_settings: ClassVar[Sequence[Settings]] = tuple(
        {SHORTEST: shortest, LONGEST: longest}
        for shortest, longest in itertools.product((3, 2, 1), (8, 5, 4, 3))
    )

    def drafts(
        self, token_ids_T: NDArray[np.int32], first: int, numbers: Sequence[int], lookup: Lookup
    ) -> NDArray[np.int32]:
        """Drafts of the algorithm of `lookup.runner`; the same for every number of drafts."""
        algorithm = first_occurrence_drafts if lookup.runner == "v1" else last_occurrence_drafts
        drafts_AK = algorithm(token_ids_T, first, max(numbers), self._lengths(lookup))
        return np.broadcast_to(drafts_AK, (len(numbers), *drafts_AK.shape))

    def all_matches(
        self, token_ids_T: NDArray[np.int32], first: int, k: int, lookup: Lookup
    ) -> Matches:
        """The drafts and the length of the longest n-gram that occurred before; it has no score."""
        (drafts_AK,) = self.drafts(token_ids_T, first, [k], lookup)
        length_A = earlier_matches(token_ids_T, self._lengths(lookup)).length_T[first:-1]
        return Matches(drafts_AK, np.zeros(len(drafts_AK)), length_A)

    def settings_of(self, section: Mapping[str, Any]) -> Settings:
        """The range of lengths; vLLM's default is 5, and one end is that of the other.

        vllm/config/speculative.py:1197 (vLLM 0.32)
        """
        given = {key: section[key] for key in (SHORTEST, LONGEST) if section.get(key) is not None}
        one_end = next(iter(given.values()), 5)
        return {SHORTEST: one_end, LONGEST: one_end, **given}

    def runner_settings(self, runner: Runner) -> dict[str, Any]:
        """The method with which vLLM keeps async scheduling on (vllm/config/vllm.py:1600).

        V2 runs the same code for both methods. V1's `ngram_gpu` refuses fewer drafts than it was
        started for, and turns the cache of torch.compile off.
        """
        return {"method": "ngram_gpu"} if runner == "v2" else {}

    def _lengths(self, lookup: Lookup) -> range:
        """Lengths of the n-grams that are looked up."""
        settings = {**self.default_settings, **lookup.settings}
        return range(int(settings[SHORTEST]), int(settings[LONGEST]) + 1)


@dataclasses.dataclass(frozen=True)
class EarlierMatches:
    """The longest n-gram that ends at each token and ended at an earlier one, too."""

    length_T: NDArray[np.int64]
    """Its tokens; 0 without one."""
    first_T: NDArray[np.int64]
    """Where it ended first; NO_MATCH without one."""
    last_T: NDArray[np.int64]
    """Where it ended last before."""


def first_occurrence_drafts(
    token_ids_T: NDArray[np.int32], first: int, k: int, lengths: range
) -> NDArray[np.int32]:
    """Drafts [A, K] of V1 after each token from `first` to the second-to-last."""
    return _tokens_after(earlier_matches(token_ids_T, lengths).first_T, token_ids_T, first, k)


def last_occurrence_drafts(
    token_ids_T: NDArray[np.int32], first: int, k: int, lengths: range
) -> NDArray[np.int32]:
    """Drafts [A, K] of V2 after each token from `first` to the second-to-last."""
    last_T = earlier_matches(token_ids_T, lengths).last_T
    drafts_AK = _tokens_after(last_T, token_ids_T, first, k)
    # vLLM fills every row, also behind a short match, so that it always verifies k drafts.
    return np.where(drafts_AK == NO_DRAFT, token_ids_T[first:-1, None], drafts_AK)


def earlier_matches(token_ids_T: NDArray[np.int32], lengths: range) -> EarlierMatches:
    """Matches of n-grams of `lengths` at all tokens, in T log T steps for each length."""
    count = len(token_ids_T)
    length_T = np.zeros(count, np.int64)
    first_T = np.full(count, NO_MATCH)
    last_T = np.full(count, NO_MATCH)
    _, token_T = np.unique(token_ids_T, return_inverse=True)
    ngram_G = token_T
    for n in range(1, min(lengths.stop, count)):
        end_G = np.arange(n - 1, count)
        if n > 1:
            # An n-gram is a shorter one and a token; equal ones get the same number below `count`.
            _, ngram_G = np.unique(ngram_G[:-1] * count + token_T[n - 1 :], return_inverse=True)
        if n not in lengths:
            continue
        order_G = np.argsort(ngram_G, kind="stable")
        is_new_G = np.diff(ngram_G[order_G], prepend=NO_MATCH) > 0
        repeated = order_G[~is_new_G]
        first_of = end_G[order_G[is_new_G]]
        # Longer n-grams come later and overwrite shorter ones.
        length_T[end_G[repeated]] = n
        first_T[end_G[repeated]] = first_of[ngram_G[repeated]]
        last_T[end_G[repeated]] = end_G[order_G[np.flatnonzero(~is_new_G) - 1]]
    return EarlierMatches(length_T, first_T, last_T)


def _tokens_after(
    match_T: NDArray[np.int64], token_ids_T: NDArray[np.int32], first: int, k: int
) -> NDArray[np.int32]:
    """The k tokens after each anchor's match, as far as the anchor; NO_DRAFT otherwise."""
    anchor_A = np.arange(first, len(token_ids_T) - 1)
    match_A = match_T[anchor_A]
    position_AK = match_A[:, None] + 1 + np.arange(k)
    known_AK = (match_A[:, None] != NO_MATCH) & (position_AK <= anchor_A[:, None])
    drafts_AK = token_ids_T[np.where(known_AK, position_AK, 0)]
    return np.where(known_AK, drafts_AK, NO_DRAFT).astype(np.int32)
