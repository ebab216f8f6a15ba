"""N-gram lookup: drafts what followed the same tokens earlier in the request.

    NGramLookup().drafts(token_ids_T, first=10, numbers=[4], lookup=Lookup("ngram"))

Shapes: T tokens of a sequence, A anchors, N numbers of drafts per step, K drafts.
"""

import itertools
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from outrider.speculators.kinds.protocol import (
    NO_DRAFT,
    Lookup,
    Matches,
    Settings,
    WeightlessKind,
)

SHORTEST, LONGEST = "prompt_lookup_min", "prompt_lookup_max"
"""vLLM's keys for the range of n-gram lengths."""


class NGramLookup(WeightlessKind):
    """Drafts the tokens after the first occurrence of the longest matching n-gram."""

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
        """Runs vLLM's proposer on the tokens up to each anchor.

        The match does not depend on the number of drafts. max_model_len has no effect, since logged
        tokens, and therefore all drafts that can be accepted, are within this limit.
        """
        from vllm.v1.spec_decode.ngram_proposer import (
            _find_longest_matched_ngram_and_propose_tokens,
        )

        lengths = {**self.default_settings, **lookup.settings}
        anchors = range(first, len(token_ids_T) - 1)
        most = max(numbers)
        drafts_AK = np.full((len(anchors), most), NO_DRAFT, np.int32)
        for row_K, anchor in zip(drafts_AK, anchors, strict=True):
            # vLLM's compiled function, called for one request as in
            # v1/spec_decode/ngram_proposer.py:196.
            proposed = _find_longest_matched_ngram_and_propose_tokens(
                origin_tokens=token_ids_T[: anchor + 1],
                min_ngram=int(lengths[SHORTEST]),
                max_ngram=int(lengths[LONGEST]),
                max_model_len=len(token_ids_T) + most,
                k=most,
            )
            row_K[: len(proposed)] = proposed
        return np.broadcast_to(drafts_AK, (len(numbers), *drafts_AK.shape))

    def all_matches(
        self, token_ids_T: NDArray[np.int32], first: int, k: int, lookup: Lookup
    ) -> Matches:
        """The drafts and the length of the longest n-gram that occurred before; it has no score."""
        lengths = {**self.default_settings, **lookup.settings}
        (drafts_AK,) = self.drafts(token_ids_T, first, [k], lookup)
        length_A = match_lengths(
            token_ids_T.tolist(), first, int(lengths[SHORTEST]), int(lengths[LONGEST])
        )
        return Matches(drafts_AK, np.zeros(len(drafts_AK)), length_A)


def match_lengths(
    token_ids: Sequence[int], first: int, shortest: int, longest: int
) -> NDArray[np.int64]:
    """Tokens of the longest n-gram that ends at each anchor and occurred before it; 0 if none."""
    length_A = np.zeros(max(len(token_ids) - 1 - first, 0), np.int64)
    for size in range(shortest, longest + 1):
        earlier: set[tuple[int, ...]] = set()
        for end in range(size, len(token_ids)):
            ngram = tuple(token_ids[end - size : end])
            if end > first and ngram in earlier:
                length_A[end - 1 - first] = size
            earlier.add(ngram)
    return length_A
