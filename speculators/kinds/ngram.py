"""N-gram lookup: drafts what followed the same tokens earlier in the request.

    first_occurrence_drafts(token_ids_T, first=10, k=4, lengths=range(2, 5))    # V1
    last_occurrence_drafts(token_ids_T, first=10, k=4, lengths=range(2, 5))     # V2

vLLM 0.32 has three implementations of two algorithms. Each looks for the longest n-gram that ends
the context and also ends at an earlier token, with or without overlap, and drafts the tokens
between: k, or as many as there are. The match does not depend on k.

    model runner, method    occurrence    other drafts    source in vllm/v1
    V1, ngram               first         none            spec_decode/ngram_proposer.py:197
    V1, ngram_gpu           first         none            spec_decode/ngram_proposer_gpu.py:50
    V2, either              last          last token      worker/gpu/spec_decode/ngram/speculator.py

`max_model_len` has no effect on what is accepted, except that V1 stops to look up for a whole batch
when one of its requests is within k tokens of it (worker/gpu_model_runner.py:4298).

Shapes: T tokens of a sequence, N n-grams of one length, A anchors, K drafts.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.speculators.kinds.protocol import NO_DRAFT, KPerBatchSize, WeightlessKind

NGRAM_LENGTHS = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
"""Range of n-gram lengths; vLLM's documentation uses a maximum of 4."""

NO_MATCH = -1
"""Index of no token."""


class NGramLookup(WeightlessKind):
    """Drafts the tokens after the first occurrence of the longest matching n-gram."""

    name = "ngram"
    in_words = "n-gram lookup"
    source_of_drafts = "what followed the same tokens earlier in the request"

    def drafts(self, token_ids_T: NDArray[np.int32], first: int, k: int) -> NDArray[np.int32]:
        """Drafts of model runner V1."""
        lengths = range(NGRAM_LENGTHS["prompt_lookup_min"], NGRAM_LENGTHS["prompt_lookup_max"] + 1)
        return first_occurrence_drafts(token_ids_T, first, k, lengths)

    def vllm_settings(
        self,
        directory: Path | None,
        k: int,
        draft_sample_method: str,
        k_per_batch_size: KPerBatchSize | None,
    ) -> dict[str, Any] | None:
        """vLLM's settings, with the range of n-gram lengths."""
        settings = super().vllm_settings(directory, k, draft_sample_method, k_per_batch_size)
        return (settings or {}) | NGRAM_LENGTHS


def first_occurrence_drafts(
    token_ids_T: NDArray[np.int32], first: int, k: int, lengths: range
) -> NDArray[np.int32]:
    """Drafts [A, K] of V1 after each token from `first` to the second-to-last."""
    first_T, _ = earlier_matches(token_ids_T, lengths)
    return _tokens_after(first_T, token_ids_T, first, k)


def last_occurrence_drafts(
    token_ids_T: NDArray[np.int32], first: int, k: int, lengths: range
) -> NDArray[np.int32]:
    """Drafts [A, K] of V2 after each token from `first` to the second-to-last."""
    _, last_T = earlier_matches(token_ids_T, lengths)
    drafts_AK = _tokens_after(last_T, token_ids_T, first, k)
    # vLLM fills every row, also behind a short match, so that it always verifies k drafts.
    return np.where(drafts_AK == NO_DRAFT, token_ids_T[first:-1, None], drafts_AK)


def earlier_matches(
    token_ids_T: NDArray[np.int32], lengths: range
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the longest n-gram that ends at each token ended before: first and last index.

    NO_MATCH where no n-gram of `lengths` did. Takes T log T steps for each length.
    """
    count = len(token_ids_T)
    first_T = np.full(count, NO_MATCH)
    last_T = np.full(count, NO_MATCH)
    _, token_T = np.unique(token_ids_T, return_inverse=True)
    ngram_N = token_T
    for n in range(1, min(lengths.stop, count)):
        end_N = np.arange(n - 1, count)
        if n > 1:
            # An n-gram is a shorter one and a token; equal ones get the same number below `count`.
            _, ngram_N = np.unique(ngram_N[:-1] * count + token_T[n - 1 :], return_inverse=True)
        if n not in lengths:
            continue
        order_N = np.argsort(ngram_N, kind="stable")
        is_new_N = np.diff(ngram_N[order_N], prepend=NO_MATCH) > 0
        repeated = order_N[~is_new_N]
        first_of = end_N[order_N[is_new_N]]
        # Longer n-grams come later and overwrite shorter ones.
        first_T[end_N[repeated]] = first_of[ngram_N[repeated]]
        last_T[end_N[repeated]] = end_N[order_N[np.flatnonzero(~is_new_N) - 1]]
    return first_T, last_T


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
